"""A lower bound on mu from one run with independent canaries, and tests of the assumptions of independent canaries.

The lowest scores are guessed absent and the highest inserted. If each canary's part of the release is mu-GDP, the
number of correct guesses is stochastically at most its value for N(mu b, 1): Theorem 12 of
``docs/explanation/proofs/independent-canaries.md``, which also gives the distribution. "Tests of the assumptions" there
has the statistics of the tests: a Gaussian curve, independence within steps, runs that agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.polynomial import legendre
from scipy import special

from dpspec.accounting import Floats, bisect, bisect_by_margin
from dpspec.stats.conformance.canary_contributions import StepDependence

#: Source of the bounds.
SOURCE = "Dong, Roth & Su 2022, Theorem 2.10; order statistics, after Xiang et al. 2025"

#: Share of the canaries that is guessed on each side. For 1,000 normal scores with mu from 0.5 to 1.7 epsilon is within
#: 0.005 of the best share; for small mu the best is the classical 27% (Kelley 1939).
SHARE = 0.32

#: Largest mu.
LARGEST_MU = 40.0

#: Minimum number of canaries, with two between the guesses.
LEAST_CANARIES = 4

_REACH, _ERROR = 7.5, 1e-7

#: Numbers of points of the trapezoid rule; more for skewed densities, with fewer canaries than this on one side.
_POINTS, _MORE_POINTS, _SKEWED = 33, 129, 40

#: Standard deviations of the mean within which binomial masses are computed.
_WIDTH = 8.5


class Guesses(NamedTuple):
    """Design of one run: numbers of canaries, of guesses "absent" and of guesses "inserted"."""

    canaries: int
    low: int
    high: int


def design(canaries: int) -> Guesses:
    side = max(1, math.floor(SHARE * canaries))
    return Guesses(canaries, side, side)


def right(coins: str, guesses: Guesses) -> int:
    """Return the number of correct guesses, given a run's coins ("0" or "1") by ascending score."""
    return coins[: guesses.low].count("0") + coins[len(coins) - guesses.high :].count("1")


def p_value(runs: Sequence[Guesses], correct: int, mu: float) -> float:
    """Return a bound on P[V >= correct] for the sum V over independent runs. It rises with mu >= 0."""
    first, masses, lost = _sum_law(tuple(sorted(runs)), float(min(mu, LARGEST_MU)))
    tail = float(masses[max(0, correct - first) :].sum()) + lost
    return 1.0 if correct <= 0 else min(1.0, tail * (1.0 + _ERROR))


def mu_lower(runs: Sequence[Guesses], correct: int, confidence: float) -> float:
    """Return a lower bound on the smallest mu for which each canary's part is mu-GDP, if canaries are independent.

    ``correct`` are the correct guesses of all runs. The bound is at most 40, with a relative precision of 1e-5, rounded
    down; 0 if mu = 0 is not rejected.
    """
    level = 1.0 - confidence
    if not runs or p_value(runs, correct, 0.0) > level:
        return 0.0
    low, high = 0.0, 1.0
    while high < LARGEST_MU and p_value(runs, correct, high) <= level:
        low, high = high, 2.0 * high

    def margin(mu: float) -> float:
        """Difference of normal scores, nearly linear in mu; at least 0 if mu is rejected."""
        return float(special.ndtri(level) - special.ndtri(p_value(runs, correct, mu)))

    return bisect_by_margin(margin, low, high, relative=1e-5)[0]


def guess_moments(guesses: Guesses, mu: float) -> tuple[float, float]:
    """Return mean and variance of the number of correct guesses of one run with parts N(mu b, 1)."""
    first, masses, _ = _law(guesses, mu)
    at = first + np.arange(len(masses))
    total = float(masses.sum())
    mean = float(masses @ at) / total
    return mean, float(masses @ (at - mean) ** 2) / total


@lru_cache(maxsize=64)
def _sum_law(runs: tuple[Guesses, ...], mu: float) -> tuple[int, Floats, float]:
    """Distribution of V over all runs: first value, masses, and a bound on the omitted probability."""
    first, masses, lost = 0, np.ones(1), 0.0
    for run in runs:
        start, new, left = _law(run, mu)
        first, masses, lost = first + start, np.convolve(masses, new), lost + left
    return first, masses, lost


