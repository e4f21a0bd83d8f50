"""Instruments for the sum of a step: its parts, and whether the optimizer steps with it."""
