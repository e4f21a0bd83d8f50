"""Spec files to trees in which every value remembers where it was written."""
