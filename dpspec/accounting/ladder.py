"""Grids chosen by the error law, coarse to fine, until the intervals are as narrow as asked.

Both discretisations together are wrong by about T d^2 (1 + s) / 3 in epsilon, s = -d ln delta / d epsilon. Stages ask
for widths of 1e-2, 1e-3, ... in turn, whatever the width requested, and every stage's interval is cut with those
before: each is true, so their intersection is, and asking for a finer width can only give an interval inside the
coarser one. A stage that would need a longer grid than allowed uses the longest one and is the last: the interval
stays wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpspec.accounting.checks import EPS, Direction
from dpspec.accounting.compose import Composed
from dpspec.accounting.discretise import optimistic, pessimistic
from dpspec.accounting.interval import Interval
from dpspec.accounting.jumps import Profile, Split, Worse, compose_apart
from dpspec.accounting.pair import Pair, Part, TooLongError
from dpspec.accounting.questions import Open, parts
from dpspec.accounting.saddle import Cumulants, Saddle

#: The most cells of one step, and the most nodes of a transform: a few hundred megabytes.
CELLS, NODES = 1 << 19, 6 << 20

#: d^2 over the error in epsilon, times T (1 + s).
_LAW = 3.0

#: The first relative width that a stage asks for, and the finest.
_COARSEST, _FINEST = 0.8e-2, 1e-9

#: So many stages that narrow nothing are the last.
_IDLE = 2

#: No grid is wider: e^spacing must be a double.
_WIDEST = 300.0

#: A delta is looked for down to the least double.
_DEEPEST = -760.0

#: A tilt chosen for a place so many reaches away is chosen anew.
_OFF = 0.5

#: An epsilon known no better than this share of the reach is looked for with another tilt.
_POOR = 0.1

#: How many times the reach of a composition its neighbourhood is searched for answers, and in how many points.
_SCAN, _POINTS = 8.0, 33

#: Share of delta that the cut tails may hold at first estimate.
_FIRST_SHARE = 1e-6


class Ladder:
    """Questions about one composition that share a tilt, and the stages that narrow their intervals.

    Of several directions, questions are about the worst of their profiles at each epsilon.
    """

    def __init__(self, phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], items: Sequence[Open]) -> None:
        self._phases, self._sides, self._items = phases, sides, items
        self._steps = sum(steps for _, steps in phases)
        self._cumulants = [Cumulants.of(kept) for kept in self._parts(_FIRST_SHARE)]
        self._centre(0.5 * (min(item.at for item in items) + max(item.at for item in items)))

    def climb(self, width: float) -> None:
        """Refine until every interval is within ``width``, the longest grid has been used, or nothing helps."""
        stage, last = _COARSEST, False
        while not last and any(
            item.question.epsilon is not None and item.answer.lower == 0.0 and item.log_delta > _DEEPEST
            for item in self._items
        ):
            last = self._stage(stage)
        idle = 0
        while not last and stage > _FINEST and idle < _IDLE:
            before = [item.answer.width for item in self._items]
            last = self._stage(stage) or all(item.done(width) for item in self._items)
            narrower = any(item.answer.width < 0.9 * was for item, was in zip(self._items, before, strict=True))
            stage, idle = 0.1 * stage, 0 if narrower else idle + 1

    @property
    def _least(self) -> float:
        """ln of the smallest delta, as far as is known."""
        return min(item.log_delta for item in self._items)

    @property
    def _reach(self) -> float:
        """How far from the saddle's epsilon the composition keeps its precision."""
        return self._saddle.spread + 1.0 / self._saddle.tilt

    def _centre(self, epsilon: float) -> None:
        self._saddle = worst([cumulants.for_epsilon(epsilon) for cumulants in self._cumulants])

    def _parts(self, share: float) -> list[list[tuple[Part, int]]]:
        """For each direction, all of the steps but a share of the least delta."""
        return [parts(self._phases, side, self._least, math.log(share)) for side in self._sides]

    def _stage(self, width: float) -> bool:
        """One grid; returns whether it is the longest allowed."""
        share = min(1e-2 * width * item.saddle.tilt * item.tolerance(1.0) for item in self._items)
        kept = self._parts(min(max(share, 1e-14), 1e-3))
        # The tail that is kept decides the best tilt: it grows heavier as less of it is cut.
        self._cumulants = [Cumulants.of(side) for side in kept]
        self._centre(self._saddle.epsilon)
        wanted, limited = min(0.2 * _WIDEST, *(self._spacing(item, width) for item in self._items)), False
        while wanted < _WIDEST:
            spacing = _fitting([part for side in kept for part in side], wanted)
            try:
                self._grid(kept, spacing)
            except TooLongError as error:
                wanted, limited = 1.02 * max(error.factor * spacing, wanted), True
                continue
            return limited
        return True  # losses in the millions per step: what is known without a grid has to do

    def _spacing(self, item: Open, width: float) -> float:
        """The grid that leaves an error of about ``width``: by the law, or by the spacing itself where that is less."""
        error = item.tolerance(width)
        law = math.sqrt(_LAW * error / (self._steps * (1.0 + item.saddle.tilt)))
        return max(law, error / (3.0 * self._steps))

    def _grid(self, kept: Sequence[Sequence[tuple[Part, int]]], spacing: float) -> None:
        tilts = sorted({self._saddle.tilt, *(item.saddle.tilt for item in self._items)})
        # One step may decide the answer alone: no cell may be wider than what a single step's error allows.
        widest = 0.5 * math.sqrt(self._steps)
        cells = [[(part.cells(spacing, tilts, widest, CELLS), steps) for part, steps in side] for side in kept]
        upper = [[(pessimistic(pair[0]), steps) for pair, steps in side] for side in cells]
        lower = [[(optimistic(pair[1]), steps) for pair, steps in side] for side in cells]
        for _ in range(5):
            # A steeper tilt than the grid resolves would pick out its last nodes.
            tilt, centre = min(self._saddle.tilt, 1.0 / spacing), self._saddle.epsilon
            reach = max(self._reach, 8.0 * spacing)
            floor = centre - 1.1 * _SCAN * reach
            above, below = (
                _worse([compose_apart(side, tilt, centre, floor, NODES, self._least) for side in sides])
                for sides in (upper, lower)
            )
            points = centre + reach * np.linspace(-_SCAN, _SCAN, _POINTS)
            grid = [0.0, *(float(point) for point in points if point > 0.0)]
            found = [_read(item, above, below, grid, reach) for item in self._items]
            for item, interval in zip(self._items, found, strict=True):
                item.answer = item.answer.intersect(interval)
                item.locate(above)
            if not self._recentre(found):
                return

    def _recentre(self, found: Sequence[Interval]) -> bool:
        """Move the tilt to where the answers turned out to be, if it was chosen badly; returns whether it was."""
        ends = [place for item in self._items for place in item.places()]
        if not ends:
            return False
        middle = 0.5 * (min(ends) + max(ends))
        lost = any(
            interval.lower == 0.0 < interval.upper or interval.width > _POOR * self._reach
            for item, interval in zip(self._items, found, strict=True)
            if item.question.log_delta is not None or interval.lower == 0.0
        )
        if abs(middle - self._saddle.epsilon) <= (0.01 if lost else _OFF) * self._reach:
            return False
        self._centre(middle)
        return True


