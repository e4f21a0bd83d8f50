"""Chernoff bound on the tail of a sum of independent, identically distributed numbers.

P[X_1 + ... + X_n >= 0] <= exp(n K(u)) for every u >= 0, with K(u) = ln E[e^(u X)]. The minimum is at the root of K',
which is increasing. An inaccurate root costs tightness only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpspec.accounting import crossing

Floats = npt.NDArray[np.float64]

#: Precision of ln u. The exponent n K is off by its square, because it is minimal there.
_PRECISION = 1e-5


def log_tail(cumulant: Callable[[float], tuple[float, float]], number: int, least: float, most: float) -> float:
    """Log of the bound on P[a sum of ``number`` values >= 0], u from ``least`` to ``most``; 0 if their mean is >= 0.

    ``cumulant`` returns an upper bound on K(u), and its derivative.
    """
    mean, exponents = cumulant(0.0)[1], [0.0]

    def short(log_u: float) -> float:
        """Distance of the weighted mean from 0, linear in ln u for a normal distribution."""
        value, slope = cumulant(math.exp(log_u))
        exponents.append(number * value)
        return math.log(-mean / (slope - mean)) if slope > mean else math.inf

    if mean < 0.0:
        crossing(short, math.log(least), math.log(most), within=_PRECISION)
    return min(exponents)


def discrete(logs: Floats, values: Floats) -> Callable[[float], tuple[float, float]]:
    """K and its derivative for a distribution with the probabilities e^``logs`` of ``values``, (n,) each."""

    def cumulant(u: float) -> tuple[float, float]:
        weighted = logs + u * values
        top = float(weighted.max())
        weights = np.exp(weighted - top)
        total = float(weights.sum())
        return top + math.log(total), float(weights @ values) / total

    return cumulant
