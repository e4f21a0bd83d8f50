"""Whether ranked coins look like those of a Gaussian curve: a smooth test of their shape, for some mu.

Null: canaries are independent, and scores are a rising function of N(0, 1) where a canary is out and N(mu, 1) where it
is in. That is what "normal scores of equal spread" says of ranks, and of nothing else. With F the law of the normal
score x, half of either kind, a canary at quantile u of F is in with probability pi(u) = 1 / (1 + exp(mu^2 / 2 - mu x)),
x = F^-1(u).

Statistic. S_h = sum_i h(u_i) (b_i - pi(u_i)), u_i = (i - 1/2) / m for the i-th lowest score, which is to first order

    S_h = sum_i [ h(U_i) (b_i - pi(U_i)) - (Psi(U_i) - E Psi) ],    Psi(t) = integral of h pi' from t to 1,

U_i the true quantiles: the second part is what ranks differ from quantiles by. Terms are independent, and the two parts
uncorrelated, so that the covariance per canary is  integral of h_j h_k pi (1 - pi) + cov(Psi_j, Psi_k). mu is where S
vanishes for h_0 = x - mu / 2, the best direction; taking (d_j / d_0) h_0 from each h_j, d the derivatives by mu,
removes to first order what that costs (Neyman 1959). With the Legendre polynomials of degree 2 to 5 as h the quadratic
form is chi-square of four degrees in the limit (Neyman 1937; Rayner, Thas & Best 2009): degree 2 sees unequal spreads,
3 a slope that ends, as that of a bounded privacy loss does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.polynomial import legendre
from scipy import special

#: What this test is called.
TEST = "smooth test of four components against a Gaussian curve"

#: Below so many canaries the limit is no guide.
LEAST_CANARIES = 500

Floats = npt.NDArray[np.float64]

_DEGREES = (2, 3, 4, 5)

#: The largest mu that is fitted.
_LARGEST = 8.0

_GRID = 2000

#: F is tabled so many standard deviations beyond either mean, at so many points.
_REACH, _TABLE = 7.0, 8001


class Shape(NamedTuple):
    """The fitted mu and the p-value of the null, which errs a little in small samples."""

    mu: float
    p_value: float


def gaussian_shape(outcomes: Sequence[str]) -> Shape | None:
    """Test the coins of all runs together, each from the lowest score to the highest; None where they are too few."""
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
    """F^-1(u) to about 1e-6, from a fine table."""
    x = np.linspace(-_REACH, mu + _REACH, _TABLE)
    return np.asarray(np.interp(u, 0.5 * (special.ndtr(x) + special.ndtr(x - mu)), x), dtype=np.float64)


def _present(mu: float, x: Floats) -> Floats:
    return np.asarray(special.expit(mu * x - 0.5 * mu * mu), dtype=np.float64)


def _legendre(u: Floats) -> Floats:
    """The polynomials of ``_DEGREES`` on (0, 1), (degrees, n)."""
    return np.vstack([legendre.legval(2.0 * u - 1.0, [0.0] * degree + [1.0]) for degree in _DEGREES])


def _slopes(mu: float, x: Floats, directions: Floats) -> Floats:
    """The integral over u of each direction times the derivative of pi(u) by mu, at fixed u; x (n,) on a grid of u.

    At fixed u, dx/dmu = phi(x - mu) / (phi(x) + phi(x - mu)) = pi, as F(x) = u stays.
    """
    present = _present(mu, x)
    rise = present * (1.0 - present) * (x - mu + mu * present)
    return np.asarray(directions @ rise / x.size, dtype=np.float64)


def _covariance(mu: float, x: Floats, directions: Floats) -> Floats:
    """The covariance per canary of the module's docstring, (k, k)."""
    present = _present(mu, x)
    coins = (directions * (present * (1.0 - present))) @ directions.T / x.size
    steps = directions * np.gradient(present)
    psi = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1] - 0.5 * steps
    psi = psi - psi.mean(axis=1, keepdims=True)
    return np.asarray(coins + psi @ psi.T / x.size, dtype=np.float64)
