"""Model kinds of specs. :mod:`dpspec.models.architectures` lists them."""
