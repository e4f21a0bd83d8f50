"""Estimate of mu from ranked inclusion bits, if the scores are two normal distributions at distance mu.

Under this model a present canary scores above an absent one with probability A(mu) = Phi(mu / sqrt 2). The share of
such pairs (AUC) has the variance [A (1 - A) + (n1 + n0 - 2) (Q - A^2)] / (n1 n0), where Q = Phi_2(mu / sqrt 2, mu /
sqrt 2; 1/2) is the probability that a canary of one kind is on the right side of two of the other. The interval is the
score interval of this statistic. It is not a bound: it assumes a Gaussian curve and normal scores. A share below one
half is evidence for mu = 0 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy import special

from dpspec.stats.attacks import curve_lines

#: Source of estimates of this kind.
SOURCE = "Dong, Roth & Su 2022; Hanley & McNeil 1982, for normal scores of equal spread"

#: Largest finite mu.
_LARGEST = 11.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Approximate mu with its interval; ``high`` is infinite if all present canaries score above all absent ones."""

    mu: float
    low: float
    high: float
    pairs: int


def estimate(outcomes: Sequence[str], confidence: float) -> Estimate:
    """Estimate mu; pairs are compared within trials only.

    Args:
        outcomes: The inclusion bits of each trial, by ascending score.
        confidence: Two-sided confidence of the interval.

    Raises:
        ValueError: No trial has a present and an absent canary.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    sizes = [(coins.count("1"), coins.count("0")) for coins in outcomes]
    pairs = sum(n1 * n0 for n1, n0 in sizes)
    if pairs == 0:
        raise ValueError("no trial has both a present and an absent canary")
    share = sum(map(_wins, outcomes)) / pairs
    z = float(special.ndtri(0.5 + 0.5 * confidence))

    def distance(mu: float) -> float:
        return (share - float(special.ndtr(mu / math.sqrt(2.0)))) / math.sqrt(_variance(mu, sizes, pairs))

    return Estimate(
        mu=min(_LARGEST, max(0.0, math.sqrt(2.0) * float(special.ndtri(share)))) if share > 0.0 else 0.0,
        low=_falling(distance, z),
        high=math.inf if share == 1.0 else _falling(distance, -z),
        pairs=pairs,
    )


def epsilon(mu: float, delta: float) -> float:
    """Epsilon of mu-GDP at ``delta`` > 0, within a relative 1e-9."""
    if not delta > 0.0:
        raise ValueError(f"delta must be positive, got {delta}")
    if not mu > 0.0 or curve_lines.gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if math.isinf(mu):
        return math.inf
    low, high = 0.0, 1.0
    while curve_lines.gaussian_delta(mu, high) > delta:
        low, high = high, 2.0 * high
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if curve_lines.gaussian_delta(mu, middle) > delta else (low, middle)
    return low


def _wins(coins: str) -> int:
    """Number of pairs in which the present canary scores above the absent one."""
    absent = wins = 0
    for coin in coins:
        if coin == "0":
            absent += 1
        else:
            wins += absent
    return wins


def _variance(mu: float, sizes: Sequence[tuple[int, int]], pairs: int) -> float:
    h = mu / math.sqrt(2.0)
    a, rest = float(special.ndtr(h)), float(special.ndtr(-h))
    # Phi_2(h, h; 1/2) = Phi(h) - 2 T(h, 1 / sqrt 3), with Owen's T.
    both = max(0.0, a * rest - 2.0 * float(special.owens_t(h, 1.0 / math.sqrt(3.0))))
    total = math.fsum(n1 * n0 * (a * rest + max(0, n1 + n0 - 2) * both) for n1, n0 in sizes)
    return max(total / pairs**2, 1e-300)


def _falling(function: Callable[[float], float], target: float) -> float:
    """The point in [0, _LARGEST] at which a decreasing function crosses ``target``."""
    low, high = 0.0, _LARGEST
    if function(low) <= target:
        return 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) > target else (low, middle)
    return low
