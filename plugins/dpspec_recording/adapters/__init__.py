"""Adapters turn a kind of training into events of probes: ``opacus`` observes it, ``custom_loop`` gets its reports."""
