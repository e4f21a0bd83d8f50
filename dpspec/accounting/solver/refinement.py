"""Grids chosen by the error law, coarse to fine, until the intervals are as narrow as asked.

Both discretisations together are wrong by about T d^2 (1 + s) / 3 in epsilon, s = -d ln delta / d epsilon. Stages ask
for widths of 1e-2, 1e-3, ... in turn (where grids are short, from 1e-3 on, and for 1e-2 after it where that missed),
whatever the width requested, and every stage's interval is cut with those before: each is true, so their intersection
is, and asking for a finer width of the same questions can only give an interval inside the coarser one. A stage that
would need a longer grid than allowed uses the longest one and is the last: the interval stays wider.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpspec.accounting.composition.composition import Composition
from dpspec.accounting.composition.rare_steps import (
    ComposedProfile,
    SplitComposition,
    WorstComposition,
    compose_with_rare_steps,
)
from dpspec.accounting.grid.cells import TooLongError
from dpspec.accounting.grid.discretise import WIDEST
from dpspec.accounting.numerics.floats import EPS, Direction
from dpspec.accounting.numerics.interval import Interval
from dpspec.accounting.numerics.search import crossing
from dpspec.accounting.pair import Pair, TruncatedPair
from dpspec.accounting.solver.question import LogProfile, PendingAnswer, truncate_phases
from dpspec.accounting.solver.saddle import Cumulants, pick_worst

#: The most cells of one step, and the most nodes of a transform: a few hundred megabytes.
CELLS, NODES = 1 << 19, 6 << 20

#: d^2 over the error in epsilon, times T (1 + s).
_LAW = 3.0

#: The first relative width that a stage asks for, and the finest.
_COARSEST, _FINEST = 0.8e-2, 1e-9

#: Where so many tilted deviations take no more than so many nodes, the second stage costs hardly more than the first.
_DEVIATIONS, _SHORT = 16.0, 1 << 16

#: So many stages in a row that narrow nothing are the last; more where it is luck how near a grid's nodes outcomes lie.
_IDLE, _UNLUCKY = 2, 3

#: A delta is looked for down to the least double.
_DEEPEST = -760.0

#: A tilt chosen for a place so many reaches away is chosen anew.
_OFF = 0.5

#: An epsilon known no better than this share of the reach is looked for with another tilt.
_POOR = 0.1

#: An epsilon is read from a composition up to this share of the width that its grid was made for.
_READ = 1e-2

#: A stage missed where an interval is so many times as wide as it was made for.
_MISSED = 1.25

#: How many times the reach of a composition its neighbourhood is searched for answers, and in how many points.
_SCAN, _POINTS = 8.0, 33

#: Share of delta that the cut tails may hold at first estimate.
_FIRST_SHARE = 1e-6


class GridRefinement:
    """Questions about one composition that share a tilt, and the stages that narrow their intervals.

    Of several directions, questions are about the worst of their profiles at each epsilon.
    """

    def __init__(
        self, phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], items: Sequence[PendingAnswer]
    ) -> None:
        self._phases, self._sides, self.items = phases, sides, items
        self._steps = sum(steps for _, steps in phases)
        self._cumulants = [Cumulants.of(side) for side in self._truncated(_FIRST_SHARE)]
        self._centre(0.5 * (min(item.position for item in items) + max(item.position for item in items)))
        self._next: float | None = None
        self._last = False

    def part(self, items: Sequence[PendingAnswer]) -> GridRefinement:
        """Some of the questions, with a tilt of their own: from the next stage on where the last one served them."""
        if len(items) == len(self.items):
            return self
        part = GridRefinement(self._phases, self._sides, items)
        if self._next is not None and all(item.is_within(_MISSED * 10.0 * self._next) for item in items):
            part._next = self._next
        return part

    def begin(self) -> None:
        """The first stage, and a coarse one where that missed: whatever the width requested."""
        stage, looked, centre = self._first_width(), False, self._saddle.epsilon
        while not self._last and any(
            item.question.epsilon is not None
            and item.answer.lower == 0.0
            and item.log_delta > _DEEPEST
            and not item.is_needless
            for item in self.items
        ):
            self._last, looked = self._stage(stage), True
        if not self._last:
            if not (looked and all(item.is_within(stage) for item in self.items)):
                self._last = self._stage(stage)
            if stage < _COARSEST and not all(item.is_within(_MISSED * stage) for item in self.items):
                self._centre(centre)
                self._stage(_COARSEST)  # a short grid: outcomes that missed its nodes may lie on a coarser one's
        self._next = 0.1 * stage

    def refine(self, width: float) -> None:
        """Refine until every interval is within ``width``, the longest grid has been used, or nothing helps."""
        if self._next is None:
            self.begin()
        idle, stage = 0, self._next or _COARSEST
        most = _UNLUCKY if any(part.period for side in self._truncated(_FIRST_SHARE) for part, _ in side) else _IDLE
        while not (self._last or all(item.is_within(width) for item in self.items)):
            if stage <= _FINEST or idle >= most:
                break
            before = [item.answer.width for item in self.items]
            self._last = self._stage(stage)
            narrower = any(item.answer.width < 0.9 * was for item, was in zip(self.items, before, strict=True))
            stage, idle = 0.1 * stage, 0 if narrower else idle + 1
        self._next = stage

    def _first_width(self) -> float:
        """What the first stage asks for: less where the grid is short all the same. The width requested has no say.

        Answers that need only be shown to be no larger than others are mostly so after a coarse one.
        """
        if all(item.enough > -math.inf for item in self.items):
            return _COARSEST
        finer = 0.1 * _COARSEST
        spacing = min(self._spacing(item, finer) for item in self._open)
        return finer if _DEVIATIONS * self._saddle.spread <= _SHORT * spacing else _COARSEST

    @property
    def _least(self) -> float:
        """ln of the smallest delta, as far as is known."""
        return min(item.log_delta for item in self.items)

    @property
    def _reach(self) -> float:
        """How far from the saddle's epsilon the composition keeps its precision."""
        return self._saddle.spread + 1.0 / self._saddle.tilt

    @property
    def _open(self) -> list[PendingAnswer]:
        """Those of which more is wanted; all, where none is."""
        return [item for item in self.items if not item.is_needless] or list(self.items)

    def _centre(self, epsilon: float) -> None:
        self._saddle = pick_worst([cumulants.for_epsilon(epsilon) for cumulants in self._cumulants])

    def _truncated(self, share: float) -> list[list[tuple[TruncatedPair, int]]]:
        """For each direction, all of the steps but a share of the least delta."""
        return [truncate_phases(self._phases, side, self._least, math.log(share)) for side in self._sides]

    def _stage(self, width: float) -> bool:
        """One grid; returns whether it is the longest allowed."""
        share = min(1e-2 * width * item.saddle.tilt * item.tolerance(1.0) for item in self._open)
        truncated = self._truncated(min(max(share, 1e-14), 1e-3))
        # The tail that is kept decides the best tilt: it grows heavier as less of it is cut.
        self._cumulants = [Cumulants.of(side) for side in truncated]
        self._centre(self._saddle.epsilon)
        wanted, limited = min(0.2 * WIDEST, *(self._spacing(item, width) for item in self._open)), False
        fitting = True
        while wanted < WIDEST:
            spacing = _fitting([part for side in truncated for part in side], wanted) if fitting else wanted
            try:
                self._grid(truncated, spacing, _READ * width)
            except TooLongError as error:
                if spacing < 0.5 * wanted:  # a period that no grid can have: its outcomes lie between nodes
                    fitting = False
                    continue
                wanted, limited = 1.02 * max(error.factor * spacing, wanted), True
                continue
            return limited
        return True  # losses in the millions per step: what is known without a grid has to do

    def _spacing(self, item: PendingAnswer, width: float) -> float:
        """The grid that leaves an error of about ``width``: by the law, or by the spacing itself where that is less."""
        error = item.tolerance(width)
        law = math.sqrt(_LAW * error / (self._steps * (1.0 + item.saddle.tilt)))
        return max(law, error / (3.0 * self._steps))

    def _grid(self, truncated: Sequence[Sequence[tuple[TruncatedPair, int]]], spacing: float, within: float) -> None:
        """Cut every interval by what a grid of this ``spacing`` says, epsilons as well as ``within``, relative."""
        tilts = sorted({self._saddle.tilt, *(item.saddle.tilt for item in self.items)})
        # One step may decide the answer alone: no cell may be wider than what a single step's error allows.
        widest = 0.5 * math.sqrt(self._steps)
        atoms = [[(part.atoms(spacing, tilts, widest, CELLS), steps) for part, steps in side] for side in truncated]
        upper, lower = ([[(pair[end], steps) for pair, steps in side] for side in atoms] for end in (0, 1))
        for _ in range(5):
            # A steeper tilt than the grid resolves would pick out its last nodes.
            tilt, centre = min(self._saddle.tilt, 1.0 / spacing), self._saddle.epsilon
            reach = max(self._reach, 8.0 * spacing)
            floor = centre - 1.1 * _SCAN * reach
            above, below = (
                _worse([compose_with_rare_steps(side, tilt, centre, floor, NODES, self._least) for side in sides])
                for sides in (upper, lower)
            )
            points = centre + reach * np.linspace(-_SCAN, _SCAN, _POINTS)
            grid = [0.0, *(float(point) for point in points if point > 0.0)]
            upper_at, lower_at = functools.cache(above.log_upper), functools.cache(below.log_lower)
            intervals = [_read(item, upper_at, lower_at, grid, reach, within) for item in self.items]
            for item, interval in zip(self.items, intervals, strict=True):
                item.answer = item.answer.intersect(interval)
                item.locate(above)
            if not self._recentre(intervals):
                return

    def _recentre(self, intervals: Sequence[Interval]) -> bool:
        """Move the tilt to where the answers turned out to be, if it was chosen badly; returns whether it was."""
        ends = [place for item in self.items if not item.is_needless for place in item.positions()]
        if not ends:
            return False
        middle = 0.5 * (min(ends) + max(ends))
        is_poor = any(
            interval.lower == 0.0 < interval.upper or interval.width > _POOR * self._reach
            for item, interval in zip(self.items, intervals, strict=True)
            if not item.is_needless and (item.question.log_delta is not None or interval.lower == 0.0)
        )
        if abs(middle - self._saddle.epsilon) <= (0.01 if is_poor else _OFF) * self._reach:
            return False
        self._centre(middle)
        return True


