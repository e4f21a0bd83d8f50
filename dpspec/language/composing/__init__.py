"""Composition of a spec from its layers: extends, matrix, --set."""
