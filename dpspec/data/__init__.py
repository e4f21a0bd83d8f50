"""What a spec's ``data`` block can name: :mod:`dpspec.data.providers` lists the kinds, each in its family's file."""
