"""Renyi differential privacy: divergences of steps and compositions, and their conversion to (epsilon, delta)."""
