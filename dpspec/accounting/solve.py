"""From a question about a composition to a certified interval: grids chosen by the error law, coarse to fine.

Both discretisations together are wrong by about T d^2 (1 + s) / 3 in epsilon, s = -d ln delta / d epsilon. Stages ask for
widths of 1e-2, 1e-3, ... in turn, whatever the width requested, and every stage's interval is cut with those before:
each is true, so their intersection is, and asking for a finer width can only give an interval inside the coarser one.
A stage that would need a longer grid than allowed uses the longest one and is the last: the interval stays wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpspec.accounting.cells import TooLongError, build
from dpspec.accounting.checks import EPS, Direction
from dpspec.accounting.compose import Composed, compose
from dpspec.accounting.discretise import optimistic, pessimistic
from dpspec.accounting.interval import Interval
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.outputs import Range, cut
from dpspec.accounting.saddle import Cumulants, Saddle

#: The most cells of one step, and the most nodes of a transform: a few hundred megabytes.
CELLS, NODES = 1 << 19, 3 << 20

#: d^2 over the error in epsilon, times T (1 + s).
_LAW = 3.0

#: The finest relative width that a stage asks for.
_FINEST = 1e-9

#: Questions whose epsilons lie within so many tilted standard deviations share one composition.
_SHARED = 4.0

#: How many times the reach of a composition its neighbourhood is searched for answers.
_SCAN = 8.0

#: Below this an epsilon is as good as zero when widths are compared with it.
_TINY = 1e-7


@dataclass(frozen=True)
class Question:
    """Epsilon at a delta, or delta at an epsilon: exactly one is given."""

    log_delta: float | None = None
    epsilon: float | None = None


@dataclass
class _Open:
    """A question with where its answer lies, roughly, and the interval that is known so far."""

    question: Question
    saddle: Saddle
    answer: Interval

    @property
    def at(self) -> float:
        return self.saddle.epsilon

    def locate(self, above: Composed) -> None:
        """Replace the estimate of the answer's place, and of the profile's slope there, by what was found."""
        if self.question.log_delta is None:
            return
        low, high = self.answer.lower, self.answer.upper
        if not 0.0 < low <= high < math.inf:
            return
        middle = 0.5 * (low + high)
        step = max(2.0 * above.spacing, 1e-3 * middle)
        fall = above.log_upper(max(0.0, middle - step)) - above.log_upper(middle + step)
        slope = fall / (min(middle, step) + step)
        if math.isfinite(slope) and slope > 0.0:
            self.saddle = replace(self.saddle, epsilon=middle, tilt=slope)

    def tolerance(self, width: float) -> float:
        """The error in epsilon that ``width`` leaves."""
        if self.question.log_delta is None:
            return width / self.saddle.tilt
        return width * max(self.saddle.epsilon, _TINY)

    def done(self, width: float) -> bool:
        """Whether the interval is as narrow as asked."""
        if self.question.log_delta is None:
            return self.answer.width <= width * self.answer.upper
        return self.answer.width <= width * max(self.answer.upper, _TINY)


def solve(
    phases: Sequence[tuple[Mixture, int]], direction: Direction, questions: Sequence[Question], width: float
) -> list[Interval]:
    """Certified answers for the composition of ``phases`` (pair, steps) in one direction, in the order asked.

    width: the relative width wanted; where the grid limits do not allow it, intervals come out wider.
    """
    opened = [_open(phases, direction, question) for question in questions]
    order = sorted((i for i in range(len(opened)) if opened[i].answer.width > 0.0), key=lambda i: opened[i].at)
    while order:
        first = opened[order[0]]
        reach = first.at + _SHARED * first.saddle.spread
        shared = [i for i in order if opened[i].at <= reach]
        order = order[len(shared) :]
        _Ladder(phases, direction, [opened[i] for i in shared]).climb(width)
    return [item.answer for item in opened]


def _open(phases: Sequence[tuple[Mixture, int]], direction: Direction, question: Question) -> _Open:
    if question.log_delta is not None:
        cumulants = Cumulants.of(_areas(phases, direction, question.log_delta, math.log(1e-6)), direction)
        saddle = cumulants.for_delta(question.log_delta)
        if saddle.epsilon > 0.1 * saddle.spread:
            return _Open(question, saddle, Interval(0.0, math.inf))
        return _near_zero(phases, direction, question, cumulants)
    assert question.epsilon is not None
    epsilon, log_delta = question.epsilon, -30.0
    known = Interval(max(0.0, -math.expm1(min(epsilon, 0.0))), 1.0)
    if direction == "absent-first" and epsilon >= -math.fsum(pair.ratio.log_zero * steps for pair, steps in phases):
        known = Interval(0.0, 0.0)  # no loss is that large
    for _ in range(40):
        saddle = Cumulants.of(_areas(phases, direction, log_delta, math.log(1e-6)), direction).for_epsilon(epsilon)
        if saddle.log_delta >= log_delta:
            break
        log_delta = saddle.log_delta - 5.0
    return _Open(question, saddle, known)


def _near_zero(
    phases: Sequence[tuple[Mixture, int]], direction: Direction, question: Question, cumulants: Cumulants
) -> _Open:
    """A delta so large that epsilon is 0 or little more: decided by delta at 0."""
    assert question.log_delta is not None
    at_zero = solve(phases, direction, [Question(epsilon=0.0)], 1e-3)[0]
    saddle = cumulants.for_epsilon(0.0)
    if math.log(at_zero.upper) <= question.log_delta:
        return _Open(question, saddle, Interval(0.0, 0.0))
    gap = math.log(0.5 * (at_zero.lower + at_zero.upper)) - question.log_delta
    return _Open(question, cumulants.for_epsilon(max(gap / saddle.tilt, _TINY)), Interval(0.0, math.inf))


def _areas(
    phases: Sequence[tuple[Mixture, int]], direction: Direction, log_delta: float, log_share: float
) -> list[tuple[Range, int]]:
    """The outputs of each phase outside which at most a share of delta lies."""
    steps = math.log(sum(count for _, count in phases))
    log_far = log_share - steps
    return [(cut(pair.ratio, direction, log_far + min(log_delta, 0.0), log_far), count) for pair, count in phases]


class _Ladder:
    """Questions that share one tilt, and the stages that narrow their intervals."""

    def __init__(self, phases: Sequence[tuple[Mixture, int]], direction: Direction, items: list[_Open]) -> None:
        self._phases, self._direction, self._items = phases, direction, items
        self._steps = sum(steps for _, steps in phases)
        self._least = min(item.saddle.log_delta for item in items)
        self._cumulants = Cumulants.of(_areas(phases, direction, self._least, math.log(1e-6)), direction)
        self._centre(0.5 * (min(item.at for item in items) + max(item.at for item in items)))

    def climb(self, width: float) -> None:
        """Refine until every interval is within ``width``, or the longest grid has been used."""
        stage = 1e-2
        while stage > _FINEST:
            last = self._stage(0.8 * stage)
            if last or all(item.done(width) for item in self._items):
                return
            stage *= 0.1

    @property
    def _reach(self) -> float:
        """How far from the saddle's epsilon the composition is still precise, in a fraction."""
        return self._saddle.spread + 1.0 / self._saddle.tilt

    def _centre(self, epsilon: float) -> None:
        self._saddle = self._cumulants.for_epsilon(epsilon)

    def _stage(self, width: float) -> bool:
        """One grid; returns whether it is the longest allowed."""
        share = min(1e-2 * width * item.saddle.tilt * item.tolerance(1.0) for item in self._items)
        areas = _areas(self._phases, self._direction, self._least, math.log(min(max(share, 1e-14), 1e-3)))
        # The tail that is kept decides the best tilt: it grows heavier as less of it is cut.
        self._cumulants = Cumulants.of(areas, self._direction)
        self._centre(self._saddle.epsilon)
        spacing = min(
            math.sqrt(_LAW * item.tolerance(width) / (self._steps * (1.0 + item.saddle.tilt))) for item in self._items
        )
        spacing, limited = min(spacing, 50.0), False
        while True:
            try:
                self._grid(areas, spacing)
            except TooLongError as error:
                spacing, limited = 1.02 * error.factor * spacing, True
                continue
            return limited

    def _grid(self, areas: Sequence[tuple[Range, int]], spacing: float) -> None:
        tilts = sorted({self._saddle.tilt, *(item.saddle.tilt for item in self._items)})
        cells = [(build(area, self._direction, spacing, tilts, CELLS), steps) for area, steps in areas]
        upper = [(pessimistic(pair[0]), steps) for pair, steps in cells]
        lower = [(optimistic(pair[1]), steps) for pair, steps in cells]
        for _ in range(5):
            tilt, centre = self._saddle.tilt, self._saddle.epsilon
            floor = centre - 1.1 * _SCAN * self._reach
            above = compose(upper, tilt, centre, floor, NODES)
            below = compose(lower, tilt, centre, floor, NODES)
            found = [self._find(item, above, below) for item in self._items]
            for item, interval in zip(self._items, found, strict=True):
                item.answer = item.answer.intersect(interval)
                item.locate(above)
            if not self._recentre(found):
                return

    def _find(self, item: _Open, above: Composed, below: Composed) -> Interval:
        """The interval that these two compositions give."""
        if item.question.log_delta is None:
            low = min(1.0, math.exp(below.log_lower(item.at)) * (1.0 - 4.0 * EPS))
            high = min(1.0, math.exp(above.log_upper(item.at)) * (1.0 + 4.0 * EPS) + 5e-324)
            return Interval(low, max(low, high))
        points = self._saddle.epsilon + self._reach * np.linspace(-_SCAN, _SCAN, 33)
        grid = [0.0, *(float(point) for point in points if point > 0.0)]
        rounding = 4.0 * EPS * abs(item.question.log_delta)
        return Interval(
            _largest_epsilon(below, item.question.log_delta + rounding, grid),
            _least_epsilon(above, item.question.log_delta - rounding, grid),
        )

    def _recentre(self, found: Sequence[Interval]) -> bool:
        """Move the tilt to where the answers turned out to be, if it was chosen badly; returns whether it was."""
        ends = [x for item in self._items for x in (item.answer.lower, item.answer.upper) if 0.0 < x < math.inf]
        if self._items[0].question.log_delta is None or not ends:
            return False
        middle = 0.5 * (min(ends) + max(ends))
        lost = any(interval.lower == 0.0 < interval.upper or interval.upper == math.inf for interval in found)
        if abs(middle - self._saddle.epsilon) <= (0.01 if lost else 2.0) * self._reach:
            return False
        self._centre(middle)
        return True


def _least_epsilon(composed: Composed, log_delta: float, grid: Sequence[float]) -> float:
    """The least epsilon, up to rounding, whose upper bound of delta is within the target; infinite if none is."""
    passed = next((i for i, epsilon in enumerate(grid) if composed.log_upper(epsilon) <= log_delta), None)
    if passed is None:
        return math.inf
    if passed == 0:
        return grid[0]
    low, high = grid[passed - 1], grid[passed]
    for _ in range(60):
        middle = 0.5 * (low + high)
        if composed.log_upper(middle) <= log_delta:
            high = middle
        else:
            low = middle
    return high


def _largest_epsilon(composed: Composed, log_delta: float, grid: Sequence[float]) -> float:
    """The largest epsilon, up to rounding, whose lower bound of delta reaches the target; 0 if none does."""
    passed = [i for i, epsilon in enumerate(grid) if composed.log_lower(epsilon) >= log_delta]
    if not passed or passed[-1] == len(grid) - 1:
        return grid[passed[-1]] if passed else 0.0
    low, high = grid[passed[-1]], grid[passed[-1] + 1]
    for _ in range(60):
        middle = 0.5 * (low + high)
        if composed.log_lower(middle) >= log_delta:
            low = middle
        else:
            high = middle
    return low
