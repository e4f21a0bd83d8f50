"""Answers from bounds of a privacy profile: tests by duality, one step, and Gaussian pairs.

Theorem 17 of ``docs/explanation/proofs/grids.md``: the largest power at level a is the minimum over t > 0 of the convex
F(t) = delta(ln t) + a t.

>>> def log_delta(epsilon: float) -> float:
...     return float(gaussian.log_delta(epsilon, 1.0))
>>> power, line = bound_power(math.log(0.05), log_delta, log_delta, 1.0, 1.0)
>>> f"{power:.6f}", round(line, 3)  # Phi(1 - 1.645), at 1.645 - 1 / 2
('0.259511 to 0.259512', 1.145)

Questions of ``privacy_loss`` are here, with the bounds that need no grid, and the estimates (``Cumulants``) of the
place at which a grid answers them.
"""

import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import ndtri_exp

from dpspec.accounting import gaussian
from dpspec.accounting.composition import chance_of_any
from dpspec.accounting.grid import Pair
from dpspec.accounting.numerics import EPS, Direction, Floats, Index, Interval, crossing, log_or_minus_infinity

#: Methods of an answer: the closed form of the plain Gaussian steps, or of Gaussian pairs that dominate.
CLOSED, DOMINATED = "closed form", "closed form of a dominating pair"

#: Method of an epsilon: no loss is larger.
LARGEST = "largest loss"

#: Method of an answer: the exact profile of the only step.
ONE_STEP = "exact profile of one step"

#: Method of an answer: a moment of the likelihood ratio shows that the other direction decides.
MOMENT = "moment of the likelihood ratio"

#: Tilts at which moments are computed, times the smallest one of any use.
_MULTIPLES = np.array([1.02, 1.1, 1.2, 1.3, 1.45, 1.6, 1.8, 2.0, 2.5, 3.2])

#: ln of a bound of delta, as a function of epsilon.
LogProfile: TypeAlias = Callable[[float], float]

#: Kinds of questions that one line of the profile, at any epsilon, decides.
TESTS = ("power", "level")

#: A Gaussian pair of a larger effect bounds no test.
_STEEPEST = 1e6

_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)

#: The maximum number of times that a level is raised until it is certainly large enough.
_TRIES = 60

#: Neighbors of the minimum are searched from ``_NEAR`` to ``_FAR`` times the scale.
_NEAR, _FAR = 1e-8, 64.0

#: ln of the largest 1 - power that a power in float64 does not show, and an epsilon whose e^-epsilon is 0 there.
_INVISIBLE, _UNDERFLOW = math.log(EPS), 746.0

#: A neighbor this far away, or this number of times as high in logarithms, bounds nothing.
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Question:
    """The unknown: epsilon at a delta, delta at an epsilon, the power of the best test at a level, or its level.

    ``value`` is the given number; ln of a delta, level or power. A width is relative to the unknown, or to ``least`` if
    that is larger.
    """

    kind: Literal["epsilon", "delta", "power", "level"]
    value: float
    least: float = sys.float_info.min

    @property
    def trivial(self) -> Interval:
        if self.kind == "power":
            return Interval(math.exp(self.value) * (1.0 - 4.0 * EPS), 1.0)
        if self.kind == "level":
            return Interval(0.0, math.exp(self.value) * (1.0 + 4.0 * EPS))
        return Interval(0.0, math.inf if self.kind == "epsilon" else 1.0)

    @property
    def deciding_epsilons(self) -> tuple[float, float]:
        """The first and the last epsilon whose line may decide a test.

        As delta >= 1 - e^epsilon, the line of a power is above 1 - e^epsilon and above level e^epsilon, and the line of
        a level is below (power - 1 + e^epsilon) e^-epsilon and below power e^-epsilon.
        """
        if self.kind == "power":
            return min(_INVISIBLE, -self.value), -self.value
        return log_or_minus_infinity(-math.expm1(self.value)), _UNDERFLOW


