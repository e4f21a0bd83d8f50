"""One step of a pair whose privacy profile is known exactly: no grid is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dpspec.accounting.checks import EPS, Direction
from dpspec.accounting.interval import Interval
from dpspec.accounting.pair import Pair
from dpspec.accounting.questions import Question

#: A function from epsilon to lower and upper bound of ln delta.
_Bounds = Callable[[float], tuple[float, float]]


def answer(pair: Pair, sides: Sequence[Direction], question: Question) -> Interval | None:
    """What is asked of a single step; None where the pair has no exact profile. Of two directions the worse counts."""
    if pair.log_delta_bounds(0.0, sides[0]) is None:
        return None

    def bounds(epsilon: float) -> tuple[float, float]:
        both = [pair.log_delta_bounds(epsilon, side) or (-math.inf, 0.0) for side in sides]
        return max(low for low, _ in both), max(high for _, high in both)

    if question.epsilon is not None:
        low, high = bounds(question.epsilon)
        return Interval(math.exp(low), min(1.0, math.exp(high) + 5e-324))
    if question.testing:
        found, _ = question.read(lambda e: bounds(e)[0], lambda e: bounds(e)[1], 0.0, 1.0)
        return found.intersect(question.trivial)
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
    while low < (middle := 0.5 * (low + high)) < high and high - low > 2.0 * EPS * high:
        if bounds(middle)[end] > log_delta:
            low = middle
        else:
            high = middle
    return (low, high)[end]
