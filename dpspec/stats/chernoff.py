"""Chernoff's bound on a tail of a sum of independent numbers of one law, at the exponent where it is least.

With K(u) = ln E[e^(u X)], P[X_1 + ... + X_n >= 0] <= exp(n K(u)) for every u >= 0. K is convex, and K'(u), the mean of
X weighted by e^(u X), rises with u: the bound is least where it is zero, which is one root of a monotone function. Any
other u gives a bound as well, so that a root found poorly costs tightness and nothing else. Tails below a value, and
beyond other values than 0, are those of X with its sign changed, or the value subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpspec.accounting import crossing

Floats = npt.NDArray[np.float64]

#: ln u is found to so much: the exponent n K is least there, and off by the square of that.
_PRECISION = 1e-5


def log_tail(cumulant: Callable[[float], tuple[float, float]], number: int, least: float, most: float) -> float:
    """ln of the bound on P[a sum of ``number`` >= 0]; at most 0, and 0 where their mean is not negative.

    cumulant: K(u), or more, and its derivative. least, most: between them, both positive, u is looked for.
    """
    mean, exponents = cumulant(0.0)[1], [0.0]

    def short(log_u: float) -> float:
        """How far the weighted mean falls short of 0, 0 or more up to there: for a normal law a line in ln u."""
        value, slope = cumulant(math.exp(log_u))
        exponents.append(number * value)
        return math.log(-mean / (slope - mean)) if slope > mean else math.inf

    if mean < 0.0:
        crossing(short, math.log(least), math.log(most), within=_PRECISION)
    return min(exponents)


def discrete(logs: Floats, values: Floats) -> Callable[[float], tuple[float, float]]:
    """K and its derivative for a law with the probabilities e^``logs`` of ``values``, (n,) each."""

    def cumulant(u: float) -> tuple[float, float]:
        weighted = logs + u * values
        top = float(weighted.max())
        weights = np.exp(weighted - top)
        total = float(weights.sum())
        return top + math.log(total), float(weights @ values) / total

    return cumulant