def bound_test(
    question: Question, low: LogProfile, high: LogProfile, start: float, scale: float
) -> tuple[Interval, float]:
    """The answer about a test, and the epsilon whose line decides it, near ``start`` on a ``scale`` of epsilons."""
    bound = bound_power if question.kind == "power" else bound_level
    return bound(question.value, low, high, start, scale)


def bound_power(
    log_level: float, low: LogProfile, high: LogProfile, start: float, scale: float
) -> tuple[Interval, float]:
    """The largest power at level e^``log_level``; its lower end is 0 if the bounds do not enclose the minimum."""
    above, best = largest_power(log_level, high, start, scale)
    return Interval(min(_lowest_line(log_level, low, high, best, scale), above), above), best


def largest_power(log_level: float, high: LogProfile, start: float, scale: float) -> tuple[float, float]:
    """An upper bound of the power at level e^``log_level``, and the epsilon of the line that gives it."""
    limits = Question("power", log_level).deciding_epsilons
    best = _minimize(lambda epsilon: _line(high, log_level, epsilon), start, scale, limits)
    top = _line(high, log_level, best)
    return min(1.0, math.exp(min(top, 0.0)) * (1.0 + _rounding(top))), best


def log_level_at(log_power: float, epsilon: float, bound: LogProfile) -> float:
    """ln((power - delta(epsilon)) e^-epsilon), a level that the ``power`` needs if ``bound`` is an upper bound."""
    gap = -math.expm1(min(0.0, bound(epsilon) - log_power))
    return log_power + math.log(gap) - epsilon if gap > 0.0 else -math.inf


def smallest_level(log_power: float, high: LogProfile, start: float, scale: float) -> tuple[float, float]:
    """A lower bound of the level of a test of power e^``log_power``, and the epsilon of the line that gives it."""
    limits = Question("level", log_power).deciding_epsilons
    best = _minimize(lambda epsilon: -log_level_at(log_power, epsilon, high), start, scale, limits)
    below = log_level_at(log_power, best, high)
    slack = _rounding(below) + 8.0 * EPS / max(-math.expm1(min(0.0, high(best) - log_power)), EPS)
    return math.exp(min(below, 0.0)) * max(0.0, 1.0 - slack) if below > -math.inf else 0.0, best


def bound_level(
    log_power: float, low: LogProfile, high: LogProfile, start: float, scale: float
) -> tuple[Interval, float]:
    """The level at which the largest power is e^``log_power`` < 1: the maximum of (power - delta(e)) e^-e."""
    power = math.exp(log_power)
    lower, best = smallest_level(log_power, high, start, scale)
    below, guess = log_level_at(log_power, best, high), log_level_at(log_power, best, low)
    if guess == -math.inf:
        # a delta of at least the power up to ``best`` leaves only lines beyond it, which are below power e^-epsilon
        is_over = low(best) >= log_power + _rounding(log_power)
        above = log_power + _rounding(log_power) - (max(best, 0.0) if is_over else 0.0)
        return Interval(0.0, min(1.0, math.exp(above) * (1.0 + _rounding(above)) + math.ulp(0.0))), best
    step = 1.5 * (guess - below) + _rounding(guess) if below > -math.inf else 1.0
    base = below if below > -math.inf else guess - 1.0
    above = log_power
    for _ in range(_TRIES):
        if base + step >= log_power:
            break
        if _lowest_line(base + step, low, high, best, scale) >= power * (1.0 + 4.0 * EPS):
            above = base + step
            break
        step *= 1.7
    upper = min(1.0, math.exp(above) * (1.0 + _rounding(above)) + math.ulp(0.0))
    return Interval(min(lower, upper), upper), best


