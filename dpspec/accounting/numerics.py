"""Arrays of double precision numbers, the size of their rounding, and what several formulas need of them.

Beside them, arguments that make no sense are refused by name, before anything is computed.

An answer with two ends: the true value lies between them.

Bounds with few digits are rounded from their shortest decimal, upper ones up and lower ones down.

Find where a monotone condition changes: ``bisect`` inside a bracket, ``find_boundary`` anywhere in a range.

``find_boundary`` is for conditions that cost seconds, at single values of one parameter, such as "is epsilon at most 3
with this noise?". Both ends of the last bracket are evaluated and returned.

``crossing`` finds the zero of a monotone function in a third of the evaluations of ``bisect``: secant steps through the
ends of the bracket with a reduced weight of an end that stays (Anderson and Bjorck 1973), and halvings if three steps
in turn did not halve it. ``bisect_by_margin`` returns the same ends as ``bisect``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

#: Arrays of float64.
Floats: TypeAlias = npt.NDArray[np.float64]


#: Arrays of grid positions.
Index: TypeAlias = npt.NDArray[np.int64]


#: The distance from 1.0 to the next double.
EPS: Final = float(np.finfo(np.float64).eps)


#: ln sqrt(2 pi), of the normal density.
LOG_ROOT_TWO_PI: Final = 0.5 * math.log(2.0 * math.pi)


def log_or_minus_infinity(value: float) -> float:
    """ln ``value``; -inf at 0 and below."""
    return math.log(value) if value > 0.0 else -math.inf


def gauss_rule(count: int) -> tuple[Floats, Floats]:
    """Nodes and weights, (``count``,) each, of the Gauss-Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return 0.5 * (nodes + 1.0), 0.5 * weights


#: The two one-sided questions. ``present-first`` compares the output law with the group to the law without it
#: (dp-accounting's REMOVE); ``absent-first`` the other way round (its ADD).
Direction: TypeAlias = Literal["present-first", "absent-first"]


#: A direction, or the worse of the two.
Directions: TypeAlias = Literal["present-first", "absent-first", "both"]


#: Both directions, in the order in which they are computed.
DIRECTIONS: Final[tuple[Direction, Direction]] = ("present-first", "absent-first")


#: Each direction's other one.
OPPOSITE: Final[dict[Direction, Direction]] = {"present-first": "absent-first", "absent-first": "present-first"}


