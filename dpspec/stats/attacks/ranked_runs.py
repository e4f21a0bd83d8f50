"""A lower bound on mu from independent runs, each with and without one group of records, for any mechanism.

Runs with the lowest scores are guessed absent, those with the highest inserted. If the release is mu-GDP, the number of
correct guesses is stochastically at most its value for scores N(mu b, 1): Theorem 12 of
``docs/explanation/proofs/independent-runs.md``, which also gives the distribution.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

from dpspec.accounting import Floats
from dpspec.stats import binomial
from dpspec.stats.attacks import curve_lines

#: Source of the bound.
SOURCE = "Dong, Roth & Su 2022, Theorem 2.10; order statistics, after Xiang et al. 2025"

#: Share of the runs that is guessed on each side. For 1,000 normal scores with mu from 0.5 to 1.7 epsilon is within
#: 0.005 of the best share; for small mu the best is the classical 27% (Kelley 1939).
SHARE = 0.32

#: Largest mu.
LARGEST_MU = 40.0

#: Minimum number of runs, with two between the guesses.
LEAST_RUNS = 4

_REACH, _ERROR = 7.5, 1e-7

#: Numbers of points of the trapezoid rule; more for skewed densities, with fewer runs than this on one side.
_POINTS, _MORE_POINTS, _SKEWED = 33, 129, 40

#: Standard deviations of the mean within which binomial masses are computed.
_WIDTH = 8.5


class Guesses(NamedTuple):
    """Numbers of runs, of guesses "absent" and of guesses "inserted"."""

    runs: int
    low: int
    high: int


def design(runs: int) -> Guesses:
    side = max(1, math.floor(SHARE * runs))
    return Guesses(runs, side, side)


def right(coins: str, guesses: Guesses) -> int:
    """Return the number of correct guesses, given the coins ("0" or "1") by ascending score."""
    return coins[: guesses.low].count("0") + coins[len(coins) - guesses.high :].count("1")


def p_value(guesses: Guesses, correct: int, mu: float) -> float:
    """Return a bound on P[V >= correct] for the number V of correct guesses. It rises with mu >= 0."""
    if correct <= 0:
        return 1.0
    first, masses = _law(guesses, float(min(mu, LARGEST_MU)))
    tail = float(masses[max(0, correct - first) :].sum()) + max(0.0, 1.0 - float(masses.sum()))
    return min(1.0, tail * (1.0 + _ERROR))


def mu_lower(guesses: Guesses, correct: int, confidence: float) -> float:
    """Return a lower bound on the smallest mu for which the release is mu-GDP.

    The bound is at most 40, with a relative precision of 1e-5, rounded down; 0 if mu = 0 is not rejected.
    """
    level = 1.0 - confidence
    return binomial.largest_rejected(lambda mu: p_value(guesses, correct, mu), level, relative=1e-5, most=LARGEST_MU)


@lru_cache(maxsize=256)
def _law(guesses: Guesses, mu: float) -> tuple[int, Floats]:
    """First value and masses of the distribution of V."""
    runs, low, high = guesses
    u, u_weights = _beta_points(low + 1, runs - low)
    part, part_weights = _beta_points(high + 1, runs - low - high - 1)
    above = part[None, :] * (1.0 - u[:, None])
    first_low, of_low = _binomials(low, _chance(mu, u))
    first_high, of_high = _binomials(high, _chance(mu, above).ravel())
    of_high = np.einsum("j,ijk->ik", part_weights, of_high.reshape(len(u), len(part), -1))
    masses = sum(
        (weight * np.convolve(a, b) for weight, a, b in zip(u_weights, of_low, of_high, strict=True)),
        np.zeros(of_low.shape[1] + of_high.shape[1] - 1),
    )
    return first_low + first_high, masses


def _chance(mu: float, share: Floats) -> Floats:
    """P[b = 0 given F(x) <= share], the probability of a correct guess, F the equal mixture of N(0, 1) and N(mu, 1)."""
    scores = curve_lines.mixture_quantiles(share, mu)
    return np.asarray(np.minimum(1.0, 0.5 * special.ndtr(scores) / share), dtype=np.float64)


def _beta_points(a: int, b: int) -> tuple[Floats, Floats]:
    """Points and weights of the trapezoid rule for Beta(a, b) in the logit."""
    # scipy.stats uses betaincinv as well, but takes half a second to import.
    lower = float(special.logit(special.betaincinv(a, b, special.ndtr(-_REACH))))
    upper = -float(special.logit(special.betaincinv(b, a, special.ndtr(-_REACH))))
    logits = np.linspace(lower, upper, _MORE_POINTS if min(a, b) < _SKEWED else _POINTS)
    log_density = a * special.log_expit(logits) + b * special.log_expit(-logits)
    weights = np.exp(log_density - log_density.max())
    return special.expit(logits), weights / weights.sum()


def _binomials(number: int, chances: Floats) -> tuple[int, Floats]:
    """First value, and masses (n, values) of Bin(number, chance) for each of ``chances`` (n,)."""
    spread = np.sqrt(number * chances * (1.0 - chances))
    first = max(0, math.floor(float(np.min(number * chances - _WIDTH * spread)) - 40.0))
    last = min(number, math.ceil(float(np.max(number * chances + _WIDTH * spread)) + 40.0))
    k = np.arange(first, last + 1, dtype=np.float64)
    choose = special.gammaln(number + 1.0) - special.gammaln(k + 1.0) - special.gammaln(number - k + 1.0)
    inside = np.clip(chances, 1e-300, 1.0 - 2.0**-53)[:, None]  # 0 ln 0 = 0
    return first, np.exp(choose + k * np.log(inside) + (number - k) * np.log1p(-inside))
