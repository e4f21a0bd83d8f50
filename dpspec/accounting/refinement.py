"""Intervals of answers about a composition, narrowed by grids from coarse to fine.

Both discretizations together are wrong by about T d^2 (1 + s) / 3 in epsilon, s = -d ln delta / d epsilon. Stages
request widths of 1e-2, 1e-3, ... in turn, for any width requested, and each stage's interval is intersected with the
earlier ones: a finer width of the same questions can only give an interval inside the coarser one.

>>> from dpspec.accounting import Mixture
>>> phases = [(Mixture.poisson(8, 0.05, 1.5), 200)]
>>> question, estimate = Question("epsilon", math.log(1e-5)), SaddlePoint(0.7, 25.0, math.log(1e-5), 6.0)
>>> item = PendingAnswer(question, estimate, Interval(0.0, math.inf), math.log(1e-5))
>>> refinement = GridRefinement(phases, ["present-first"], [item])
>>> for width in (1e-2, 1e-4):
...     refinement.refine(width)
...     print(f"{item.answer:.3f}", item.is_within(width))
29.265 to 29.283 True
29.275 to 29.278 True

``solve`` of ``privacy_loss`` makes the estimates and decides which questions share a refinement. Here a stage
(``_stage``) chooses the spacing and makes the steps' ``Atoms`` (``_discretize``). It composes them (``composition``),
and reads the answers off the composed profile (``_narrow``, ``_read``).
"""

import contextlib
import functools
import itertools
import math
import operator
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpspec.accounting.composition import UNSURE, ComposedProfile, compose, split_rare_steps
from dpspec.accounting.grid import WIDEST, Atoms, Pair, TooLongError, TruncatedPair
from dpspec.accounting.merging import MergedPhases
from dpspec.accounting.numerics import EPS, ContradictionError, Direction, Interval, crossing
from dpspec.accounting.profiles import (
    TESTS,
    Cumulants,
    LogProfile,
    Question,
    SaddlePoint,
    bound_test,
    estimates_of,
)

#: The largest number of cells of one step, and of nodes of a transform: a few hundred megabytes.
CELLS, NODES = 1 << 19, 6 << 20

#: From this number of steps on, grids are shorter.
_MANY_STEPS = 10**7

#: An epsilon below this counts as this if widths are compared with it.
TINY = 1e-7

#: d^2 over the error in epsilon, times T (1 + s).
_LAW = 3.0

#: The first relative width of a stage, and the finest.
_COARSEST, _FINEST = 0.8e-2, 1e-9

#: If ``_DEVIATIONS`` tilted stds take at most ``_SHORT`` nodes, the second stage costs about as much as the first.
_DEVIATIONS, _SHORT = 16.0, 1 << 16

#: With at most ``_FEW`` nodes for a step's losses, outcomes of a period cost no more at this share of the first width.
_FEW, _FEW_SHARE = 1024, 0.005

#: Stages in a row that may narrow nothing; more if outcomes of a period may miss a grid's nodes.
_IDLE, _IDLE_PERIODIC = 2, 3

#: Stages after which answers about tests are given up if all are trivial, up to a relative rounding error.
_HOPELESS, _TRIVIAL = 2, 1e-9

#: A power above this is rarely narrowed after a stage that did not narrow it; the other direction resolves it.
_CERTAIN = 0.9

#: ln of the smallest double: no delta is below it.
_DEEPEST = -760.0

#: In logarithms, the minimum by which a delta without a lower bound is assumed smaller at the next try.
_DEEPER = 20.0

#: A tilt for a place this number of reaches away is chosen again.
_OFF = 0.5

#: A composition without rare steps is precise over this number of grid steps: its delta falls by up to e per step.
_FALLS = 64.0

#: Splits compose several times, on grids with this share of the largest numbers of cells and nodes.
_SPLIT_CELLS, _SPLIT_NODES = 4, 8

#: An epsilon known no better than this share of the reach needs another tilt.
_POOR = 0.1

#: The precision of an epsilon read from a composition, as a share of the grid's width.
_READ = 1e-2

#: A grid is not worth its time if its spacing exceeds this share of the last one's.
_AS_FINE = 0.8

