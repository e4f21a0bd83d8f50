"""Smooth test of whether ranked coins have the shape of a Gaussian curve, for any mu.

The null: canaries are independent, and scores rise with N(0, 1) for absent and N(mu, 1) for inserted canaries. The
statistic is a chi-square with four degrees of freedom in the limit: "Tests of the assumptions" in
``docs/explanation/proofs/independent-canaries.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.polynomial import legendre
from scipy import special

#: Name of the test.
TEST = "smooth test of four components against a Gaussian curve"

#: Minimum number of canaries for the limit distribution.
LEAST_CANARIES = 500

Floats = npt.NDArray[np.float64]

_DEGREES = (2, 3, 4, 5)

#: Largest fitted mu.
_LARGEST = 8.0

_GRID = 2000

#: Range of the table of F beyond the means in standard deviations, and its number of points.
_REACH, _TABLE = 7.0, 8001


class Shape(NamedTuple):
    """The fitted mu, and the p-value, which is approximate in small samples."""

    mu: float
    p_value: float


def gaussian_shape(outcomes: Sequence[str]) -> Shape | None:
    """Test the coins of all runs, each by ascending score; None if there are too few."""
    told = [np.frombuffer(coins.encode("ascii"), dtype=np.uint8) - 48.0 for coins in outcomes if coins]
    if sum(map(len, told)) < LEAST_CANARIES:
        return None
    places = [(np.arange(len(coins)) + 0.5) / len(coins) for coins in told]
    u, b = np.concatenate(places), np.concatenate(told)

    def score(mu: float) -> float:
        x = _quantile(mu, u)
        return float((x - 0.5 * mu) @ (b - _present(mu, x)))

    low, high = 0.0, _LARGEST
    if score(0.0) > 0.0:
        for _ in range(30):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if score(middle) > 0.0 else (low, middle)
    mu = low
    grid = (np.arange(_GRID) + 0.5) / _GRID
    x_grid = _quantile(mu, grid)
    directions = np.vstack([x_grid - 0.5 * mu, _legendre(grid)])
    slopes = _slopes(mu, x_grid, directions)
    ratios = slopes[1:] / slopes[0]
    adjusted = directions[1:] - ratios[:, None] * directions[0]
    x = _quantile(mu, u)
    observed = (_legendre(u) - ratios[:, None] * (x - 0.5 * mu)) @ (b - _present(mu, x))
    form = float(observed @ np.linalg.solve(len(u) * _covariance(mu, x_grid, adjusted), observed))
    return Shape(mu=mu, p_value=float(special.chdtrc(len(_DEGREES), form)))


def _quantile(mu: float, u: Floats) -> Floats:
    """F^-1(u) to about 1e-6."""
    x = np.linspace(-_REACH, mu + _REACH, _TABLE)
    return np.asarray(np.interp(u, 0.5 * (special.ndtr(x) + special.ndtr(x - mu)), x), dtype=np.float64)


def _present(mu: float, x: Floats) -> Floats:
    return np.asarray(special.expit(mu * x - 0.5 * mu * mu), dtype=np.float64)


def _legendre(u: Floats) -> Floats:
    """The polynomials of ``_DEGREES`` on (0, 1), (degrees, n)."""
    return np.vstack([legendre.legval(2.0 * u - 1.0, [0.0] * degree + [1.0]) for degree in _DEGREES])


def _slopes(mu: float, x: Floats, directions: Floats) -> Floats:
    """Integrate each direction times the derivative of pi(u) by mu, for x (n,) on a grid of u.

    At fixed u, dx/dmu = phi(x - mu) / (phi(x) + phi(x - mu)) = pi, as F(x) = u stays.
    """
    present = _present(mu, x)
    rise = present * (1.0 - present) * (x - mu + mu * present)
    return np.asarray(directions @ rise / x.size, dtype=np.float64)


def _covariance(mu: float, x: Floats, directions: Floats) -> Floats:
    """Covariance per canary, (k, k)."""
    present = _present(mu, x)
    coins = (directions * (present * (1.0 - present))) @ directions.T / x.size
    steps = directions * np.gradient(present)
    psi = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1] - 0.5 * steps
    psi = psi - psi.mean(axis=1, keepdims=True)
    return np.asarray(coins + psi @ psi.T / x.size, dtype=np.float64)
