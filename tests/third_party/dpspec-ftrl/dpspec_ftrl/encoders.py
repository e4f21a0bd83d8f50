"""The encoder C of the matrix mechanism, and how far one record moves C X: exact, in whole numbers.

Training releases X + C^-1 Z noise_multiplier clip_norm, one row a step, for the clipped gradient sums X (T, parameters)
and a standard normal Z; running sums of it are A X + A C^-1 Z ..., with A the lower triangle of ones (Kairouz et al.
2021; Denisov et al. 2022). A record moves X in the rows S of its steps, each by at most clip_norm. No entry of C is
negative, so that C X moves most where all of these gradients are equal, by

    clip_norm max_S ||sum_(t in S) C e_t||.

Batches are cyclic: a record is in steps j, j + b, j + 2b, ... of its slot j < b.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import comb, inf, nextafter, sqrt
from typing import Any


@dataclass(frozen=True)
class Banded:
    """Row t is sum_(k < bands) c_k x_(t-k) with c_k = binom(2k, k) / 4^k: the first ``bands`` diagonals of A^(1/2).

    C^2 = A where bands >= steps (Fichtenberger, Henzinger and Upadhyay 2023); 1 band is DP-SGD without amplification.
    The coefficients fall, so that inner products of columns fall with their distance and with their place. Slot 0 is
    therefore the worst, and so it is among all choices of steps at least ``separation`` apart, in any order of batches
    (Kalinin and Lampert 2024, Theorem 2).
    """

    steps: int
    bands: int

    @property
    def unit(self) -> Fraction:
        """What an entry of 1 in :meth:`column` stands for: 4^-(bands - 1)."""
        return Fraction(1, 4 ** (self.width - 1))

    @property
    def width(self) -> int:
        """The bands that there is room for."""
        return min(self.bands, self.steps)

    @cached_property
    def coefficients(self) -> tuple[int, ...]:
        """c_0, c_1, ... in units."""
        return tuple(comb(2 * k, k) * 4 ** (self.width - 1 - k) for k in range(self.width))

    def column(self, step: int) -> Mapping[int, int]:
        """The entries of column ``step`` that are not 0, by row, in units."""
        return {step + k: c for k, c in enumerate(self.coefficients) if step + k < self.steps}

    def squared(self, pattern: Iterable[int]) -> Fraction:
        """||sum of the columns in ``pattern``||^2."""
        rows: Counter[int] = Counter()
        for step in pattern:
            rows.update(self.column(step))
        return self.unit**2 * sum(value * value for value in rows.values())

    def moved(self, separation: int) -> Fraction:
        """The square of how far the record of slot 0 moves C X, per clip norm."""
        return self.squared(range(0, self.steps, separation))


def encoder_of(block: Mapping[str, Any]) -> Banded:
    """The encoder that a mechanism's keys ``steps`` and ``bands`` name."""
    return Banded(int(block["steps"]), int(block["bands"]))


def root(square: Fraction) -> tuple[float, float]:
    """Two neighbouring numbers, or one, between which the square root of ``square`` > 0 lies."""
    low = high = sqrt(square)
    while Fraction(low) ** 2 > square:
        low = nextafter(low, 0.0)
    while Fraction(high) ** 2 < square:
        high = nextafter(high, inf)
    return low, high


@lru_cache(maxsize=64)
def effect(encoder: Banded, separation: int, noise_multiplier: float, group_size: int = 1) -> tuple[float, float]:
    """mu, from below and from above: Z and Z + mu e are what groups of ``group_size`` can be told apart by.

    mu = group_size max_S ||sum_(t in S) C e_t|| / noise_multiplier, whose records have the same slot and gradient. It
    bounds adaptive training too: given all that was released, a step's rows of C X are known but for the record's, and
    the squares of what it moves add up to no more than this (Denisov et al. 2022, Theorem 2.1).
    """
    square = encoder.moved(separation) * group_size**2 / Fraction(noise_multiplier) ** 2
    return root(square)
