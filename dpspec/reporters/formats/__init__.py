"""A result in each format but HTML."""