def worst(saddles: Sequence[Saddle]) -> Saddle:
    """The saddle point of the largest delta."""
    return max(saddles, key=lambda saddle: saddle.log_delta)


def _worse(composed: Sequence[Composed | Split]) -> Profile:
    return composed[0] if len(composed) == 1 else Worse(tuple(composed))


def _fitting(kept: Sequence[tuple[Part, int]], spacing: float) -> float:
    """A spacing, rather less than asked, of which the period of the phase with most steps is a multiple."""
    periods = [(steps, part.period) for part, steps in kept if part.period]
    if not periods:
        return spacing
    period = max(periods)[1] or spacing
    return period / math.ceil(period / spacing)


def _read(item: Open, above: Profile, below: Profile, grid: Sequence[float], reach: float) -> Interval:
    """The interval that these two compositions give; epsilons are looked for between the points of ``grid``."""
    if item.question.testing:
        found, at = item.question.read(below.log_lower, above.log_upper, item.at, reach)
        item.saddle = replace(item.saddle, epsilon=at)
        return found
    if item.question.log_delta is None:
        low = math.exp(min(0.0, below.log_lower(item.at))) * (1.0 - 4.0 * EPS)
        high = math.exp(above.log_upper(item.at)) * (1.0 + 4.0 * EPS) + 5e-324
        return Interval(low, min(1.0, high))
    rounding = 4.0 * EPS * abs(item.question.log_delta)
    low = _largest_epsilon(below, item.question.log_delta + rounding, grid)
    return Interval(low, _least_epsilon(above, item.question.log_delta - rounding, grid))


def _least_epsilon(composed: Profile, log_delta: float, grid: Sequence[float]) -> float:
    """The least epsilon, up to rounding, whose upper bound of delta is within the target; infinite if none is."""
    passed = next((i for i, epsilon in enumerate(grid) if composed.log_upper(epsilon) <= log_delta), None)
    if passed is None:
        return math.inf
    low, high = grid[max(0, passed - 1)], grid[passed]
    for _ in range(60):
        middle = 0.5 * (low + high)
        if composed.log_upper(middle) <= log_delta:
            high = middle
        else:
            low = middle
    return high


def _largest_epsilon(composed: Profile, log_delta: float, grid: Sequence[float]) -> float:
    """The largest epsilon, up to rounding, whose lower bound of delta reaches the target; 0 if none does."""
    passed = [i for i, epsilon in enumerate(grid) if composed.log_lower(epsilon) >= log_delta]
    if not passed:
        return 0.0
    low, high = grid[passed[-1]], grid[min(passed[-1] + 1, len(grid) - 1)]
    for _ in range(60):
        middle = 0.5 * (low + high)
        if composed.log_lower(middle) >= log_delta:
            low = middle
        else:
            high = middle
    return low
