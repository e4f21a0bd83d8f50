"""Adapters: each turns one kind of training into the events of probes. ``opacus`` observes, ``custom_loop`` is told."""
