"""The most power of a test at a given level, from bounds of the privacy profile.

By duality the power at level a is the least of F(t) = delta(ln t) + a t over t > 0, delta at any real epsilon = ln t,
and F is convex. So the value of an upper bound of delta at any one epsilon bounds the power from above. From below: if
F is at least F(m) at two points on either side of m then its minimum lies between them, and there it is above the
chords through m, prolonged.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpspec.accounting.checks import EPS
from dpspec.accounting.interval import Interval

#: ln of a bound of delta, as a function of epsilon.
Profile = Callable[[float], float]

_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)

#: Neighbours of the minimum are looked for from this share of the scale on, and up to so many times it.
_NEAR, _FAR = 1e-8, 64.0


def most_power(log_level: float, low: Profile, high: Profile, start: float, scale: float) -> tuple[Interval, float]:
    """The most power at level e^``log_level``, and the epsilon near ``start`` whose line decides it.

    low, high: ln of a lower and of an upper bound of delta, good around ``start`` over a few times ``scale``. The lower
    end is 0 where the bounds do not close in on the minimum.
    """

    def least(epsilon: float) -> float:
        trivial = math.log(-math.expm1(epsilon)) if epsilon < 0.0 else -math.inf
        return _sum(max(low(epsilon), trivial), epsilon + log_level)

    def most(epsilon: float) -> float:
        return _sum(high(epsilon), epsilon + log_level)

    at = _valley(most, start, scale)
    top = most(at)
    above = min(1.0, math.exp(top) * (1.0 + _rounding(top)))
    left, right = (_rise(least, top, at, sign, scale) for sign in (-1.0, 1.0))
    if left is None or right is None:
        return Interval(0.0, above), at
    base = math.exp(least(at) - top)
    before, after = -math.expm1(-left), math.expm1(right)
    drops = (
        before / after * (math.exp(most(at + right) - top) - base),
        after / before * (math.exp(most(at - left) - top) - base),
    )
    below = math.exp(top) * (base - max(drops)) * (1.0 - _rounding(top)) - 8.0 * EPS * math.exp(top)
    return Interval(min(max(0.0, below), above), above), at


def _rise(least: Profile, top: float, at: float, sign: float, scale: float) -> float | None:
    """How far from ``at`` the function has certainly risen to ``top``; None where it is not seen to."""
    step = _NEAR * scale
    while step <= _FAR * scale:
        if least(at + sign * step) >= top:
            return step
        step *= 1.6
    return None


def _valley(function: Profile, start: float, scale: float) -> float:
    """A minimum of a function that falls and then rises: a bracket by growing steps, then the golden section."""
    step, middle = 0.25 * scale, start
    if function(middle + step) >= function(middle):
        step = -step
    if function(middle + step) >= function(middle):
        low, high = sorted((middle - step, middle + step))
    else:
        before = middle
        for _ in range(60):
            before, middle, step = middle, middle + step, 2.0 * step
            if function(middle + step) >= function(middle):
                break
        low, high = sorted((before, middle + step))
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [function(x) for x in inner]
    while high - low > 1e-10 * scale + 4.0 * EPS * abs(high):
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _GOLDEN * (high - low)
            values[0] = function(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _GOLDEN * (high - low)
            values[1] = function(inner[1])
    return inner[0] if values[0] <= values[1] else inner[1]


def _sum(first: float, second: float) -> float:
    """ln(e^first + e^second)."""
    top, rest = max(first, second), min(first, second)
    return top if rest == -math.inf else top + math.log1p(math.exp(rest - top))


def _rounding(log: float) -> float:
    return EPS * (16.0 + 4.0 * abs(log))
