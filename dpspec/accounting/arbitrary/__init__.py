"""Pairs of laws that the caller states: probability vectors, densities, cumulative functions."""
