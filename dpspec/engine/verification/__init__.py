"""Recomputation of a result and comparison."""
