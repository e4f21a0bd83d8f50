"""Certified answers from grids, coarse to fine, until the intervals are as narrow as requested.

Both discretizations together are wrong by about T d^2 (1 + s) / 3 in epsilon, s = -d ln delta / d epsilon. Stages
request widths of 1e-2, 1e-3, ... in turn (from 1e-3 on if grids are short, and 1e-2 after it if that missed), for any
width requested, and each stage's interval is intersected with the earlier ones. So a finer width of the same questions
can only give an interval inside the coarser one. A stage that would need a longer grid than allowed uses the longest
one and is the last.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from operator import attrgetter, itemgetter, methodcaller

import numpy as np

from dpspec.accounting.composition import Cumulants, SaddlePoint, compose, loss_extremes
from dpspec.accounting.grid import WIDEST, Atoms, Pair, TooLongError, TruncatedPair
from dpspec.accounting.numerics import EPS, Direction, Interval, crossing
from dpspec.accounting.profiles import ONE_STEP, TESTS, LogProfile, Question, bound_test, one_step_answer
from dpspec.accounting.rare_steps import UNSURE, ComposedProfile, WorstComposition, split_rare_steps

#: Method of an answer from composed grids.
GRID = "pld/connect-the-dots"

#: The largest number of cells of one step, and of nodes of a transform: a few hundred megabytes.
CELLS, NODES = 1 << 19, 6 << 20

#: An epsilon below this counts as this if widths are compared with it.
_TINY = 1e-7

#: d^2 over the error in epsilon, times T (1 + s).
_LAW = 3.0

#: The first relative width of a stage, and the finest.
_COARSEST, _FINEST = 0.8e-2, 1e-9

#: If ``_DEVIATIONS`` tilted stds take at most ``_SHORT`` nodes, the second stage costs about as much as the first.
_DEVIATIONS, _SHORT = 16.0, 1 << 16

#: Stages in a row that may narrow nothing; more if outcomes of a period may miss a grid's nodes.
_IDLE, _IDLE_PERIODIC = 2, 3

#: ln of the smallest double: no delta is below it.
_DEEPEST = -760.0

#: In logarithms, the minimum by which a delta without a lower bound is assumed smaller at the next try.
_DEEPER = 20.0

#: A tilt for a place this number of reaches away is chosen again.
_OFF = 0.5

#: An epsilon known no better than this share of the reach needs another tilt.
_POOR = 0.1

#: The precision of an epsilon read from a composition, as a share of the grid's width.
_READ = 1e-2

#: A stage missed if an interval is this number of times as wide as requested.
_MISSED = 1.25

#: The neighborhood of a composition that is searched for answers, in reaches, and its number of points.
_SCAN, _POINTS = 8.0, 33

#: Share of delta in the cut tails at the first stage and in an estimate.
_FIRST_SHARE, _SHARE = math.log(1e-6), math.log(1e-6)

#: The smallest slope of ln delta that counts.
_FLAT = 1e-6

#: Share of a power's width for the discretization: chords take the rest.
_CHORDS = 0.3

#: Questions whose epsilons are within this number of tilted stds share a composition: the first one, and all.
_SHARED_COARSE, _SHARED = 8.0, 4.0

#: The maximum difference in epsilon besides: a composition loses a factor e^(difference / 2) of precision, unless its
#: spread exceeds ``_LONG``, so that its sums have no cancellation.
_DIFFERENCE, _LONG = 16.0, 64.0

#: The range of ln delta of one table for first estimates.
_SHELF = 12.0

#: An epsilon estimated below this number of stds may be zero.
_NEAR_ZERO = 0.1

#: The smallest slope of ln delta at which powers are computed.
_FLATTEST = 1e-5

#: ln of a delta so close to one that a test's power may be.
_NEAR_ONE = -0.05

#: The estimate of an answer before any.
_NOWHERE = SaddlePoint(1.0, 0.0, 0.0, 1.0)

_log_delta_of = attrgetter("log_delta")


@dataclass
class PendingAnswer:
    """A question, the estimated place of its answer, and the interval that certainly contains it.

    Attributes:
        question: the question.
        saddle: the estimate, which follows the certified profile.
        answer: the interval.
        log_delta: ln of the contribution of finite losses to the delta in question.
        enough: an answer certainly no larger than this is not narrowed further.
    """

    question: Question
    saddle: SaddlePoint
    answer: Interval
    log_delta: float
    enough: float = -math.inf

    @property
    def is_needless(self) -> bool:
        """Whether the answer is certainly no larger than ``enough``."""
        return self.answer.upper <= self.enough

    def is_within(self, width: float) -> bool:
        """Whether the interval has at most this relative ``width``, or is needless."""
        smallest = _TINY if self.question.kind == "epsilon" else 0.0
        return self.is_needless or self.answer.width <= width * max(self.answer.upper, smallest)

    def tolerance(self, width: float) -> float:
        """The error in epsilon for a relative ``width`` of the answer."""
        kind = self.question.kind
        if kind == "epsilon":
            return width * max(self.saddle.epsilon, _TINY)
        if kind == "delta":
            return width / self.saddle.tilt
        # power = delta + level e^epsilon, and the second term is tilt * delta
        return width * _CHORDS * ((1.0 + self.saddle.tilt) / self.saddle.tilt if kind == "power" else 1.0)

    def locate(self, above: ComposedProfile) -> None:
        """Move the estimate to the answer, and to the slope of the profile there."""
        low, high = self.answer.lower, self.answer.upper
        if self.question.kind == "delta":
            self.log_delta = math.log(low) if low > 0.0 else self.log_delta - max(_DEEPER, 0.4 * abs(self.log_delta))
        elif self.question.kind in TESTS:
            epsilon, step = self.saddle.epsilon, max(2.0 * above.spacing, 1e-3 * self.saddle.spread)
            log_delta = above.log_finite(epsilon)
            tilt = (above.log_finite(epsilon - step) - above.log_finite(epsilon + step)) / (2.0 * step)
            if math.isfinite(log_delta) and _FLAT < tilt < math.inf:
                self.saddle, self.log_delta = replace(self.saddle, tilt=tilt, log_delta=log_delta), log_delta
        elif 0.0 < low <= high < math.inf:
            middle = 0.5 * (low + high)
            step = max(2.0 * above.spacing, 1e-3 * middle)
            fall = above.log_finite(max(0.0, middle - step)) - above.log_finite(middle + step)
            slope = fall / (min(middle, step) + step)
            if math.isfinite(slope) and slope > 0.0:
                self.saddle = replace(self.saddle, epsilon=middle, tilt=slope)


class GridRefinement:
    """Questions about one composition that share a tilt, and the stages that narrow their intervals.

    Given two directions, questions are about the worse of their profiles at each epsilon.
    """

    def __init__(
        self, phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], items: Sequence[PendingAnswer]
    ) -> None:
        self._phases, self._sides, self.items = phases, sides, items
        self._steps, most, self._period = 0, 0, 0.0
        for side in self._truncated(_FIRST_SHARE):
            self._steps = 0
            for part, steps in side:
                self._steps += steps
                if (period := part.period or 0.0) > 0.0 and (steps, period) > (most, self._period):
                    most, self._period = steps, period  # of the phase with most steps
        positions = list(map(attrgetter("saddle.epsilon"), items))
        self._centre(0.5 * (min(positions) + max(positions)))
        self._next: float | None = None
        self._last = False

    def part(self, items: Sequence[PendingAnswer]) -> GridRefinement:
        """Some of the questions with a separate tilt, from the next stage on if the last one served them."""
        part = GridRefinement(self._phases, self._sides, items)
        if self._next is not None and part.is_within(_MISSED * 10.0 * self._next):
            part._next = self._next
        return part

    def is_within(self, width: float) -> bool:
        """Whether every interval is within ``width``."""
        return all(map(methodcaller("is_within", width), self.items))

    def begin(self) -> None:
        """The first stage, and a coarse one if that missed, for any width requested."""
        stage, centre = _COARSEST, self._saddle.epsilon
        if min(map(attrgetter("enough"), self.items)) == -math.inf:
            # Answers that need only be no larger than others mostly are after a coarse stage. Others start finer if
            # the grid is short.
            finer = 0.1 * _COARSEST
            if _DEVIATIONS * self._saddle.spread <= _SHORT * self._needs(finer)[0]:
                stage = finer
        done = "delta" in set(map(attrgetter("question.kind"), self.items)) and self._deepen(stage)
        if not self._last:
            if not (done and self.is_within(stage)):
                self._stage(stage)
            if stage < _COARSEST and not self.is_within(_MISSED * stage):
                self._centre(centre)
                last = self._last
                self._stage(_COARSEST)  # a short grid: outcomes that missed its nodes may be on a coarser one's
                self._last = last
        self._next = 0.1 * stage

    def _deepen(self, stage: float) -> bool:
        """Repeat the stage until each delta has a lower bound; returns whether there was one."""
        done = False
        while not self._last and any(
            item.question.kind == "delta"
            and item.answer.lower == 0.0
            and item.log_delta > _DEEPEST
            and not item.is_needless
            for item in self.items
        ):
            self._stage(stage)
            done = True
        return done

    def refine(self, width: float) -> None:
        """Refine until every interval is within ``width``, the longest grid has been used, or nothing helps."""
        if self._next is None:
            self.begin()
        idle, stage = 0, self._next or _COARSEST
        while not (self._last or self.is_within(width)):
            if stage <= _FINEST or idle >= (_IDLE_PERIODIC if self._period else _IDLE):
                break
            narrower = self._stage(stage)
            stage, idle = 0.1 * stage, 0 if narrower else idle + 1
        self._next = stage

    def _truncated(self, log_share: float) -> list[list[tuple[TruncatedPair, int]]]:
        """Per direction, the steps without a share of the smallest delta, with the estimates from them."""
        smallest = min(map(_log_delta_of, self.items))
        truncated = [truncate_phases(self._phases, side, smallest, log_share) for side in self._sides]
        # The remaining tail decides the best tilt: it grows heavier as less is cut.
        self._cumulants = list(map(Cumulants, truncated))
        return truncated

    def _centre(self, epsilon: float) -> None:
        """Tilt to ``epsilon``, in the direction of the larger delta."""
        self._saddle = max(map(methodcaller("find", epsilon=epsilon), self._cumulants), key=_log_delta_of)

    def _needs(self, width: float) -> tuple[float, float]:
        """The spacing and the share of delta in cut tails for errors of about ``width``.

        The spacing is by the law, or by the spacing itself if its error is smaller.
        """
        spacing, share = math.inf, 1e-3
        for item in list(filterfalse(attrgetter("is_needless"), self.items)) or self.items:
            error = item.tolerance(width)
            law = math.sqrt(_LAW * error / (self._steps * (1.0 + item.saddle.tilt)))
            spacing = min(spacing, max(law, error / (3.0 * self._steps)))
            share = min(share, 1e-2 * width * item.saddle.tilt * item.tolerance(1.0))
        return spacing, max(share, 1e-14)

    def _stage(self, width: float) -> bool:
        """Narrow by one grid, and mark the longest allowed grid as the last; returns whether an interval narrowed."""
        before = np.array([*map(attrgetter("answer.width"), self.items)])
        wanted, share = self._needs(width)
        truncated = self._truncated(math.log(share))
        self._centre(self._saddle.epsilon)
        wanted, period, self._last = min(0.2 * WIDEST, wanted), self._period, False
        while wanted < WIDEST:
            spacing = period / math.ceil(period / wanted) if period else wanted
            try:
                self._grid(truncated, spacing, _READ * width)
                break
            except TooLongError as error:
                if spacing < 0.5 * wanted:  # a period that no grid can have: its outcomes are between nodes
                    period = 0.0
                    continue
                wanted, self._last = 1.02 * max(error.factor * spacing, wanted), True
        else:
            self._last = True  # losses in the millions per step: bounds without a grid remain
        return bool(np.any(np.array([*map(attrgetter("answer.width"), self.items)]) < 0.9 * before))

    def _grid(self, truncated: Sequence[Sequence[tuple[TruncatedPair, int]]], spacing: float, within: float) -> None:
        """Intersect each interval with its bounds from a grid; epsilons are read to a relative ``within``."""
        tilts = sorted({self._saddle.tilt, *map(attrgetter("saddle.tilt"), self.items)})
        # One step may decide the answer: no cell may be wider than the error of a single step allows.
        widest = 0.5 * math.sqrt(self._steps)
        uppers: list[list[tuple[Atoms, int]]] = []
        lowers: list[list[tuple[Atoms, int]]] = []
        for side in truncated:
            uppers.append([])
            lowers.append([])
            for part, steps in side:
                above, below = part.atoms(spacing, tilts, widest, CELLS)
                uppers[-1].append((above, steps))
                lowers[-1].append((below, steps))
        for _ in range(5):
            # The distance from the centre over which the composition keeps its precision.
            reach = self._saddle.spread + 1.0 / self._saddle.tilt
            scan = max(reach, 8.0 * spacing)
            upper, lower = self._profile(uppers, spacing, scan), self._profile(lowers, spacing, scan)
            points = self._saddle.epsilon + scan * np.linspace(-_SCAN, _SCAN, _POINTS)
            grid = [0.0, *points[points > 0.0].tolist()]
            upper_at, lower_at = functools.cache(upper.log_upper), functools.cache(lower.log_lower)
            places, is_poor = [], False
            for item in self.items:
                found = _read(item, upper_at, lower_at, grid, scan, within)
                item.answer = item.answer.intersect(found)
                item.locate(upper)
                if item.is_needless:
                    continue
                if item.question.kind in TESTS:
                    places.append(item.saddle.epsilon)
                elif item.question.kind == "epsilon":
                    ends = np.array([item.answer.lower, item.answer.upper])
                    places += ends[(ends > 0.0) & (ends < math.inf)].tolist()
                if item.question.kind == "epsilon" or found.lower == 0.0:
                    is_poor |= found.lower == 0.0 < found.upper or found.width > _POOR * reach
            # Move the tilt to the answers, if it was chosen badly.
            if not places:
                return
            middle = 0.5 * (min(places) + max(places))
            if abs(middle - self._saddle.epsilon) <= (0.01 if is_poor else _OFF) * reach:
                return
            self._centre(middle)

    def _profile(self, sides: Sequence[Sequence[tuple[Atoms, int]]], spacing: float, scan: float) -> ComposedProfile:
        """The composed profile around the saddle point, the worse of the directions."""
        # A steeper tilt than the grid resolves would pick out its last nodes.
        tilt, centre = min(self._saddle.tilt, 1.0 / spacing), self._saddle.epsilon
        floor, members = centre - 1.1 * _SCAN * scan, []
        for side in sides:
            composed = compose(side, tilt, centre, floor, NODES)
            value, error = composed.sum_at(centre)
            if error > UNSURE * value:
                log_delta = min(map(_log_delta_of, self.items))
                members.append(split_rare_steps(composed, side, floor, NODES, log_delta))
            else:
                members.append(composed)
        return members[0] if len(members) == 1 else WorstComposition(tuple(members))


def truncate_phases(
    phases: Sequence[tuple[Pair, int]], direction: Direction, log_delta: float, log_share: float
) -> list[tuple[TruncatedPair, int]]:
    """Each phase's step, with its steps, without a share e^``log_share`` of delta over all steps."""
    log_far = log_share - math.log(sum(map(itemgetter(1), phases)))
    return [(pair.truncate(direction, log_far + min(log_delta, 0.0), log_far), count) for pair, count in phases]


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
    for i in range(last, -1, -1):
        if below(grid[i]) >= 0.0:
            low = crossing(below, grid[i], grid[min(i + 1, last)], within=within * grid[i])[0]
            break
    for i in range(last + 1):
        if above(grid[i]) >= 0.0:
            under = grid[max(0, i - 1)]
            high = crossing(above, grid[i], under, within=within * under)[0]
            break
    return Interval(low, high)