def _line(bound: LogProfile, log_level: float, epsilon: float) -> float:
    """ln F(e^epsilon) for a bound of delta; at negative epsilon delta is at least 1 - e^epsilon."""
    trivial = math.log(-math.expm1(epsilon)) if epsilon < 0.0 else -math.inf
    first, second = max(bound(epsilon), trivial), epsilon + log_level
    larger, smaller = max(first, second), min(first, second)
    return larger if smaller == -math.inf else larger + math.log1p(math.exp(smaller - larger))


def _lowest_line(log_level: float, low: LogProfile, high: LogProfile, centre: float, scale: float) -> float:
    """A lower bound of F everywhere, from its values around ``centre``; 0 if none is found."""
    top = _line(high, log_level, centre)
    sides = []
    for sign in (-1.0, 1.0):  # the distance at which F has certainly risen to ``top``
        step = _NEAR * scale
        while _line(low, log_level, centre + sign * step) < top + _rounding(top):
            step *= 1.6
            if step > _FAR * scale:
                return 0.0
        sides.append(step)
    left, right = sides
    far_right, far_left = (_line(high, log_level, centre + step) - top for step in (right, -left))
    if max(right, far_right, far_left) > _LARGEST_EXPONENT:
        return 0.0
    base, slack = math.exp(_line(low, log_level, centre) - top), 2.0 * _rounding(top)
    before, after = -math.expm1(-left), math.expm1(right)
    drops = (
        before / after * (math.exp(far_right) - base + slack),
        after / before * (math.exp(far_left) - base + slack),
    )
    return max(0.0, math.exp(top) * (base - slack - max(drops)))