#: A stage missed if an interval is this number of times as wide as requested.
_MISSED = 1.25

#: The neighborhood of a composition that is searched for answers, in reaches, and its number of points.
_SCAN, _POINTS = 8.0, 33

#: ln of the share of delta in the cut tails of first estimates.
FIRST_SHARE = math.log(1e-6)

#: The smallest slope of ln delta that counts.
_FLAT = 1e-6

#: Share of a power's width for the discretization: chords take the rest.
_CHORDS = 0.3


@dataclass
class PendingAnswer:
    """A question, the estimated place of its answer, and the interval that certainly contains it.

    ``log_delta`` is ln of the contribution of finite losses to the delta in question. An answer certainly no larger
    than ``enough`` is not narrowed further, and others to a relative ``width``. An answer ``is_undecided`` if delta is
    the probability of infinite losses up to rounding: no grid decides whether epsilon is finite.
    """

    question: Question
    saddle: SaddlePoint
    answer: Interval
    log_delta: float
    enough: float = -math.inf
    width: float = math.inf
    is_undecided: bool = False

    @property
    def is_needless(self) -> bool:
        return self.answer.upper <= self.enough

    @property
    def lacks_bound(self) -> bool:
        """Whether a delta has no lower bound yet: its stage is repeated."""
        is_open = self.question.kind == "delta" and self.answer.lower == 0.0 and not self.is_needless
        return is_open and self.log_delta > _DEEPEST

    def is_within(self, width: float) -> bool:
        """Whether the interval has at most this relative ``width``, or is needless."""
        return self.is_needless or self.answer.width <= width * max(self.answer.upper, self.question.least)

    def is_at_most_enough(self, above: ComposedProfile) -> bool:
        """Whether the profile ``above`` shows an epsilon of at most ``enough``, which is the answer then."""
        log_delta = self.question.value - 4.0 * EPS * abs(self.question.value)
        if self.question.kind != "epsilon" or self.answer.lower > self.enough:
            return False
        if above.bound("log_upper", self.enough) <= log_delta:
            self.answer = self.answer.intersect(Interval(0.0, self.enough))
        return self.is_needless

    def tolerance(self, width: float) -> float:
        """The error in epsilon for a relative ``width`` of the answer."""
        kind = self.question.kind
        if kind == "epsilon":
            return width * max(self.saddle.epsilon, TINY)
        if kind == "delta":
            return width / self.saddle.tilt
        # power = delta + level e^epsilon, and the second term is tilt * delta
        return width * _CHORDS * ((1.0 + self.saddle.tilt) / self.saddle.tilt if kind == "power" else 1.0)

    def locate(self, above: ComposedProfile, spacing: float) -> None:
        """Move the estimate to the answer, and to the slope of the profile there."""
        low, high = self.answer.lower, self.answer.upper
        if self.question.kind == "delta":
            self.log_delta = math.log(low) if low > 0.0 else self.log_delta - max(_DEEPER, 0.4 * abs(self.log_delta))
        elif self.question.kind in TESTS:
            epsilon, step = self.saddle.epsilon, max(2.0 * spacing, 1e-3 * self.saddle.spread)
            log_delta = above.bound("log_finite", epsilon)
            fall = above.bound("log_finite", epsilon - step) - above.bound("log_finite", epsilon + step)
            tilt = fall / (2.0 * step)
            if math.isfinite(log_delta) and _FLAT < tilt < math.inf:
                self.saddle, self.log_delta = replace(self.saddle, tilt=tilt, log_delta=log_delta), log_delta
        elif 0.0 < low <= high < math.inf:
            middle = 0.5 * (low + high)
            step = max(2.0 * spacing, 1e-3 * middle)
            fall = above.bound("log_finite", max(0.0, middle - step)) - above.bound("log_finite", middle + step)
            slope = fall / (min(middle, step) + step)
            if math.isfinite(slope) and slope > 0.0:
                self.saddle = replace(self.saddle, epsilon=middle, tilt=slope)


