"""What a spec's ``model`` block can name: short lists of layers, collected in :mod:`dpspec.models.providers`."""