def solve(
    phases: Sequence[tuple[Pair, int]],
    sides: Sequence[Direction],
    questions: Sequence[Question],
    widths: Sequence[float],
    other: Sequence[Interval | None] | None = None,
) -> list[Interval]:
    """Certified answers for a composition, in the order of the questions.

    Args:
        phases: the pair and the number of steps of each phase.
        sides: the directions. Of two, the answer is the larger of both, or, if one of the questions is about a test,
            an answer about the worse of the two profiles at each epsilon.
        questions: the questions.
        widths: the relative width wanted of each answer; intervals are wider if the grid limits do not allow it.
        other: for one direction and each question, the other direction's answer or None, if only the larger of both
            counts. An epsilon that is certainly no larger is not narrowed, unless the other one is wider than requested
            and the lower end of this one may be better.
    """
    if len(sides) > 1 and not set(TESTS) & set(map(attrgetter("kind"), questions)):
        first = solve(phases, sides[:1], questions, widths)
        second = solve(phases, sides[1:], questions, widths, first)
        return list(map(Interval.worse, first, second))
    found: dict[int, Interval] = {}
    enough = [-math.inf] * len(questions)
    for i, known in enumerate(other or ()):
        if known is None:
            continue
        if known.upper == 0.0 and questions[i].kind == "epsilon":
            found[i] = known  # delta at 0, the total variation distance, is the same in both directions
        elif known.relative_width <= widths[i]:
            enough[i] = known.upper
    rest = [i for i in range(len(questions)) if i not in found]
    if len(phases) == 1 and phases[0][1] == 1:
        for i in rest:
            exact = one_step_answer(phases[0][0], sides, questions[i])
            if exact is not None:
                found[i] = exact.by(ONE_STEP)
        rest = [i for i in rest if i not in found]
    items = _open(phases, sides, [questions[i] for i in rest])
    wanted: dict[int, float] = {}  # by the identity of the item
    for item, i in zip(items, rest, strict=True):
        item.enough = enough[i]
        settled = item.question.kind in TESTS and (item.is_within(widths[i]) or item.saddle.tilt < _FLATTEST)
        if not (item.is_needless or item.answer.width == 0.0 or settled):
            wanted[id(item)] = widths[i]
    groups = []
    for shared in _neighbours([item for item in items if id(item) in wanted], wide=True):
        groups.append(GridRefinement(phases, sides, shared))
        groups[-1].begin()
    # Coarsest first: an answer is inside the answer that it would have without the questions of finer widths.
    for width in sorted(set(wanted.values()), reverse=True):
        for group in groups:
            for near in _neighbours([item for item in group.items if wanted[id(item)] <= width]):
                part = group if len(near) == len(group.items) else group.part(near)
                part.refine(width)
    for item, i in zip(items, rest, strict=True):
        found[i] = item.answer.by(GRID)
    return [found[i] for i in range(len(questions))]


