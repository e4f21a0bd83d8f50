"""Two tests of dependence between canaries within steps, with the steps of one run as repetitions.

For canaries with the same coin, the means and the spreads of their projections vary over steps as chi-square variables
if their parts are independent. The draw of the real records is shared, and its variance is allowed for. Randomness that
all steps share is not detected. "Tests of the assumptions" in ``docs/explanation/proofs/independent-canaries.md`` has
the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

#: Name of the test.
TEST = "chi-square tests of means and spreads over the steps"

#: Minimum number of canaries with one coin.
LEAST_CANARIES = 100

#: Factors of the variance of the real records in the variances of a mean and of a spread.
_IN_MEANS, _IN_SPREADS = 4.0, 2.0

Floats = npt.NDArray[np.float64]


class Moments(NamedTuple):
    """Mean, variance and fourth central moment over the canaries with one coin, at one step."""

    mean: float
    variance: float
    fourth: float


@dataclass(frozen=True)
class Dependence:
    """Both statistics of ``count`` canaries with one coin, with ``degrees`` degrees of freedom."""

    count: int
    degrees: int
    means: float
    spreads: float


def moments(values: Floats) -> Moments:
    """Return the moments of the projections (n,) of two or more canaries."""
    mean = float(values.mean())
    squares = (values - mean) ** 2
    return Moments(mean, float(squares.sum()) / (len(values) - 1), float((squares**2).mean()))


def of_steps(count: int, steps: Sequence[Moments], sampled: npt.ArrayLike, phases: npt.ArrayLike) -> Dependence | None:
    """Return both statistics of ``count`` canaries; None for few canaries, or phases of one step.

    Args:
        count: Number of canaries.
        steps: Moments of the measured steps.
        sampled: Variance along a direction of the draw of real records, per step.
        phases: Phase of each step.
    """
    if count < LEAST_CANARIES:
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
    return Dependence(count, degrees, means, spreads) if degrees else None


def p_value(found: Iterable[Dependence]) -> float | None:
    """Return the p-value of both tests (Bonferroni) over independent classes and runs; None without any."""
    told = list(found)
    degrees = sum(one.degrees for one in told)
    if degrees == 0:
        return None
    tails = (
        special.chdtrc(degrees, sum(kind)) for kind in zip(*((one.means, one.spreads) for one in told), strict=True)
    )
    return min(1.0, 2.0 * min(map(float, tails)))


def least_seen(found: Iterable[Dependence], level: float) -> float:
    """Return the smallest correlation of normal parts within a step that the test of means rejects.

    At ``level``, with probability 95%; infinite if there is none.
    """
    told = list(found)
    degrees = sum(one.degrees for one in told)
    if degrees == 0:
        return math.inf
    ratio = float(special.chdtri(degrees, 0.5 * level) / special.chdtri(degrees, 0.95))
    return (ratio - 1.0) / (min(one.count for one in told) - 1.0)


def _scatter(values: Floats, variances: Floats) -> float:
    """sum (v - weighted mean)^2 / variance."""
    weights = 1.0 / variances
    return float(weights @ (values - float(weights @ values) / float(weights.sum())) ** 2)
