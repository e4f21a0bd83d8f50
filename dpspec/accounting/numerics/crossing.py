"""Where a monotone function of known values crosses zero: what ``bisect`` finds, in a third of its evaluations.

Secant steps through the ends of the bracket, the weight of an end that stays reduced (Anderson and Bjorck 1973), and
halvings where three steps in turn did not halve it. Every end was evaluated, so that a condition that ``true`` promises
holds as computed, however smooth the function is. ``bisect_by_margin`` comes so to the very ends that ``bisect`` would.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpspec.accounting.numerics.floats import EPS
from dpspec.accounting.numerics.search import bisect

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
