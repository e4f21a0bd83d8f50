"""Whether canaries share luck of a step: two tests that one run allows, as each of its steps is a repetition.

Setting. Of n canaries with the same coin, x_ti is what step t shows along the direction of canary i, t = 1, ..., T,
all steps of one phase. If every canary's part is its own, and steps are alike but for what sampling the real
records adds, then with M_t the mean over i, S_t the variance (n - 1 in its denominator) and K the mean over t of the
fourth central moments:

- means: sum over t of (M_t - M)^2 n / V_t is chi-square of T - 1 degrees in the limit of many canaries (one-way
  analysis of variance, the steps as groups; Scheffe 1959, chapter 3), V_t the mean of the S_t and M the weighted mean.
  Noise that reaches all directions at once, or canaries that enter batches together, make it larger: parts that are
  correlated by r within a step multiply its mean by 1 + (n - 1) r.
- spreads: sum over t of (S_t - S)^2 / Var is chi-square of T - 1 likewise, Var = (K - S^2 (n - 3) / (n - 1)) / n
  (Cramer 1946, section 27.4). Noise that is larger in some steps than in others makes it larger.

The real records. What their sampling adds along any direction has a variance of about e_t = ||.||^2 / (parameters) on
average over the directions, which are random. It is truly shared: the step's sum is one vector. It changes from step to
step, and with few gradients that matter its share of a mean, or of a step's spread, is e_t times a chi-square of one
degree. So e_t is taken off S_t, V_t is raised by 4 e_t, and Var by 2 e_t^2. That costs power, and nothing where e_t is
small beside the noise, as it is unless there are few parameters.

What this does not see is luck that lasts for the whole run: a mean or a spread that is the same wrong one in all steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

#: What this test is called.
TEST = "chi-square tests of means and spreads over the steps"

#: Classes of fewer canaries are left out: the limits are no guide there.
LEAST_CANARIES = 100

#: What sampling the real records adds counts so many times in the variance of a mean, and in that of a spread.
_IN_MEANS, _IN_SPREADS = 4.0, 2.0

Floats = npt.NDArray[np.float64]


class Moments(NamedTuple):
    """What one step shows of the canaries with one coin: their mean, variance, and fourth central moment."""

    mean: float
    variance: float
    fourth: float


@dataclass(frozen=True)
class Luck:
    """Both statistics of the canaries with one coin, ``count`` of them, each chi-square of ``degrees`` in the limit."""

    count: int
    degrees: int
    means: float
    spreads: float


def moments(values: Floats) -> Moments:
    """Of what one step shows of two canaries or more, (n,)."""
    mean = float(values.mean())
    squares = (values - mean) ** 2
    return Moments(mean, float(squares.sum()) / (len(values) - 1), float((squares**2).mean()))


def of_steps(count: int, steps: Sequence[Moments], sampled: npt.ArrayLike, phases: npt.ArrayLike) -> Luck | None:
    """Both statistics of ``count`` canaries, from all measured steps; None of few canaries, or where nothing repeats.

    sampled: e_t of each step, at least 0. phases: which phase it is of.
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
    return Luck(count, degrees, means, spreads) if degrees else None


def p_value(found: Iterable[Luck]) -> float | None:
    """Of both tests together (Bonferroni), over independent classes and runs; None where there is none."""
    told = list(found)
    degrees = sum(one.degrees for one in told)
    if degrees == 0:
        return None
    tails = (
        special.chdtrc(degrees, sum(kind)) for kind in zip(*((one.means, one.spreads) for one in told), strict=True)
    )
    return min(1.0, 2.0 * min(map(float, tails)))


def least_seen(found: Iterable[Luck], level: float) -> float:
    """The least correlation of two canaries' parts within a step that the test of means at ``level`` rejects with a
    probability of 95%, of normal parts; infinite where there is none."""
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
