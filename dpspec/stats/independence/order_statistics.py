"""A lower bound on mu from one run whose canaries are independent: the exact law of right guesses among the extremes.

Setting. Each of m canaries is in or out by a fair coin of its own; from the release follows a score for each. The
``low`` lowest scores are guessed out and the ``high`` highest in, both numbers fixed beforehand, low + high <= m - 2,
and V guesses are right. Independence means: the release is one part for each canary, given the coins these parts are
independent, and each depends on its own canary's coin alone. Nothing is said of their laws.

Theorem. If moreover each part is mu-GDP then P[V >= v] is at most what it is where part j is N(mu b_j, 1) and is the
score itself, and that rises with mu.

Proof. A part whose trade-off function is at least that of N(0, 1) against N(mu, 1) can be made from the latter by a
randomised map that does not know the coin (Blackwell 1953; Dong, Roth & Su 2022, Theorem 2.10). So the whole release,
and all that is made of it, can be made from x_j ~ N(mu b_j, 1). Given x, coins are independent and b_j is 1 with
probability p_j = 1 / (1 + exp(mu^2 / 2 - mu x_j)), which rises with x_j. Whatever disjoint sets of ``high`` and ``low``
canaries are guessed in and out, the right guesses are a sum of independent coins, of probability p_j in the first and
1 - p_j in the second. The k-th largest of the p_j in the first is at most the k-th largest of all, and likewise the
1 - p_j in the second, so that the sum is stochastically largest for the ``high`` largest and the ``low`` smallest x.
For a smaller mu, N(mu b, 1) is made from that of the larger one by such a map too, and so V is stochastically smaller.

Law. Let F be the law of x, half of either normal, and U = F of the (low + 1)-th smallest x, 1 - W that of the
(high + 1)-th largest. U ~ Beta(low + 1, m - low) and, independent of it, (1 - W) / (1 - U) ~ Beta(high + 1,
m - low - high - 1), order statistics of uniform numbers (David & Nagaraja 2003, section 2.5). Given both, the ``low``
below and the ``high`` above are samples of F on either side, so that right guesses are binomial, independent, with
chances of success Phi(t) / (2 U) at t = F^-1(U), and by reflection Phi(s) / (2 (1 - W)) at s = F^-1(1 - W). The two
integrals are taken by the trapezoid rule in the logit of either variable, where both densities are smooth and fall
exponentially: it comes within 1e-7 of the tail, which is added (compared with 600 points, 4 to 400 canaries).

Using order statistics under independence is the idea of Xiang et al. 2025 ("Privacy Audit as Bits Transmission"), who
assume the Gaussian law. The law that is computed here is exact, and it is the worst of all mu-GDP ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.accounting import bisect_by_margin

#: What bounds of this kind name as their source.
SOURCE = "Dong, Roth & Su 2022, Theorem 2.10; order statistics, after Xiang et al. 2025"

#: The share of canaries that is guessed on either side. Of 1,000 normal scores with mu from 0.5 to 1.7 what it shows of
#: epsilon is within 0.005 of the most that any share does; for small mu the best is the classical 27% (Kelley 1939).
SHARE = 0.32

#: No larger mu is told apart from infinity.
LARGEST_MU = 40.0

#: Fewer canaries than this leave no middle between the guesses.
LEAST_CANARIES = 4

Floats = npt.NDArray[np.float64]

_REACH, _ERROR = 7.5, 1e-7

#: Points of the trapezoid rule: more where a density is skewed, below so many canaries on its shorter side.
_POINTS, _MORE_POINTS, _SKEWED = 33, 129, 40

#: Binomial masses are computed within so many standard deviations of their mean.
_WIDTH = 8.5


class Guesses(NamedTuple):
    """The design of one run: of ``canaries``, how many of the lowest scores are guessed out, of the highest in."""

    canaries: int
    low: int
    high: int


def design(canaries: int) -> Guesses:
    """The guesses for one run of so many canaries, from their number alone; raises ``ValueError`` below four."""
    if canaries < LEAST_CANARIES:
        raise ValueError(f"canaries must be at least {LEAST_CANARIES}, got {canaries}")
    side = max(1, math.floor(SHARE * canaries))
    return Guesses(canaries, side, side)


def right(coins: str, guesses: Guesses) -> int:
    """How many guesses are right, from a run's coins ("0" or "1") from the lowest score to the highest."""
    if len(coins) != guesses.canaries:
        raise ValueError(f"need the coins of {guesses.canaries} canaries, got {len(coins)}")
    return coins[: guesses.low].count("0") + coins[len(coins) - guesses.high :].count("1")


def p_value(runs: Sequence[Guesses], correct: int, mu: float) -> float:
    """The theorem's bound on P[V >= correct], V summed over independent runs; at most 1, and rising with mu.

    Raises ``ValueError`` unless mu >= 0 and every design fits.
    """
    if not mu >= 0.0:
        raise ValueError(f"mu must not be negative, got {mu}")
    first, masses, lost = _sum_law(tuple(sorted(runs)), float(min(mu, LARGEST_MU)))
    tail = float(masses[max(0, correct - first) :].sum()) + lost
    return 1.0 if correct <= 0 else min(1.0, tail * (1.0 + _ERROR))


