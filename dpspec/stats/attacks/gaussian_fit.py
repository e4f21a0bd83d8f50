"""Estimate of mu from ranked inclusion bits, if the scores are two normal distributions at distance mu.

A present canary scores above an absent one with probability A(mu) = Phi(mu / sqrt 2). The share of such pairs (AUC) has
the variance [A (1 - A) + (n1 + n0 - 2) (Q - A^2)] / (n1 n0), where Q = Phi_2(mu / sqrt 2, mu / sqrt 2; 1/2) is the
probability that a canary of one kind is on the right side of two of the other. The interval is the score interval of
this statistic, not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from dpspec.accounting import bisect
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
    """Estimate mu, with a two-sided interval, from each trial's inclusion bits by ascending score.

    Pairs are compared within trials only; ``ValueError`` if no trial has any.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    sizes = [(coins.count("1"), coins.count("0")) for coins in outcomes]
    pairs = sum(n1 * n0 for n1, n0 in sizes)
    if pairs == 0:
        raise ValueError("no trial has both a present and an absent canary")
    wins = absent = 0  # pairs in which the present canary scores above the absent one
    for coins in outcomes:
        absent = 0
        for coin in coins:
            absent, wins = (absent + 1, wins) if coin == "0" else (absent, wins + absent)
    share = wins / pairs
    z = float(special.ndtri(0.5 + 0.5 * confidence))

    def crossing(target: float) -> float:
        def above(mu: float) -> bool:
            distance = share - float(special.ndtr(mu / math.sqrt(2.0)))
            return distance / math.sqrt(_variance(mu, sizes, pairs)) > target

        return bisect(above, 0.0, _LARGEST, halvings=60)[0] if above(0.0) else 0.0

    return Estimate(
        mu=min(_LARGEST, max(0.0, math.sqrt(2.0) * float(special.ndtri(share)))) if share > 0.0 else 0.0,
        low=crossing(z),
        high=math.inf if share == 1.0 else crossing(-z),
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
    above = bisect(
        lambda value: curve_lines.gaussian_delta(mu, value) > delta,
        low,
        high,
        enough=lambda low, high: high - low <= 1e-9 * high,
    )
    return above[0]


def _variance(mu: float, sizes: Sequence[tuple[int, int]], pairs: int) -> float:
    h = mu / math.sqrt(2.0)
    a, rest = float(special.ndtr(h)), float(special.ndtr(-h))
    # Phi_2(h, h; 1/2) = Phi(h) - 2 T(h, 1 / sqrt 3), with Owen's T.
    both = max(0.0, a * rest - 2.0 * float(special.owens_t(h, 1.0 / math.sqrt(3.0))))
    total = math.fsum(n1 * n0 * (a * rest + max(0, n1 + n0 - 2) * both) for n1, n0 in sizes)
    return max(total / pairs**2, 1e-300)