@lru_cache(maxsize=256)
def _law(run: Guesses, mu: float) -> tuple[int, Floats, float]:
    """Distribution of V of one run."""
    canaries, low, high = run
    u, u_weights = _beta_points(low + 1, canaries - low)
    part, part_weights = _beta_points(high + 1, canaries - low - high - 1)
    above = part[None, :] * (1.0 - u[:, None])
    first_low, of_low = _binomials(low, _chance(mu, u))
    first_high, of_high = _binomials(high, _chance(mu, above).ravel())
    of_high = np.einsum("j,ijk->ik", part_weights, of_high.reshape(len(u), len(part), -1))
    masses = sum(
        (weight * np.convolve(a, b) for weight, a, b in zip(u_weights, of_low, of_high, strict=True)),
        np.zeros(of_low.shape[1] + of_high.shape[1] - 1),
    )
    return first_low + first_high, masses, max(0.0, 1.0 - float(masses.sum()))


def _chance(mu: float, share: Floats) -> Floats:
    """P[b = 0 given F(x) <= share], the probability of a correct guess, F the equal mixture of N(0, 1) and N(mu, 1)."""
    low = np.minimum(special.ndtri(share), special.ndtri(share) + mu)
    high = low + mu
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = 0.5 * (special.ndtr(middle) + special.ndtr(middle - mu)) < share
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(np.minimum(1.0, 0.5 * special.ndtr(0.5 * (low + high)) / share), dtype=np.float64)


def _beta_points(a: int, b: int) -> tuple[Floats, Floats]:
    """Points and weights of the trapezoid rule for Beta(a, b) in the logit."""
    # scipy.stats uses betaincinv as well, but takes half a second to import.
    lower = float(special.logit(special.betaincinv(a, b, special.ndtr(-_REACH))))
    upper = -float(special.logit(special.betaincinv(b, a, special.ndtr(-_REACH))))
    at = np.linspace(lower, upper, _MORE_POINTS if min(a, b) < _SKEWED else _POINTS)
    log_density = a * special.log_expit(at) + b * special.log_expit(-at)
    weights = np.exp(log_density - log_density.max())
    return special.expit(at), weights / weights.sum()


def _binomials(number: int, chances: Floats) -> tuple[int, Floats]:
    """First value, and masses (n, values) of Bin(number, chance) for each of ``chances`` (n,)."""
    spread = np.sqrt(number * chances * (1.0 - chances))
    first = max(0, math.floor(float(np.min(number * chances - _WIDTH * spread)) - 40.0))
    last = min(number, math.ceil(float(np.max(number * chances + _WIDTH * spread)) + 40.0))
    k = np.arange(first, last + 1, dtype=np.float64)
    choose = special.gammaln(number + 1.0) - special.gammaln(k + 1.0) - special.gammaln(number - k + 1.0)
    inside = np.clip(chances, 1e-300, 1.0 - 2.0**-53)[:, None]  # 0 ln 0 = 0
    return first, np.exp(choose + k * np.log(inside) + (number - k) * np.log1p(-inside))


#: Names of the tests.
CURVE_TEST = "smooth test of four components against a Gaussian curve"
STEPS_TEST = "chi-square tests of means and spreads over the steps"
RUNS_TEST = "chi-square test that runs agree"

#: Minimum number of canaries for the limit distribution of the test of the curve.
CANARIES_OF_CURVE = 500

#: Minimum number of canaries with one coin for the tests of steps.
CANARIES_OF_STEPS = 100

_DEGREES = (2, 3, 4, 5)

#: Largest fitted mu, and number of points of the integrals over u.
_LARGEST, _GRID = 8.0, 2000

#: Range of the table of F beyond the means in standard deviations, and its number of points.
_TABLE_REACH, _TABLE = 7.0, 8001

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
    x = np.linspace(-_TABLE_REACH, mu + _TABLE_REACH, _TABLE)
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
    if len(runs) < 2:
        return None

    def below(mu: float) -> bool:
        return sum(guess_moments(run, mu)[0] for run in runs) < sum(correct)

    mu = bisect(below, 0.0, LARGEST_MU, halvings=30)[0]
    fitted = [guess_moments(run, mu) for run in runs]
    spread = sum((v - mean) ** 2 / max(variance, 1e-12) for v, (mean, variance) in zip(correct, fitted, strict=True))
    return float(special.chdtrc(len(runs) - 1, spread))