def whole(name: str, value: Any, least: int) -> int:
    """The integer ``value``, which must be at least ``least``. Raises ``ValueError`` naming the argument."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def positive(name: str, value: Any) -> float:
    """The finite number ``value``, which must be above 0. Raises ``ValueError`` naming the argument."""
    number = _number(name, value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def inside(name: str, value: Any, *, one: bool = False) -> float:
    """The number ``value`` in (0, 1), or in (0, 1] with ``one``. Raises ``ValueError`` naming the argument."""
    number = _number(name, value)
    if not (0.0 < number < 1.0 or (one and number == 1.0)):
        raise ValueError(f"{name} must be above 0 and {'at most' if one else 'below'} 1, got {value!r}")
    return number


def finite(name: str, value: Any) -> float:
    """The finite number ``value``. Raises ``ValueError`` naming the argument."""
    number = _number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return number


def directions(value: str) -> tuple[Direction, ...]:
    """The one-sided directions that ``value`` stands for. Raises ``ValueError`` for any other word."""
    if value == "both":
        return DIRECTIONS
    for direction in DIRECTIONS:
        if value == direction:
            return (direction,)
    raise ValueError(f"direction must be one of present-first, absent-first, both, got {value!r}")


def one_direction(value: str) -> Direction:
    """``value`` as a single direction. Raises ``ValueError`` for ``both`` and any other word."""
    for direction in DIRECTIONS:
        if value == direction:
            return direction
    raise ValueError(f"direction must be present-first or absent-first, got {value!r}")


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return float(value)
    except TypeError:
        raise ValueError(f"{name} must be a number, got {value!r}") from None


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


#: Halvings after which no bracket of doubles is left to halve.
_ALL = 2200


def bisect(
    holds: Callable[[float], bool],
    true: float,
    false: float,
    *,
    halvings: int | None = None,
    enough: Callable[[float, float], bool] | None = None,
) -> tuple[float, float]:
    """Halve the bracket from ``true``, where the condition ``holds``, to ``false``, where it does not, in either order.

    Exactly ``halvings`` times, or, by default, until no double lies between; ``enough`` ends it earlier, when it is
    true of the two ends. Returns both ends.
    """
    for _ in range(_ALL if halvings is None else halvings):
        middle = 0.5 * (true + false)
        if (halvings is None and middle in (true, false)) or (enough is not None and enough(true, false)):
            break
        true, false = (middle, false) if holds(middle) else (true, middle)
    return true, false


def bisect_each(
    holds: Callable[[Floats], npt.NDArray[np.bool_]], true: Floats, false: Floats, *, halvings: int
) -> tuple[Floats, Floats]:
    """``bisect`` of one bracket an element, all at once; ends when no bracket can be halved any more."""
    for _ in range(halvings):
        middle = 0.5 * (true + false)
        if np.all((middle == true) | (middle == false)):
            break
        here = holds(middle)
        true, false = np.where(here, middle, true), np.where(here, false, middle)
    return true, false


#: Within so many units in the last place of the larger end a bracket is halved.
_CLOSE = 16.0


#: What is left of a bracket after 60 halvings.
_LEAST = 2.0**-60


#: After so many steps that did not halve the bracket together, the next one does.
_PATIENCE = 3


def crossing(
    margin: Callable[[float], float], true: float, false: float, *, within: float = 0.0
) -> tuple[float, float]:
    """Narrow the bracket from ``true``, where ``margin`` is 0 or more, to ``false``, where it is less, in either order.

    margin: monotone between them, up to rounding; infinite values are allowed. Ends where no double lies between,
    where the bracket is no wider than ``within``, or than 60 halvings would leave of it.
    Returns both ends; where margin falls short at ``true``, or reaches 0 at ``false``, nothing between is looked at.
    """
    at_true, at_false = margin(true), margin(false)
    if at_true < 0.0 or at_false >= 0.0:
        return true, false
    width, left = abs(true - false), _PATIENCE
    within = max(within, width * _LEAST)
    weight_true = weight_false = 1.0
    while True:
        middle = 0.5 * (true + false)
        if middle in (true, false) or abs(true - false) <= within:
            return true, false
        close = max(_CLOSE * EPS * max(abs(true), abs(false)), 0.25 * within)
        x = middle
        if left > 0 and abs(true - false) > 4.0 * close:
            x = _between(true, at_true * weight_true, false, at_false * weight_false, close, middle)
        value = margin(x)
        if value >= 0.0:
            # the other end stays: it counts for less the less this step gained
            weight_false = _lessened(value, at_true) * weight_false
            true, at_true, weight_true = x, value, 1.0
        else:
            weight_true = _lessened(value, at_false) * weight_true
            false, at_false, weight_false = x, value, 1.0
        left -= 1
        if abs(true - false) <= 0.5 * width or x == middle:
            width, left = abs(true - false), _PATIENCE


def bisect_by_margin(
    margin: Callable[[float], float], true: float, false: float, *, relative: float
) -> tuple[float, float]:
    """What ``bisect`` makes of the bracket when its ends are to be within ``relative`` of the larger: to the last bit.

    margin: as of ``crossing``, which comes first; only middles between the ends that it comes to are asked besides.
    """

    def enough(one: float, other: float) -> bool:
        return abs(one - other) <= relative * max(abs(one), abs(other))

    near, far = crossing(margin, true, false, within=0.25 * relative * max(abs(true), abs(false)))

    def holds(x: float) -> bool:
        if min(true, near) <= x <= max(true, near):
            return True
        return not min(far, false) <= x <= max(far, false) and margin(x) >= 0.0

    return bisect(holds, true, false, enough=enough)


def _between(true: float, at_true: float, false: float, at_false: float, close: float, middle: float) -> float:
    """Where the line through both ends is zero, kept so far from them that a root beside one is stepped over."""
    total = at_true - at_false
    if not 0.0 < total < math.inf:
        return middle
    x = true + (false - true) * (at_true / total)
    low, high = sorted((true, false))
    x = min(max(x, low + close), high - close)
    return x if low < x < high else middle


def _lessened(value: float, before: float) -> float:
    """The factor of the weight of an end that stays where the other goes from ``before`` to ``value``."""
    if not 0.0 < abs(before) < math.inf:
        return 1.0
    left = 1.0 - value / before
    return left if left > 0.0 else 0.5
