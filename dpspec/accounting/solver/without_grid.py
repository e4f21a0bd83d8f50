"""Answers that need no grid: plain Gaussian steps, one step of a known profile, and what holds of any composition."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtri_exp

from dpspec.accounting import gaussian
from dpspec.accounting.numerics.floats import EPS, Direction
from dpspec.accounting.numerics.interval import Interval
from dpspec.accounting.numerics.search import crossing
from dpspec.accounting.pair import Pair
from dpspec.accounting.solver.question import Question, infinite_mass, largest_loss

#: How answers say that they come from the formula of a plain Gaussian pair: that of the steps, or one that dominates.
CLOSED, DOMINATED = "closed form", "closed form of a dominating pair"

#: How an epsilon says that no loss is larger.
LARGEST = "largest loss"

#: How answers say that they come from the exact profile of the only step that there is.
ONE_STEP = "exact profile of one step"

#: Effects (sensitivity over sigma) above this are not discretised: losses would leave the range of any grid.
_STEEPEST = 1e6

#: A function from epsilon to lower and upper bound of ln delta.
_Bounds = Callable[[float], tuple[float, float]]


def answer_in_closed_form(question: Question, phases: Sequence[tuple[Pair, int]]) -> Interval | None:
    """The answer where every step is a plain Gaussian one or leaks nothing; None elsewhere."""
    effects = [(pair.effect, steps) for pair, steps in phases]
    squares = [steps * effect * effect for effect, steps in effects if effect is not None]
    return _gaussian(question, math.sqrt(math.fsum(squares))).by(CLOSED) if len(squares) == len(effects) else None


def is_beyond_grids(phases: Sequence[tuple[Pair, int]]) -> bool:
    """Whether a Gaussian step's losses are beyond any grid, so that ``bound_without_grid`` has to do."""
    return any(_STEEPEST < pair.dominating_effect < math.inf for pair, _ in phases)


def bound_without_grid(question: Question, phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction]) -> Interval:
    """What holds anyway: by the closed form of Gaussian pairs that dominate, and by the largest loss."""
    mu = math.sqrt(math.fsum(steps * pair.dominating_effect * pair.dominating_effect for pair, steps in phases))
    dominating = _gaussian(question, mu) if math.isfinite(mu) else None
    if question.log_power is not None:  # a test needs no lower level than of the dominating pair
        return Interval(0.0 if dominating is None else dominating.lower, question.trivial.upper).by(DOMINATED)
    found = Interval(0.0, math.inf if question.log_delta is not None else 1.0).by(DOMINATED)
    if dominating is not None:
        found = Interval(0.0, dominating.upper).by(DOMINATED)
    if question.log_delta is not None and all(infinite_mass(phases, side).upper == 0.0 for side in sides):
        largest = max(largest_loss(phases, side) for side in sides)
        found = found.intersect(Interval(0.0, largest).by(LARGEST))
    return found


def cut_without_grid(
    found: Sequence[Interval],
    questions: Sequence[Question],
    phases: Sequence[tuple[Pair, int]],
    sides: Sequence[Direction],
) -> list[Interval]:
    """What was ``found``, cut by ``bound_without_grid`` where that is below: mostly it is not, as one value tells."""
    surely = _are_below_without_grid(found, questions, phases, sides)
    return [
        interval if below else _cut(interval, bound_without_grid(question, phases, sides))
        for interval, question, below in zip(found, questions, surely, strict=True)
    ]


def _cut(found: Interval, loose: Interval) -> Interval:
    if found.upper <= loose.upper:
        return found
    return Interval(min(found.lower, loose.upper), loose.upper, loose.method, found.lower_method)


