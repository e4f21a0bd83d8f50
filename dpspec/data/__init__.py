"""Data kinds of specs. :mod:`dpspec.registry.builtin` lists them."""
