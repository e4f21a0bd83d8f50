"""Questions about a composition and their pending answers; the power of tests from bounds of the privacy profile.

By duality the largest power at level a is the minimum of F(t) = delta(ln t) + a t over t > 0, delta at any real epsilon
= ln t, and F is convex. So an upper bound of delta at any one epsilon bounds the power from above. From below: if F is
at least F(m) at two points on either side of m, its minimum is between them and above the prolonged chords through m.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpspec.accounting.numerics import EPS, Interval

#: ln of a bound of delta, as a function of epsilon.
LogProfile = Callable[[float], float]


_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


#: Largest number of times that a level is raised until it is certainly large enough.
_TRIES = 60


#: Neighbours of the minimum are searched from ``_NEAR`` to ``_FAR`` times the scale.
_NEAR, _FAR = 1e-8, 64.0


def bound_power(
    log_level: float, low: LogProfile, high: LogProfile, start: float, scale: float
) -> tuple[Interval, float]:
    """The largest power at level e^``log_level``, and the epsilon near ``start`` whose line decides it.

    low, high: ln of a lower and of an upper bound of delta, good around ``start`` over a few times ``scale``. The lower
    end is 0 where the bounds do not close in on the minimum.
    """
    lines = _Lines(log_level, low, high)
    best = _valley(lines.most, start, scale)
    above = min(1.0, math.exp(lines.most(best)) * (1.0 + _rounding(lines.most(best))))
    return Interval(min(lines.floor(best, scale), above), above), best


def bound_level(
    log_power: float, low: LogProfile, high: LogProfile, start: float, scale: float
) -> tuple[Interval, float]:
    """The level at which the most power is e^``log_power`` < 1, and the epsilon whose line decides it.

    It is the most of (power - delta(epsilon)) e^-epsilon, so any epsilon bounds it from below; from above a level does
    at which the power is certainly no less.
    """
    power = math.exp(log_power)

    def left(epsilon: float, bound: LogProfile) -> float:
        """ln of that with a bound for delta."""
        gap = -math.expm1(min(0.0, bound(epsilon) - log_power))
        return log_power + math.log(gap) - epsilon if gap > 0.0 else -math.inf

    best = _valley(lambda epsilon: -left(epsilon, high), start, scale)
    below, guess = left(best, high), left(best, low)
    if guess == -math.inf:
        return Interval(0.0, power * (1.0 + 4.0 * EPS)), best
    step = 1.5 * (guess - below) + _rounding(guess) if below > -math.inf else 1.0
    base = below if below > -math.inf else guess - 1.0
    above = log_power
    for _ in range(_TRIES):
        if base + step >= log_power:
            break
        if _Lines(base + step, low, high).floor(best, scale) >= power * (1.0 + 4.0 * EPS):
            above = base + step
            break
        step *= 1.7
    slack = _rounding(below) + 8.0 * EPS / max(-math.expm1(min(0.0, high(best) - log_power)), EPS)
    least = math.exp(below) * max(0.0, 1.0 - slack) if below > -math.inf else 0.0
    most = min(1.0, math.exp(above) * (1.0 + _rounding(above)))
    return Interval(min(least, most), most), best


class _Lines:
    """F(t) = delta(ln t) + level t, from bounds of delta; in logarithms, at epsilon = ln t."""

    def __init__(self, log_level: float, low: LogProfile, high: LogProfile) -> None:
        self._log_level, self._low, self._high = log_level, low, high

    def least(self, epsilon: float) -> float:
        """ln of a lower bound of F."""
        trivial = math.log(-math.expm1(epsilon)) if epsilon < 0.0 else -math.inf
        return _sum(max(self._low(epsilon), trivial), epsilon + self._log_level)

    def most(self, epsilon: float) -> float:
        """ln of an upper bound of F."""
        return _sum(self._high(epsilon), epsilon + self._log_level)

    def floor(self, centre: float, scale: float) -> float:
        """A lower bound of F everywhere, from its values around ``centre``; 0 where none is found."""
        top = self.most(centre)
        left, right = (_rise(self.least, top + _rounding(top), centre, sign, scale) for sign in (-1.0, 1.0))
        if left is None or right is None:
            return 0.0
        base, slack = math.exp(self.least(centre) - top), 2.0 * _rounding(top)
        before, after = -math.expm1(-left), math.expm1(right)
        drops = (
            before / after * (math.exp(self.most(centre + right) - top) - base + slack),
            after / before * (math.exp(self.most(centre - left) - top) - base + slack),
        )
        return max(0.0, math.exp(top) * (base - slack - max(drops)))


def _rise(least: LogProfile, top: float, centre: float, sign: float, scale: float) -> float | None:
    """How far from ``centre`` the function has certainly risen to ``top``; None where it is not seen to."""
    step = _NEAR * scale
    while step <= _FAR * scale:
        if least(centre + sign * step) >= top:
            return step
        step *= 1.6
    return None


def _valley(function: LogProfile, start: float, scale: float) -> float:
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
    larger, smaller = max(first, second), min(first, second)
    return larger if smaller == -math.inf else larger + math.log1p(math.exp(smaller - larger))


def _rounding(log: float) -> float:
    return EPS * (16.0 + 4.0 * abs(log))