def _minimize(function: LogProfile, start: float, scale: float, limits: tuple[float, float]) -> float:
    """A minimum, between ``limits``, of a function that falls and then rises: growing steps, then the golden section.

    Rounding may make the function constant to the left of its fall: of equal values, the right one counts.
    """
    first, last = limits
    middle = min(max(start, first), last)
    scale = min(scale, last - first)
    step = 0.25 * scale
    low, high = max(middle - step, first), min(middle + step, last)
    if function(high) <= function(middle):
        while high < last and function(high) <= function(middle):
            low, middle, step = middle, high, 2.0 * step
            high = min(high + step, last)
    else:
        while low > first and function(low) < function(middle):
            high, middle, step = middle, low, 2.0 * step
            low = max(low - step, first)
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [function(x) for x in inner]
    while high - low > 1e-10 * scale + 4.0 * EPS * abs(high):
        if values[0] < values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _GOLDEN * (high - low)
            values[0] = function(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _GOLDEN * (high - low)
            values[1] = function(inner[1])
    return inner[0] if values[0] < values[1] else inner[1]


def _rounding(log: float) -> float:
    return EPS * (16.0 + 4.0 * abs(log))


def gaussian_answer(question: Question, mu: float) -> Interval:
    log = question.value
    if mu == 0.0 and question.kind in TESTS:
        return Interval(math.exp(log) * (1.0 - 4.0 * EPS), min(1.0, math.exp(log) * (1.0 + 4.0 * EPS)))
    if mu == 0.0:
        value = 0.0 if question.kind == "epsilon" else max(0.0, -math.expm1(min(question.value, 0.0)))
        return Interval(value, value)
    if question.kind not in TESTS:
        exact = gaussian.epsilon_interval if question.kind == "epsilon" else gaussian.delta_interval
        return exact(question.value, mu)
    # a test through the profile and its rounding error: the threshold z of the best one, at the epsilon mu (z - mu / 2)
    threshold = -float(ndtri_exp(log)) + (0.0 if question.kind == "power" else mu)

    def bound(epsilon: float, sign: float) -> float:
        value, error = float(gaussian.log_delta(epsilon, mu)), 2.0 * gaussian.relative_error(epsilon, mu)
        return min(0.0, value + sign * error)

    low, high = functools.partial(bound, sign=-1.0), functools.partial(bound, sign=1.0)
    interval, _ = bound_test(question, low, high, mu * (threshold - 0.5 * mu), min(mu, 1.0))
    return interval.intersect(question.trivial)


def one_step_answer(pair: Pair, sides: Sequence[Direction], question: Question) -> Interval | None:
    """The answer for a single step, the worse of two directions; None if the pair has no exact profile."""
    if pair.log_delta_bounds(0.0, sides[0]) is None:
        return None

    @functools.cache
    def bounds(epsilon: float) -> tuple[float, float]:
        both = [pair.log_delta_bounds(epsilon, side) or (-math.inf, 0.0) for side in sides]
        return max(low for low, _ in both), max(high for _, high in both)

    if question.kind == "delta":
        low, high = bounds(question.value)
        return Interval(math.exp(low), min(1.0, math.exp(high) + 5e-324))
    if question.kind in TESTS:
        interval, _ = bound_test(question, lambda e: bounds(e)[0], lambda e: bounds(e)[1], 0.0, 1.0)
        return interval.intersect(question.trivial)

    rounding = 4.0 * EPS * abs(question.value)
    lower = last_above(lambda epsilon: bounds(epsilon)[0], question.value + rounding, 2.0 * EPS)
    return Interval(lower, first_below(lambda epsilon: bounds(epsilon)[1], question.value - rounding, 2.0 * EPS))


def is_smaller(question: Question, enough: float, phases: Sequence[tuple[Pair, int]], direction: Direction) -> bool:
    """Whether moments show that an epsilon, or a delta, is at most ``enough``: Theorem 60 of ``proofs/grids.md``."""
    if question.kind in TESTS or not 0.0 < enough < math.inf:
        return False
    epsilon, log_delta = question.value, math.log(enough)
    if question.kind == "epsilon":
        epsilon, log_delta = enough, question.value
    if epsilon <= 0.0 or log_delta >= 0.0:
        return False
    tilts = -log_delta / epsilon * _MULTIPLES  # ln M is not negative, so smaller tilts show nothing
    total = tilts * np.log(tilts) - (1.0 + tilts) * np.log1p(tilts) - tilts * epsilon
    sizes = 1.0 + tilts * (epsilon + 4.0 + np.abs(np.log(tilts)))
    for pair, steps in phases:
        logs = pair.log_moments(tilts, direction)
        if logs is None:
            return False
        total += steps * logs
    return bool(
        np.any(total + (16.0 + len(phases)) * EPS * (sizes + np.abs(total)) <= log_delta - 4.0 * EPS * abs(log_delta))
    )


def last_above(bound: LogProfile, log_delta: float, relative: float, limit: float = math.inf) -> float:
    """The last epsilon, up to about ``limit``, at which a decreasing ``bound`` exceeds ``log_delta``; else 0."""
    if bound(0.0) <= log_delta:
        return 0.0
    low, high = 0.0, 1.0
    while bound(high) > log_delta:
        low, high = high, 2.0 * high
        if high == math.inf:  # outcomes that the second distribution never produces
            return math.inf
        if low >= limit:
            return low
    return crossing(lambda epsilon: bound(epsilon) - log_delta, low, high, within=relative * high)[0]


def first_below(bound: LogProfile, log_delta: float, relative: float, limit: float = math.inf) -> float:
    """The first epsilon at which a decreasing ``bound`` is at most ``log_delta``; infinite if it is above ``limit``."""
    if bound(0.0) <= log_delta:
        return 0.0
    low, high = 0.0, 1.0
    while bound(high) > log_delta:
        low, high = high, 2.0 * high
        if low >= limit or high == math.inf:
            return math.inf
    return crossing(lambda epsilon: log_delta - bound(epsilon), high, low, within=relative * high)[0]


def bound_without_grid(question: Question, phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction]) -> Interval:
    """An interval for any composition: the closed form of Gaussian pairs that dominate, and the largest loss."""
    squares = []
    for pair, steps in phases:
        squares.append(steps * pair.dominating_effect * pair.dominating_effect)
    mu = math.sqrt(math.fsum(squares))
    lower, upper = 0.0, question.trivial.upper
    if mu < _STEEPEST or (math.isfinite(mu) and question.kind not in TESTS):
        dominating = gaussian_answer(question, mu)
        if question.kind == "level":  # a test needs no lower level than for the dominating pair
            lower = dominating.lower
        else:
            upper = dominating.upper
    interval = Interval(lower, upper).by(DOMINATED)
    if question.kind == "epsilon":
        highest = 0.0
        for side in sides:
            largest, infinite = loss_extremes(phases, side)
            highest = math.inf if infinite.upper > 0.0 else max(highest, largest)
        interval = interval.intersect(Interval(0.0, highest).by(LARGEST)) if highest < math.inf else interval
    return interval


