"""An answer with two ends: the true value lies between them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """The closed interval [lower, upper]; the true value lies inside. ``upper`` may be infinite.

    Raises ``ValueError`` when an end is not a number or ``lower`` exceeds ``upper``.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if math.isnan(self.lower) or math.isnan(self.upper):
            raise ValueError(f"an interval needs numbers, got [{self.lower}, {self.upper}]")
        if self.lower > self.upper:
            raise ValueError(f"lower must not exceed upper, got [{self.lower}, {self.upper}]")

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    @property
    def width(self) -> float:
        """``upper - lower``; 0 where both ends are infinite."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    @property
    def relative_width(self) -> float:
        """``width / upper``; 0 for a single point, infinite where only ``upper`` is."""
        if self.lower == self.upper:
            return 0.0
        return self.width / abs(self.upper) if math.isfinite(self.upper) and self.upper != 0.0 else math.inf

    def worse(self, other: Interval) -> Interval:
        """The interval of ``max(a, b)`` for a in this one and b in the other."""
        return Interval(max(self.lower, other.lower), max(self.upper, other.upper))

    def intersect(self, other: Interval) -> Interval:
        """The interval of a value that lies in both. Raises ``ValueError`` when they are disjoint."""
        return Interval(max(self.lower, other.lower), min(self.upper, other.upper))
