"""Adapters: each turns one kind of training into events of probes. ``opacus`` observes, ``custom_loop`` gets reports."""
