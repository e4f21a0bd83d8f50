"""Adapters turn a kind of training into events: ``opacus`` observes it, ``custom_loop`` gets its reports."""