def loss_extremes(phases: Sequence[tuple[Pair, int]], direction: Direction) -> tuple[float, Interval]:
    finite, infinite = [], []
    for pair, steps in phases:
        finite.append(pair.largest_loss(direction) * steps)
        infinite.append((pair.infinite_mass(direction), steps))
    chance = chance_of_any(infinite)
    largest = math.fsum(finite) * (1.0 + 1e-15)
    return largest, Interval(chance * (1.0 - 1e-12), min(1.0, chance * (1.0 + 1e-12)))


#: ln of the tilts searched.
_TILTS = (math.log(1e-9), math.log(1e9))

#: Halvings of that range before the search follows the slope, and the distance of a close ln of a tilt.
_HALVINGS, _CLOSE = 6, 0.1

#: Tilts per table from which several saddle points are interpolated, and the number of tables.
_LADDER, _LADDERS = 40, 2

#: Relative precision of a tilt: every tilt gives valid bounds, and close to the best as good ones.
_PRECISION = 1e-4


@dataclass(frozen=True)
class SaddlePoint:
    """A point of the privacy profile: ``tilt`` is -d ln delta / d epsilon, ``spread`` the std of the tilted loss."""

    tilt: float
    epsilon: float
    log_delta: float
    spread: float


class Cumulants:
    """K and its derivatives for a composition of ``phases``, from tables of losses and log masses.

    Each step omits outcomes: over all steps, a share e^``log_share`` of e^``log_delta``.

    Attributes:
        parts: the steps without these outcomes, and their numbers.
    """

    def __init__(
        self, phases: Sequence[tuple[Pair, int]], direction: Direction, log_delta: float, log_share: float
    ) -> None:
        self._steps = np.array([steps for _, steps in phases], dtype=np.float64)
        log_far = log_share - math.log(self._steps.sum())
        log_edge = log_far + min(log_delta, 0.0)
        self.parts = [(pair.truncate(direction, log_edge, log_far), steps) for pair, steps in phases]
        self._known: dict[float, SaddlePoint] = {}

    @functools.cached_property
    def _table(self) -> tuple[Floats, Floats, Index, Index]:
        """Losses and log masses of all steps, and the first row and the number of rows of each."""
        tables = [part.table() for part, _ in self.parts]
        losses, logs = np.concatenate(tables, axis=1)
        sizes = np.array([len(column) for column, _ in tables])
        return losses, logs, np.cumsum(sizes) - sizes, sizes

    @property
    def largest_loss(self) -> float:
        """The largest absolute loss of a step."""
        return float(np.abs(self._table[0]).max())

    def at(self, tilt: float) -> SaddlePoint:
        """The saddle point of a tilt."""
        if tilt in self._known:  # searches for several answers begin with the same tilts
            return self._known[tilt]
        losses, logs, starts, sizes = self._table
        weights = logs + tilt * losses
        tops = np.maximum.reduceat(weights, starts)
        weights -= np.repeat(tops, sizes)
        np.exp(weights, out=weights)
        masses = np.add.reduceat(weights, starts)
        means = np.add.reduceat(weights * losses, starts) / masses
        weights *= np.square(losses - np.repeat(means, sizes))
        value, mean = float((tops + np.log(masses)) @ self._steps), float(means @ self._steps)
        variance = float((np.add.reduceat(weights, starts) / masses) @ self._steps)
        epsilon = mean - 1.0 / tilt - 1.0 / (1.0 + tilt)
        around = 2.0 * math.pi * (variance + tilt**-2 + (1.0 + tilt) ** -2)
        log_delta = value - tilt * epsilon - math.log(tilt) - math.log1p(tilt) - 0.5 * math.log(around)
        self._known[tilt] = SaddlePoint(tilt, epsilon, log_delta, math.sqrt(variance))
        return self._known[tilt]

    def find(
        self,
        *,
        epsilon: float | None = None,
        log_delta: float | None = None,
        log_level: float | None = None,
        log_power: float | None = None,
        initial_tilt: float | None = None,
    ) -> SaddlePoint:
        """The saddle point of an epsilon, a delta (at epsilon >= 0), or of a test that its line decides.

        The line is delta plus level times e^epsilon; the level is -d delta / d epsilon over e^epsilon, the power
        delta (1 + tilt). ``initial_tilt``: one that may be close.
        """

        def excess(log_tilt: float) -> float:
            """Rises with the tilt; 0 at the saddle point."""
            point = self.at(math.exp(log_tilt))
            if epsilon is not None:
                return point.epsilon - epsilon
            if log_delta is not None:
                return log_delta - point.log_delta
            if log_level is not None:
                return log_level - (math.log(point.tilt) + point.log_delta - point.epsilon)
            assert log_power is not None
            return log_power - point.log_delta - math.log1p(point.tilt)

        if initial_tilt is not None and not math.exp(_TILTS[0]) <= initial_tilt <= math.exp(_TILTS[1]):
            initial_tilt = None
        low, high = (
            (math.log(initial_tilt) - _CLOSE, math.log(initial_tilt) + _CLOSE) if initial_tilt is not None else _TILTS
        )
        if initial_tilt is not None and not excess(low) < 0.0 <= excess(high):
            initial_tilt, (low, high) = None, _TILTS
        for _ in range(_HALVINGS if initial_tilt is None else 0):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if excess(middle) < 0.0 else (low, middle)
        high, low = crossing(excess, high, low, within=_PRECISION)
        saddle = self.at(math.exp(0.5 * (low + high)))
        if epsilon is not None:
            saddle = replace(
                saddle, epsilon=epsilon, log_delta=saddle.log_delta + saddle.tilt * (saddle.epsilon - epsilon)
            )
        return saddle if log_delta is None or saddle.epsilon > 0.0 else self.find(epsilon=0.0)

    def for_deltas(self, log_deltas: Sequence[float]) -> list[SaddlePoint]:
        """``find`` for several deltas by interpolation, whose tilts are within a few percent."""
        targets = np.array(log_deltas, dtype=np.float64)
        tilts = np.exp(np.linspace(*_TILTS, _LADDER))
        for _ in range(_LADDERS):
            values = np.array([self.at(tilt).log_delta for tilt in tilts.tolist()])
            over, under = np.flatnonzero(values > targets.max()), np.flatnonzero(values < targets.min())
            first = over[-1] if len(over) else 0
            last = under[0] if len(under) and under[0] > first else len(tilts) - 1
            ladder = tilts
            tilts = np.geomspace(tilts[first], tilts[last], _LADDER)
        order = np.argsort(values)
        chosen = np.exp(np.interp(targets, values[order], np.log(ladder)[order]))
        points = map(self.at, chosen.tolist())
        return [point if point.epsilon > 0.0 else self.find(epsilon=0.0) for point in points]


#: ``Cumulants`` of a tuple of phases: a question needs them before its first grid and for it.
estimates_of = functools.lru_cache(maxsize=4)(Cumulants)