class GridRefinement:
    """Questions about one composition that share a tilt, and the stages that narrow their intervals.

    Given two directions, questions are about the worse of their profiles at each epsilon. Many ``phases`` are bounded
    by ``merged`` ones first.
    """

    def __init__(
        self,
        phases: Sequence[tuple[Pair, int]],
        sides: Sequence[Direction],
        items: Sequence[PendingAnswer],
        merged: MergedPhases | None = None,
    ) -> None:
        self._phases, self._sides, self.items, self._merged = phases, sides, items, merged
        self._similar = tuple(merged.similar if merged else phases)
        self._is_estimated = any(pair.has_estimated_upper_end for pair, _ in phases)
        self._has_smallest_width = any(pair.has_smallest_width for pair, _ in phases)
        self._steps = sum(steps for _, steps in phases)
        most, self._period = 0, 0.0
        self._estimate(FIRST_SHARE)
        for cumulants in self._cumulants:
            for part, steps in cumulants.parts:
                period = part.period or 0.0
                if period > 0.0 and (steps, period) > (most, self._period):  # of the phase with most steps
                    most, self._period, self._aligned = steps, period, part.aligned
        self._largest_losses = [_largest_loss(pair) for pair, _ in phases] if len(phases) > 1 else [math.inf]
        epsilons = [item.saddle.epsilon for item in items]
        self._centre(0.5 * (min(epsilons) + max(epsilons)))
        # rounding limits the width of the answer about many steps, and long grids take seconds
        self._nodes, self._centres = (NODES, 5) if self._steps < _MANY_STEPS else (NODES // 2, 1)
        self._next: float | None = None
        self._last = self._is_split = False
        self._spacing, self._stages = 0.0, 0

    def part(self, items: Sequence[PendingAnswer]) -> "GridRefinement":
        """Some of the questions with a separate tilt, from the next stage on if the last one served them."""
        part = GridRefinement(self._phases, self._sides, items, self._merged)
        if self._next is not None and part.is_within(_MISSED * 10.0 * self._next):
            part._next = self._next
        return part

    def is_within(self, width: float) -> bool:
        return all(item.is_within(width) for item in self.items)

    @property
    def _is_settled(self) -> bool:
        """Whether all answers have both ends, from compositions without rare steps and with one: grids may be short."""
        return self._is_split and all(item.answer.lower > 0.0 for item in self.items)

    def begin(self) -> None:
        """The first stage, and a coarse one if that missed, for any width requested."""
        stage, centre = _COARSEST, self._saddle.epsilon
        if self._merged is not None:  # a stage of all phases costs about the same for each width
            self._stage(_COARSEST, self._merged)
            stage = 0.009 * _COARSEST
            if self.is_within(_COARSEST):
                self._next = stage
                return
        # Answers that need only be no larger than others mostly are after a coarse stage. Others start finer if the
        # grid is short.
        if self._merged is None and any(item.enough == -math.inf for item in self.items):
            length, range_of_losses = _DEVIATIONS * self._saddle.spread, 2.0 * self._cumulants[0].largest_loss
            if length <= _SHORT * self._needs(0.1 * _COARSEST)[0]:
                stage = 0.1 * _COARSEST
            finer = self._needs(_FEW_SHARE * _COARSEST)[0] if self._period else 0.0
            if length <= 2 * _SHORT * finer and range_of_losses <= _FEW * finer:
                stage = _FEW_SHARE * _COARSEST
        done = False
        while not self._last and any(item.lacks_bound for item in self.items):
            self._stage(stage)
            done = True
        if not self._last:
            if not (done and self.is_within(stage)):
                self._stage(stage)
            if stage < _COARSEST and not (self._has_smallest_width or self.is_within(_MISSED * stage)):
                self._centre(centre)
                last = self._last
                self._stage(_COARSEST)  # a short grid: outcomes that missed its nodes may be on a coarser one's
                self._last = last
        self._next = 0.1 * stage

    def refine(self, width: float) -> None:
        """Refine until every interval is within ``width``, the longest grid has been used, or nothing helps."""
        if self._next is None:
            self.begin()
        idle, stage, patience = 0, self._next or _COARSEST, _IDLE_PERIODIC if self._period else _IDLE
        while not (self._last or self.is_within(width) or stage <= _FINEST or self._is_hopeless):
            is_certain = all(item.question.kind == "power" and item.answer.lower > _CERTAIN for item in self.items)
            if idle >= (1 if is_certain or self._has_smallest_width else patience):
                break
            if self.is_within(stage):
                stage *= 0.1
                continue
            narrower = self._stage(stage)
            stage, idle = 0.1 * stage, 0 if narrower else idle + 1
        self._next = stage

    @property
    def _is_hopeless(self) -> bool:
        """Whether each question is about a test and has its trivial answer after the first stages.

        Then each step reveals almost everything: no finite loss of the grid is near the answer, and finer grids, each
        several times as long, find none either. Single steps bound such answers.
        """
        return self._stages >= _HOPELESS and all(
            item.question.kind in TESTS
            and item.answer.lower <= item.question.trivial.lower * (1.0 + _TRIVIAL)
            and item.answer.upper >= item.question.trivial.upper * (1.0 - _TRIVIAL)
            for item in self.items
        )

    def _estimate(self, log_share: float) -> None:
        """Estimate each direction without a share e^``log_share`` of the smallest delta.

        The remaining tail decides the best tilt: it grows heavier as less is cut.
        """
        self._cut = min(item.log_delta for item in self.items), log_share
        self._cumulants = [estimates_of(self._similar, side, *self._cut) for side in self._sides]

    def _centre(self, epsilon: float) -> None:
        """Tilt each direction to ``epsilon``; the larger delta has the saddle point of the group."""
        initial_tilt = self.items[0].saddle.tilt
        self._saddles = [side.find(epsilon=epsilon, initial_tilt=initial_tilt) for side in self._cumulants]
        self._saddle = max(self._saddles, key=operator.attrgetter("log_delta"))

    def _needs(self, width: float) -> tuple[float, float]:
        """The spacing and the share of delta in cut tails for errors of about ``width``.

        The spacing is by the law, or by the spacing itself if its error is smaller.
        """
        spacing, share = math.inf, 1e-3
        for item in [item for item in self.items if not item.is_needless] or self.items:
            error = item.tolerance(width)
            law = math.sqrt(_LAW * error / (self._steps * (1.0 + item.saddle.tilt)))
            spacing = min(spacing, max(law, error / (3.0 * self._steps)))
            share = min(share, 1e-2 * width * item.saddle.tilt * item.tolerance(1.0))
        return spacing, max(share, 1e-14)

    def _stage(self, width: float, merged: MergedPhases | None = None) -> bool:
        """Narrow by one grid, and mark the longest allowed grid as the last; returns whether an interval narrowed.

        ``merged``: phases that bound the composition's.
        """
        before = [item.answer.width for item in self.items]
        self._stages += 1
        widest_spacing, share = self._needs(width)
        self._estimate(math.log(share))
        self._centre(self._saddle.epsilon)
        compositions = [[cumulants.parts for cumulants in self._cumulants]]
        if self._merged is not None:  # estimates are from similar phases
            bounding = (merged.above, merged.below) if merged else (self._phases,)
            compositions = [[Cumulants(phases, side, *self._cut).parts for side in self._sides] for phases in bounding]
        # below the resolution of its losses a grid would have equal nodes
        finest = 4.0 * EPS * max(cumulants.largest_loss for cumulants in self._cumulants)
        widest_spacing, period, self._last = max(min(0.2 * WIDEST, widest_spacing), finest), self._period, False
        while widest_spacing < WIDEST:
            spacing = self._aligned(widest_spacing) if period else widest_spacing
            if spacing < finest:
                period, spacing = 0.0, widest_spacing
            try:
                self._narrow(*self._discretize(compositions, spacing), spacing, width)
                self._spacing = spacing
                break
            except TooLongError as error:
                if spacing < 0.5 * widest_spacing:  # a period that no grid can have: its outcomes are between nodes
                    period = 0.0
                    continue
                widest_spacing, self._last = 1.02 * max(error.factor * spacing, widest_spacing), True
                if _AS_FINE * self._spacing < widest_spacing < self._spacing:
                    break  # the last grid was about as fine
        else:
            self._last = True  # losses in the millions per step: bounds without a grid remain
        return any(item.answer.width < 0.9 * earlier for item, earlier in zip(self.items, before, strict=True))

    def _discretize(
        self, compositions: Sequence[Sequence[Sequence[tuple[TruncatedPair, int]]]], spacing: float
    ) -> tuple[list[list[tuple[Atoms, int]]], list[list[tuple[Atoms, int]]]]:
        """Measures above and below the steps on one grid, per direction.

        ``compositions``: steps per direction, or such above and such below the composition's.
        """
        tilts = sorted({saddle.tilt for saddle in [*self._saddles, *[item.saddle for item in self.items]]})
        # One step may decide the answer: no cell may be wider than the error of a single step allows.
        widest = 0.5 * math.sqrt(self._steps)
        cells = CELLS // _SPLIT_CELLS if self._is_settled else CELLS
        uppers: list[list[tuple[Atoms, int]]] = []
        lowers: list[list[tuple[Atoms, int]]] = []
        is_counted = [loss > 0.5 * spacing for loss in self._largest_losses]
        # Merged phases are others, and something must remain.
        omits = any(is_counted) and not all(is_counted) and len(compositions) == 1
        for bounding in compositions:
            for side in bounding:
                atoms = [(*part.atoms(spacing, tilts, widest, cells), steps) for part, steps in side]
                if bounding is compositions[0]:
                    uppers.append([(above, steps) for above, _, steps in atoms])
                if bounding is compositions[-1]:
                    # Losses that miss the nodes are moved down, by up to the spacing in each step. Without steps of
                    # smaller losses the composition leaks no more, and less by these losses alone.
                    counted = is_counted if omits else [True] * len(atoms)
                    lowers.append([(below, steps) for _, below, steps in itertools.compress(atoms, counted)])
        return uppers, lowers

    def _narrow(
        self,
        uppers: Sequence[Sequence[tuple[Atoms, int]]],
        lowers: Sequence[Sequence[tuple[Atoms, int]]],
        spacing: float,
        width: float,
    ) -> None:
        """Intersect each interval with its bounds from measures on one grid, for a relative ``width``."""
        for _ in range(self._centres):
            # The distances from the centre over which the composition keeps its precision, per direction.
            reaches = [saddle.spread + 1.0 / saddle.tilt for saddle in self._saddles]
            reach, scan = min(reaches), max(*reaches, 8.0 * spacing)
            upper = self._profile(uppers, spacing, scan) if all(item.enough > 0.0 for item in self.items) else None
            if upper and all(item.is_at_most_enough(upper) for item in self.items):
                return
            lower = self._profile(lowers, spacing, scan)  # first: its window is longer, and may be too long
            upper = upper or self._profile(uppers, spacing, scan)
            points = self._saddle.epsilon + scan * np.linspace(-_SCAN, _SCAN, _POINTS)
            grid = [0.0, *points[points > 0.0].tolist()]
            upper_at = functools.cache(functools.partial(upper.bound, "log_upper"))
            lower_at = functools.cache(functools.partial(lower.bound, "log_lower"))
            answer_epsilons, is_poor = [], False
            for item in self.items:
                reading = _read(item, upper_at, lower_at, grid, scan, _READ * width)
                if self._is_estimated:  # estimates of two stages may contradict each other
                    reading = replace(reading, upper=max(reading.upper, item.answer.lower))
                    item.answer = replace(item.answer, upper=max(item.answer.upper, reading.lower))
                item.answer = item.answer.intersect(reading)
                item.locate(upper, spacing)
                if item.is_needless:
                    continue
                if item.question.kind in TESTS:
                    answer_epsilons.append(item.saddle.epsilon)
                elif item.question.kind == "epsilon":
                    ends = np.array([item.answer.lower, item.answer.upper])
                    answer_epsilons += ends[(ends > 0.0) & (ends < math.inf)].tolist()
                if item.question.kind == "epsilon" or reading.lower == 0.0:
                    is_poor |= reading.lower == 0.0 < reading.upper or reading.width > _POOR * reach
            # Move the tilt to the answers, if it was chosen badly.
            if not answer_epsilons or (not self._period and self.is_within(width)):
                return
            middle = 0.5 * (min(answer_epsilons) + max(answer_epsilons))
            self._is_split = upper.is_split
            off = _FALLS * spacing if self._is_split else (0.01 if is_poor else _OFF) * reach
            if abs(middle - self._saddle.epsilon) <= off:
                if self._is_split:
                    self._centre(middle)
                return
            self._centre(middle)

    def _profile(self, sides: Sequence[Sequence[tuple[Atoms, int]]], spacing: float, scan: float) -> ComposedProfile:
        centre = self._saddle.epsilon
        floor, members = centre - 1.1 * _SCAN * scan, []
        log_delta = min(item.log_delta for item in self.items)
        for side, saddle in zip(sides, self._saddles, strict=True):
            split = None
            # A steeper tilt than the grid resolves would pick out its last nodes.
            tilt = min(saddle.tilt, 1.0 / spacing)
            if self._is_settled:
                split = split_rare_steps(side, centre, floor, self._nodes // _SPLIT_NODES, log_delta)
            if split is None:
                composed = compose(side, tilt, centre, floor, self._nodes)
                value, error = composed.sum_at(centre)
                if error > UNSURE * value:
                    with contextlib.suppress(TooLongError):
                        split = split_rare_steps(side, centre, floor, self._nodes, log_delta)
            members.append(split or (((composed, 0.0),), -math.inf))
        return ComposedProfile(tuple(members))


def _largest_loss(pair: Pair) -> float:
    """A bound of one step's absolute loss; infinite if an outcome may show the record with certainty."""
    directions: tuple[Direction, ...] = ("present-first", "absent-first")
    if any(pair.infinite_mass(direction) > 0.0 for direction in directions):
        return math.inf
    return max(pair.largest_loss(direction) for direction in directions)


def _read(
    item: PendingAnswer,
    upper_at: LogProfile,
    lower_at: LogProfile,
    grid: Sequence[float],
    reach: float,
    within: float,
) -> Interval:
    """The interval from bounds of ln delta; an epsilon is searched between the points of ``grid``."""
    value, saddle = item.question.value, item.saddle
    if item.question.kind in TESTS:
        interval, epsilon = bound_test(item.question, lower_at, upper_at, saddle.epsilon, reach)
        item.saddle = replace(saddle, epsilon=epsilon)
        return interval
    if item.question.kind == "delta":
        low = math.exp(min(0.0, lower_at(value))) * (1.0 - 4.0 * EPS)
        high = math.exp(upper_at(value)) * (1.0 + 4.0 * EPS) + 5e-324
        return Interval(low, min(1.0, high))
    rounding = 4.0 * EPS * abs(value)

    def above(epsilon: float) -> float:
        """Not negative if the epsilon is certainly at most this one."""
        return value - rounding - upper_at(epsilon)

    def below(epsilon: float) -> float:
        """Not negative if the epsilon is certainly at least this one."""
        return lower_at(epsilon) - (value + rounding)

    if item.enough > 0.0 and above(item.enough) >= 0.0:
        return Interval(0.0, item.enough)
    low, high, last = 0.0, math.inf, len(grid) - 1
    i = bisect_left(grid, saddle.epsilon, 0, last)  # both ends are mostly next to the estimate
    while i < last and below(grid[i]) >= 0.0:
        i += 1
    while i >= 0 and below(grid[i]) < 0.0:
        i -= 1
    if i >= 0:
        low = crossing(below, grid[i], grid[min(i + 1, last)], within=within * grid[i])[0]
    i = max(i, 0)
    while i > 0 and above(grid[i]) >= 0.0:
        i -= 1
    while i <= last and above(grid[i]) < 0.0:
        i += 1
    if i <= last:
        under = grid[max(0, i - 1)]
        high = crossing(above, grid[i], under, within=within * under)[0]
    if low > high:
        raise ContradictionError(f"a lower end of epsilon, {low:.6g}, and an upper end, {high:.6g}, exclude each other")
    return Interval(low, high)
