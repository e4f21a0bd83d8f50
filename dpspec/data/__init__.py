"""Data kinds of specs. :mod:`dpspec.data.providers` lists them."""
