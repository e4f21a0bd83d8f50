"""An answer with two ends: the true value lies between them.

Bounds with few digits are rounded from their shortest decimal, upper ones up and lower ones down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context


@dataclass(frozen=True)
class Interval:
    """The closed interval [lower, upper]; the true value lies inside. ``upper`` may be infinite.

    method, lower_method: what computed the upper end, and the lower one, where its maker says so: of two intervals that
    are put together, that of the end which counts. They play no part in comparisons.

    Raises ``ValueError`` when an end is not a number or ``lower`` exceeds ``upper``.
    """

    lower: float
    upper: float
    method: str = field(default="", compare=False)
    lower_method: str = field(default="", compare=False)

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
        return _joined(
            self if self.lower >= other.lower else other,
            self if self.upper >= other.upper else other,
        )

    def intersect(self, other: Interval) -> Interval:
        """The interval of a value that lies in both. Raises ``ValueError`` when they are disjoint."""
        return _joined(
            self if self.lower >= other.lower else other,
            self if self.upper <= other.upper else other,
        )

    def mirrored(self) -> Interval:
        """The interval of ``1 - a`` for a in this one."""
        return Interval(1.0 - self.upper, 1.0 - self.lower, self.lower_method, self.method)

    def by(self, method: str) -> Interval:
        """The same interval, both of whose ends ``method`` computed."""
        return replace(self, method=method, lower_method=method)


def _joined(low: Interval, high: Interval) -> Interval:
    return Interval(low.lower, high.upper, high.method, low.lower_method)


def round_up(value: float, digits: int) -> float:
    """The least float of so many significant digits that is no smaller.

    >>> round_up(2.95512, 4), round_up(2.955, 4)
    (2.956, 2.955)
    """
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))


def round_down(value: float, digits: int) -> float:
    """The largest float of so many significant digits that is no larger."""
    return float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(float(value))))