def _are_below_without_grid(
    found: Sequence[Interval],
    questions: Sequence[Question],
    phases: Sequence[tuple[Pair, int]],
    sides: Sequence[Direction],
) -> list[bool]:
    """Return True per upper end of epsilon that is certainly below all bounds without a grid, False if unclear."""
    mu = math.sqrt(math.fsum(steps * pair.dominating_effect * pair.dominating_effect for pair, steps in phases))
    if not 0.0 < mu < math.inf:
        return [False] * len(questions)
    largest = max(largest_loss(phases, side) for side in sides)
    told = [
        (question.log_delta, interval.upper)
        if question.log_delta is not None and interval.upper <= largest and interval.upper < math.inf
        else (0.0, 0.0)
        for question, interval in zip(questions, found, strict=True)
    ]
    logs, epsilons = np.array(told, dtype=np.float64).T
    # More than both roundings above the delta asked: the closed form's bisection ends beyond.
    room = np.array([4.0 * gaussian.relative_error(float(epsilon), mu) for epsilon in epsilons])
    room += 16.0 * EPS * np.abs(logs)
    below = (logs < 0.0) & (room < 1.0)
    below[below] = gaussian.log_delta(epsilons[below], mu) > (logs + room)[below]
    return [bool(one) for one in below]


def _gaussian(question: Question, mu: float) -> Interval:
    """One Gaussian pair of effect ``mu``; 0 for no mechanism at all."""
    if question.log_delta is not None:
        return gaussian.epsilon_interval(question.log_delta, mu) if mu > 0.0 else Interval(0.0, 0.0)
    if question.testing:
        return _gaussian_test(question, mu)
    assert question.epsilon is not None
    if mu > 0.0:
        return gaussian.delta_interval(question.epsilon, mu)
    value = max(0.0, -math.expm1(min(question.epsilon, 0.0)))
    return Interval(value, value)


def _gaussian_test(question: Question, mu: float) -> Interval:
    """Of tests of N(0, 1) against N(mu, 1), through the profile and its rounding error."""
    log = question.log_level if question.log_level is not None else question.log_power
    assert log is not None
    if mu == 0.0:
        return Interval(math.exp(log) * (1.0 - 4.0 * EPS), min(1.0, math.exp(log) * (1.0 + 4.0 * EPS)))
    # the threshold z of the best test, at the epsilon mu (z - mu / 2)
    threshold = -float(ndtri_exp(log)) + (0.0 if question.log_level is not None else mu)

    def bounds(epsilon: float) -> tuple[float, float]:
        value, error = float(gaussian.log_delta(epsilon, mu)), 2.0 * gaussian.relative_error(epsilon, mu)
        return value - error, min(0.0, value + error)

    start = mu * (threshold - 0.5 * mu)
    interval, _ = question.bound_test(lambda e: bounds(e)[0], lambda e: bounds(e)[1], start, min(mu, 1.0))
    return interval.intersect(question.trivial)


def answer_one_step(pair: Pair, sides: Sequence[Direction], question: Question) -> Interval | None:
    """What is asked of a single step; None where the pair has no exact profile. Of two directions the worse counts."""
    if pair.log_delta_bounds(0.0, sides[0]) is None:
        return None

    @functools.cache
    def bounds(epsilon: float) -> tuple[float, float]:
        both = [pair.log_delta_bounds(epsilon, side) or (-math.inf, 0.0) for side in sides]
        return max(low for low, _ in both), max(high for _, high in both)

    if question.epsilon is not None:
        low, high = bounds(question.epsilon)
        return Interval(math.exp(low), min(1.0, math.exp(high) + 5e-324))
    if question.testing:
        interval, _ = question.bound_test(lambda e: bounds(e)[0], lambda e: bounds(e)[1], 0.0, 1.0)
        return interval.intersect(question.trivial)
    assert question.log_delta is not None
    rounding = 4.0 * EPS * abs(question.log_delta)
    return Interval(
        _cross(bounds, question.log_delta + rounding, end=0), _cross(bounds, question.log_delta - rounding, end=1)
    )


def _cross(bounds: _Bounds, log_delta: float, end: int) -> float:
    """Where a bound of ln delta falls to ``log_delta``: the last epsilon over it (0), or the first not over it (1)."""
    if bounds(0.0)[end] <= log_delta:
        return 0.0
    low, high = 0.0, 1.0
    while bounds(high)[end] > log_delta:
        low, high = high, 2.0 * high
        if high == math.inf:  # outcomes that the second distribution never produces
            return math.inf
    within = 2.0 * EPS * high
    if end == 0:
        return crossing(lambda epsilon: bounds(epsilon)[0] - log_delta, low, high, within=within)[0]
    return crossing(lambda epsilon: log_delta - bounds(epsilon)[1], high, low, within=within)[0]
