"""Model kinds of specs. :mod:`dpspec.models.providers` lists them."""
