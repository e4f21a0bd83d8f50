"""The mechanism under audit: a count with Laplace noise."""

from __future__ import annotations

from random import Random


def release(count: int, scale: float, random: Random) -> float:
    """The count plus Laplace noise: the difference of two exponential variables of mean ``scale``."""
    return count + random.expovariate(1.0 / scale) - random.expovariate(1.0 / scale)
