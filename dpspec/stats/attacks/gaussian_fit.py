"""How Gaussian an attack looks: an estimate of mu from ranked coins, right if the scores are two normals apart by mu.

Under that model a present canary scores above an absent one with probability A(mu) = Phi(mu / sqrt 2), and the share of
such pairs (AUC, Mann-Whitney) has the variance [A (1 - A) + (n1 + n0 - 2) (Q - A^2)] / (n1 n0), Q the probability that
one canary of one kind is on the right side of two of the other, Phi_2(mu / sqrt 2, mu / sqrt 2; 1/2). The interval
holds the mu at which the observed share is not too far from A(mu) in standard deviations at that mu (a score interval).

Nothing here is a bound: a mechanism whose curve is not Gaussian, or scores that are not normal, void it. A share below
one half is evidence for mu = 0 and nothing else: its sign is kept, as an absolute value would turn noise into evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy import special

from dpspec.stats.attacks import curve_lines

#: What estimates of this kind name as their source.
SOURCE = "Dong, Roth & Su 2022; Hanley & McNeil 1982, for normal scores of equal spread"

#: The largest mu that is told apart from infinity.
_LARGEST = 11.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An approximate mu with the interval that covers it, if the model holds, with the stated confidence.

    ``high`` is infinite where every present canary scores above every absent one.
    """

    mu: float
    low: float
    high: float
    pairs: int


def estimate(outcomes: Sequence[str], confidence: float) -> Estimate:
    """mu from the coins of each trial, from the lowest score to the highest; pairs are compared within trials only.

    confidence: of the interval, half of its error on either side. Raises ``ValueError`` where no trial has a present
    and an absent canary.
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
    """The epsilon of mu-GDP at ``delta`` > 0: the largest one whose delta exceeds it, to 1e-9; 0 where none does."""
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
    """The number of pairs in which the present canary is above the absent one."""
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
    """Where a falling function of mu crosses ``target``, in [0, _LARGEST]."""
    low, high = 0.0, _LARGEST
    if function(low) <= target:
        return 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) > target else (low, middle)
    return low