def _neighbours(items: Sequence[PendingAnswer], *, wide: bool = False) -> list[list[PendingAnswer]]:
    """The items by position, in groups that share a composition each; ``wide``: a coarse one."""
    groups: list[list[PendingAnswer]] = []
    reach = -math.inf
    for item in sorted(items, key=attrgetter("saddle.epsilon")):
        if item.saddle.epsilon > reach:
            groups.append([])
            spread = item.saddle.spread
            reach = (_SHARED_COARSE if wide else _SHARED) * spread
            reach = item.saddle.epsilon + (min(reach, _DIFFERENCE) if spread < _LONG else reach)
        groups[-1].append(item)
    return groups


def _open(
    phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], questions: Sequence[Question]
) -> list[PendingAnswer]:
    """Answers with their trivial intervals and first estimates."""
    opened = []
    epsilons: list[tuple[PendingAnswer, float]] = []
    for question in questions:
        if question.kind in TESTS:
            opened.append(_open_test(phases, sides, question))
        elif question.kind == "delta":
            opened.append(_open_delta(phases, sides[0], question))
        else:
            largest, infinite = loss_extremes(phases, sides[0])
            log_delta = question.value
            if infinite.upper > 0.0:  # the part that finite losses may contribute
                log_delta += math.log(max(-math.expm1(min(math.log(infinite.upper) - log_delta, 0.0)), 1e-300))
            opened.append(PendingAnswer(question, _NOWHERE, Interval(0.0, largest), log_delta))
            epsilons.append((opened[-1], log_delta))
    at_zero = functools.cache(lambda: solve(phases, sides[:1], [Question("delta", 0.0)], [1e-3])[0])
    shelves: dict[int, list[PendingAnswer]] = {}
    for item, log_delta in epsilons:  # deltas of similar size share a table
        shelves.setdefault(math.floor(log_delta / _SHELF) if len(epsilons) > 1 else 0, []).append(item)
    for items in shelves.values():
        logs = list(map(_log_delta_of, items))
        cumulants = Cumulants(truncate_phases(phases, sides[0], min(logs), _SHARE))
        for item, saddle in zip(items, cumulants.for_deltas(logs), strict=True):
            item.saddle, value, rounding = saddle, item.question.value, 4.0 * EPS * abs(item.question.value)
            if infinite.upper > 0.0 and value <= math.log(infinite.upper) + rounding:
                surely = value < math.log(infinite.lower) - rounding
                item.answer, item.saddle = Interval(math.inf if surely else 0.0, math.inf), cumulants.find(epsilon=0.0)
            elif saddle.epsilon <= _NEAR_ZERO * saddle.spread:
                # A large delta, where epsilon is 0 or little more: delta at 0 decides.
                there, item.saddle = at_zero(), cumulants.find(epsilon=0.0)
                if math.log(there.upper) <= value:
                    item.answer = Interval(0.0, 0.0)
                else:
                    gap = math.log(0.5 * (there.lower + there.upper)) - value
                    item.saddle = cumulants.find(epsilon=max(gap / item.saddle.tilt, _TINY))
    return opened


