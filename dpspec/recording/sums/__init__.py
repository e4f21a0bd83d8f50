"""Observers of the sum of a step: what it consists of, and whether the optimizer steps with it."""
