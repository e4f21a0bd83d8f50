"""What a spec's ``data`` block can name: each kind is one small file; :mod:`dpspec.data.providers` lists them."""