def _open_delta(phases: Sequence[tuple[Pair, int]], direction: Direction, question: Question) -> PendingAnswer:
    largest, certain = loss_extremes(phases, direction)
    bounds = Interval(max(certain.lower, -math.expm1(min(question.value, 0.0))), 1.0)
    if question.value >= largest:
        bounds = certain  # no finite loss is that large
    saddle = _deep_enough(phases, direction, question)
    return PendingAnswer(question, saddle, bounds, saddle.log_delta)


def _open_test(phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], question: Question) -> PendingAnswer:
    saddles = [_deep_enough(phases, side, question) for side in sides]
    if len(sides) > 1:  # each direction's own line may be worse for the other: the two meet at 0 at the latest
        smallest = min(map(_log_delta_of, saddles))
        tables = [Cumulants(truncate_phases(phases, side, smallest, _SHARE)) for side in sides]
        places = {*(saddle.epsilon for saddle in saddles), 0.0}
        worst = [max((table.find(epsilon=place) for table in tables), key=_log_delta_of) for place in places]
        saddles = [min(worst, key=lambda saddle: _test_line(question, saddle))]
    bounds = question.trivial
    if question.kind == "power" and saddles[0].log_delta > _NEAR_ONE:
        # outcomes of loss over -ln(level) have a level below it, and the power is their probability at least
        sure = Question("delta", -question.value)
        lower = max(solve(phases, (side,), [sure], [1e-3])[0].lower for side in sides)
        bounds = Interval(max(bounds.lower, lower), 1.0)
    return PendingAnswer(question, saddles[0], bounds, saddles[0].log_delta)


def _test_line(question: Question, saddle: SaddlePoint) -> float:
    """A number that is minimal for the line that decides a test: ln of its power, or minus ln of its level."""
    if question.kind == "power":
        return float(np.logaddexp(saddle.log_delta, saddle.epsilon + question.value))
    gap = -math.expm1(min(0.0, saddle.log_delta - question.value))
    return saddle.epsilon - math.log(max(gap, 1e-300))


def _deep_enough(phases: Sequence[tuple[Pair, int]], direction: Direction, question: Question) -> SaddlePoint:
    """A saddle point from tables whose cut tails are far below its delta."""
    log_delta, value = -30.0, question.value
    while True:
        cumulants = Cumulants(truncate_phases(phases, direction, log_delta, _SHARE))
        if question.kind == "delta":
            saddle = cumulants.find(epsilon=value)
        elif question.kind == "power":
            saddle = cumulants.find(log_level=value)
        else:
            saddle = cumulants.find(log_power=value)
        if saddle.log_delta >= log_delta or log_delta < -1e4:
            return saddle
        log_delta = saddle.log_delta - 5.0
