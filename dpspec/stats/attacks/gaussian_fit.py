"""Estimate of mu from ranked inclusion bits, if the scores are two normal distributions at distance mu."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import special

from dpspec.accounting import bisect
from dpspec.stats.attacks import curve_lines

#: Source of estimates of this kind.
SOURCE = "Dong, Roth & Su 2022; Hanley & McNeil 1982, for normal scores of equal spread"

#: Largest finite mu.
_LARGEST = 11.0


def estimate(outcomes: Sequence[str]) -> float:
    """Estimate mu, at most 11, from each trial's inclusion bits by ascending score; not a bound.

    A present canary scores above an absent one with probability Phi(mu / sqrt 2). Pairs are compared within trials
    only; ``ValueError`` if no trial has any. A share below one half is evidence for mu = 0 only.
    """
    pairs = sum(coins.count("1") * coins.count("0") for coins in outcomes)
    if pairs == 0:
        raise ValueError("no trial has both a present and an absent canary")
    wins = 0  # pairs in which the present canary scores above the absent one
    for coins in outcomes:
        absent = 0
        for coin in coins:
            absent, wins = (absent + 1, wins) if coin == "0" else (absent, wins + absent)
    return min(_LARGEST, max(0.0, math.sqrt(2.0) * float(special.ndtri(wins / pairs))))


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
