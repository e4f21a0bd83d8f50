"""Readers of spec files. The resulting trees keep the position of each value."""
