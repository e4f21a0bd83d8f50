"""What a spec's ``model`` block can name: each kind is a short list of layers; :mod:`dpspec.models.providers` lists them."""