def mu_lower(runs: Sequence[Guesses], correct: int, confidence: float) -> float:
    """A lower bound on the least mu for which each canary's part is mu-GDP, if canaries are independent; 0 where
    nothing is rejected.

    At or below that mu with probability at least ``confidence``. To 1e-5 of itself, rounded down; at most 40. Raises
    ``ValueError`` as :func:`p_value` does, and unless ``confidence`` lies in (0, 1).
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    level = 1.0 - confidence
    if not runs or p_value(runs, correct, 0.0) > level:
        return 0.0
    low, high = 0.0, 1.0
    while high < LARGEST_MU and p_value(runs, correct, high) <= level:
        low, high = high, 2.0 * high

    def margin(mu: float) -> float:
        """0 or more where mu is rejected; in standard deviations of a normal law, where p-values are nearly a line."""
        return float(special.ndtri(level) - special.ndtri(p_value(runs, correct, mu)))

    return bisect_by_margin(margin, low, high, relative=1e-5)[0]


def moments(guesses: Guesses, mu: float) -> tuple[float, float]:
    """Mean and variance of the right guesses of one run whose parts are N(mu b, 1)."""
    first, masses, _ = _law(guesses, mu)
    at = first + np.arange(len(masses))
    total = float(masses.sum())
    mean = float(masses @ at) / total
    return mean, float(masses @ (at - mean) ** 2) / total


def quantile(mu: float, u: Floats) -> Floats:
    """F^-1(u), u in (0, 1): quantiles of half N(0, 1) and half N(mu, 1), by bisection to the last digits of float64."""
    low = np.minimum(special.ndtri(u), special.ndtri(u) + mu)
    high = low + mu
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = 0.5 * (special.ndtr(middle) + special.ndtr(middle - mu)) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high), dtype=np.float64)


@lru_cache(maxsize=64)
def _sum_law(runs: tuple[Guesses, ...], mu: float) -> tuple[int, Floats, float]:
    """The law of right guesses over all runs: its first value, its masses, and what they leave out at most."""
    first, masses, lost = 0, np.ones(1), 0.0
    for run in runs:
        start, new, left = _law(run, mu)
        first, masses, lost = first + start, np.convolve(masses, new), lost + left
    return first, masses, lost


@lru_cache(maxsize=256)
def _law(run: Guesses, mu: float) -> tuple[int, Floats, float]:
    """The same of one run."""
    canaries, low, high = run
    if min(low, high) < 1 or low + high > canaries - 2:
        raise ValueError(f"need guesses of either kind and two canaries between them, got {run}")
    u, u_weights = _beta_points(low + 1, canaries - low)
    part, part_weights = _beta_points(high + 1, canaries - low - high - 1)
    above = part[None, :] * (1.0 - u[:, None])
    chance_low, chance_high = _chance(mu, u), _chance(mu, above)
    first_low, of_low = _binomials(low, chance_low)
    first_high, of_high = _binomials(high, chance_high.ravel())
    of_high = np.einsum("j,ijk->ik", part_weights, of_high.reshape(len(u), len(part), -1))
    masses = sum(
        (weight * np.convolve(a, b) for weight, a, b in zip(u_weights, of_low, of_high, strict=True)),
        np.zeros(of_low.shape[1] + of_high.shape[1] - 1),
    )
    return first_low + first_high, masses, max(0.0, 1.0 - float(masses.sum()))


def _chance(mu: float, share: Floats) -> Floats:
    """P[b = 0 given F(x) <= share]: a guess on one side is right with this chance."""
    return np.asarray(np.minimum(1.0, 0.5 * special.ndtr(quantile(mu, share)) / share), dtype=np.float64)


def _beta_points(a: int, b: int) -> tuple[Floats, Floats]:
    """Points and weights of the trapezoid rule for the law Beta(a, b) in the logit."""
    # betaincinv is what scipy.stats asks for quantiles, without the half second that importing it takes.
    lower = float(special.logit(special.betaincinv(a, b, special.ndtr(-_REACH))))
    upper = -float(special.logit(special.betaincinv(b, a, special.ndtr(-_REACH))))
    at = np.linspace(lower, upper, _MORE_POINTS if min(a, b) < _SKEWED else _POINTS)
    log_density = a * special.log_expit(at) + b * special.log_expit(-at)
    weights = np.exp(log_density - log_density.max())
    return special.expit(at), weights / weights.sum()


def _binomials(number: int, chances: Floats) -> tuple[int, Floats]:
    """The masses of Bin(number, chance) for each of ``chances`` (n,) on one range of values: (n, values)."""
    spread = np.sqrt(number * chances * (1.0 - chances))
    first = max(0, math.floor(float(np.min(number * chances - _WIDTH * spread)) - 40.0))
    last = min(number, math.ceil(float(np.max(number * chances + _WIDTH * spread)) + 40.0))
    k = np.arange(first, last + 1, dtype=np.float64)
    choose = special.gammaln(number + 1.0) - special.gammaln(k + 1.0) - special.gammaln(number - k + 1.0)
    inside = np.clip(chances, 1e-300, 1.0 - 2.0**-53)[:, None]  # so that 0 ln 0 is 0
    return first, np.exp(choose + k * np.log(inside) + (number - k) * np.log1p(-inside))
