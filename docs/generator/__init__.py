"""Generators of the pages of docs/reference; ``docs/generate.py`` runs them."""