def _worse(composed: Sequence[Composition | SplitComposition]) -> ComposedProfile:
    return composed[0] if len(composed) == 1 else WorstComposition(tuple(composed))


def _fitting(phases: Sequence[tuple[TruncatedPair, int]], spacing: float) -> float:
    """A spacing, rather less than asked, of which the period of the phase with most steps is a multiple."""
    periods = [(steps, part.period) for part, steps in phases if part.period]
    if not periods:
        return spacing
    period = max(periods)[1] or spacing
    return period / math.ceil(period / spacing)


def _read(
    item: PendingAnswer,
    upper_at: LogProfile,
    lower_at: LogProfile,
    grid: Sequence[float],
    reach: float,
    within: float,
) -> Interval:
    """The interval that bounds of ln delta give; epsilons are looked for between the points of ``grid``."""
    if item.question.testing:
        interval, epsilon = item.question.bound_test(lower_at, upper_at, item.position, reach)
        item.saddle = replace(item.saddle, epsilon=epsilon)
        return interval
    if item.question.log_delta is None:
        low = math.exp(min(0.0, lower_at(item.position))) * (1.0 - 4.0 * EPS)
        high = math.exp(upper_at(item.position)) * (1.0 + 4.0 * EPS) + 5e-324
        return Interval(low, min(1.0, high))
    rounding = 4.0 * EPS * abs(item.question.log_delta)
    if item.enough > 0.0 and upper_at(item.enough) <= item.question.log_delta - rounding:
        return Interval(0.0, item.enough)
    low = _largest_epsilon(lower_at, item.question.log_delta + rounding, grid, within)
    return Interval(low, _least_epsilon(upper_at, item.question.log_delta - rounding, grid, within))


def _least_epsilon(upper_at: LogProfile, log_delta: float, grid: Sequence[float], within: float) -> float:
    """Smallest epsilon whose upper bound of delta meets the target, at most ``within`` too large; inf if none does."""
    passed = next((i for i, epsilon in enumerate(grid) if upper_at(epsilon) <= log_delta), None)
    if passed is None:
        return math.inf
    over = grid[max(0, passed - 1)]
    return crossing(lambda epsilon: log_delta - upper_at(epsilon), grid[passed], over, within=within * over)[0]


def _largest_epsilon(lower_at: LogProfile, log_delta: float, grid: Sequence[float], within: float) -> float:
    """Largest epsilon whose lower bound of delta reaches the target, at most ``within`` too small; 0 if none does."""
    passed = next((i for i in reversed(range(len(grid))) if lower_at(grid[i]) >= log_delta), None)
    if passed is None:
        return 0.0
    under = grid[min(passed + 1, len(grid) - 1)]
    return crossing(lambda epsilon: lower_at(epsilon) - log_delta, grid[passed], under, within=within * grid[passed])[0]
