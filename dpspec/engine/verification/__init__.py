"""Recomputing what a result says, and comparing."""
