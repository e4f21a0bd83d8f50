"""Tests of the assumptions of independent canaries: a Gaussian curve, independence within steps, runs that agree.

"Tests of the assumptions" in ``docs/explanation/proofs/independent-canaries.md`` has the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.polynomial import legendre
from scipy import special

from dpspec.accounting import bisect
from dpspec.stats.conformance.canary_contributions import StepDependence
from dpspec.stats.independence import order_statistics
from dpspec.stats.independence.order_statistics import Guesses

#: Names of the tests.
CURVE_TEST = "smooth test of four components against a Gaussian curve"
STEPS_TEST = "chi-square tests of means and spreads over the steps"
RUNS_TEST = "chi-square test that runs agree"

#: Minimum number of canaries for the limit distribution of the test of the curve.
CANARIES_OF_CURVE = 500

#: Minimum number of canaries with one coin for the tests of steps.
CANARIES_OF_STEPS = 100

Floats = npt.NDArray[np.float64]

_DEGREES = (2, 3, 4, 5)

#: Largest fitted mu, and number of points of the integrals over u.
_LARGEST, _GRID = 8.0, 2000

#: Range of the table of F beyond the means in standard deviations, and its number of points.
_REACH, _TABLE = 7.0, 8001

#: Factors of the variance of the real records in the variances of a mean and of a spread.
_IN_MEANS, _IN_SPREADS = 4.0, 2.0


class Shape(NamedTuple):
    """The fitted mu, and the p-value, which is approximate in small samples."""

    mu: float
    p_value: float


def gaussian_shape(outcomes: Sequence[str]) -> Shape | None:
    """Test that ranked coins, of each run by ascending score, have a Gaussian curve, for any mu; None for few canaries.

    The null: canaries are independent, and scores rise with N(0, 1) for absent and N(mu, 1) for inserted canaries. The
    statistic is a chi-square with four degrees of freedom in the limit.
    """
    ranked = [np.frombuffer(coins.encode("ascii"), dtype=np.uint8) - 48.0 for coins in outcomes if coins]
    if sum(map(len, ranked)) < CANARIES_OF_CURVE:
        return None
    u = np.concatenate([(np.arange(len(coins)) + 0.5) / len(coins) for coins in ranked])
    b = np.concatenate(ranked)

    def above(mu: float) -> bool:
        x = _quantile(mu, u)
        return float((x - 0.5 * mu) @ (b - _present(mu, x))) > 0.0

    mu = _LARGEST if above(_LARGEST) else bisect(above, 0.0, _LARGEST, halvings=30)[0] if above(0.0) else 0.0
    grid = (np.arange(_GRID) + 0.5) / _GRID
    x_grid = _quantile(mu, grid)
    present = _present(mu, x_grid)
    directions = np.vstack([x_grid - 0.5 * mu, _legendre(grid)])
    # At fixed u, dx/dmu = phi(x - mu) / (phi(x) + phi(x - mu)) = present, as F(x) = u stays.
    slopes = directions @ (present * (1.0 - present) * (x_grid - mu + mu * present)) / _GRID
    ratios = slopes[1:] / slopes[0]
    adjusted = directions[1:] - ratios[:, None] * directions[0]
    steps = adjusted * np.gradient(present)
    psi = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1] - 0.5 * steps
    psi = psi - psi.mean(axis=1, keepdims=True)
    covariance = ((adjusted * (present * (1.0 - present))) @ adjusted.T + psi @ psi.T) / _GRID
    x = _quantile(mu, u)
    observed = (_legendre(u) - ratios[:, None] * (x - 0.5 * mu)) @ (b - _present(mu, x))
    form = float(observed @ np.linalg.solve(len(u) * covariance, observed))
    return Shape(mu=mu, p_value=float(special.chdtrc(len(_DEGREES), form)))


def _quantile(mu: float, u: Floats) -> Floats:
    """F^-1(u) to about 1e-6, F the equal mixture of N(0, 1) and N(mu, 1)."""
    x = np.linspace(-_REACH, mu + _REACH, _TABLE)
    return np.asarray(np.interp(u, 0.5 * (special.ndtr(x) + special.ndtr(x - mu)), x), dtype=np.float64)


def _present(mu: float, x: Floats) -> Floats:
    return np.asarray(special.expit(mu * x - 0.5 * mu * mu), dtype=np.float64)


def _legendre(u: Floats) -> Floats:
    """The polynomials of ``_DEGREES`` on (0, 1), (degrees, n)."""
    return np.vstack([legendre.legval(2.0 * u - 1.0, [0.0] * degree + [1.0]) for degree in _DEGREES])


class Moments(NamedTuple):
    """Mean, variance and fourth central moment over the canaries with one coin, at one step."""

    mean: float
    variance: float
    fourth: float


def moments(values: Floats) -> Moments:
    mean = float(values.mean())
    squares = (values - mean) ** 2
    return Moments(mean, float(squares.sum()) / (len(values) - 1), float((squares**2).mean()))


def dependence_of_steps(
    count: int, steps: Sequence[Moments], sampled: npt.ArrayLike, phases: npt.ArrayLike
) -> tuple[int, float, float] | None:
    """Return degrees of freedom, and the scatter over steps of the means and of the spreads of ``count`` canaries.

    Both are chi-square if the parts of canaries with the same coin are independent. The draw of the real records is
    shared, and its variance along a direction, ``sampled`` per step, is allowed for. Randomness that all steps share is
    not detected. None for few canaries, or ``phases``, per step, of one step.
    """
    if count < CANARIES_OF_STEPS:
        return None
    table = np.array(steps, dtype=np.float64).reshape(-1, 3)
    added, number = np.asarray(sampled, dtype=np.float64), np.asarray(phases)
    degrees, means, spreads = 0, 0.0, 0.0
    for phase in np.unique(number):
        at = number == phase
        mean, variance, fourth = table[at].T
        own = float(variance.mean())
        if at.sum() < 2 or not own > 0.0 or not np.isfinite(table[at]).all():
            continue
        degrees += int(at.sum()) - 1
        means += _scatter(mean, (own + _IN_MEANS * added[at]) / count)
        random = (float(fourth.mean()) - own**2 * (count - 3.0) / (count - 1.0)) / count
        spreads += _scatter(variance - added[at], max(random, 0.0) + _IN_SPREADS * added[at] ** 2 + 1e-12 * own**2)
    return (degrees, means, spreads) if degrees else None


def _scatter(values: Floats, variances: Floats) -> float:
    """sum (v - weighted mean)^2 / variance."""
    weights = 1.0 / variances
    return float(weights @ (values - float(weights @ values) / float(weights.sum())) ** 2)


def steps_p_value(found: Iterable[StepDependence]) -> float | None:
    """Return the p-value of both tests (Bonferroni) over independent classes and runs; None without any."""
    classes = list(found)
    degrees = sum(one.degrees for one in classes)
    if degrees == 0:
        return None
    sums = sum(one.means for one in classes), sum(one.spreads for one in classes)
    return min(1.0, 2.0 * min(float(special.chdtrc(degrees, one)) for one in sums))


def least_seen(found: Iterable[StepDependence], level: float) -> float:
    """Return the smallest correlation of normal parts within a step that the test of means rejects.

    At ``level``, with probability 95%; infinite if there is none.
    """
    classes = list(found)
    degrees = sum(one.degrees for one in classes)
    if degrees == 0:
        return math.inf
    ratio = float(special.chdtri(degrees, 0.5 * level) / special.chdtri(degrees, 0.95))
    return (ratio - 1.0) / (min(one.count for one in classes) - 1.0)


def runs_agree(runs: Sequence[Guesses], correct: Sequence[int]) -> float | None:
    """Return the p-value of the test that runs agree, given their correct guesses; None for fewer than two runs."""
    if len(runs) != len(correct):
        raise ValueError(f"need the right guesses of {len(runs)} runs, got {len(correct)}")
    if len(runs) < 2:
        return None

    def below(mu: float) -> bool:
        return sum(order_statistics.moments(run, mu)[0] for run in runs) < sum(correct)

    mu = bisect(below, 0.0, order_statistics.LARGEST_MU, halvings=30)[0]
    fitted = [order_statistics.moments(run, mu) for run in runs]
    spread = sum((v - mean) ** 2 / max(variance, 1e-12) for v, (mean, variance) in zip(correct, fitted, strict=True))
    return float(special.chdtrc(len(runs) - 1, spread))
