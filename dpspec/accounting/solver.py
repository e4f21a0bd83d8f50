"""Questions about a composition and their pending answers; the power of tests from bounds of the privacy profile.

By duality the largest power at level a is the minimum of F(t) = delta(ln t) + a t over t > 0, delta at any real epsilon
= ln t, and F is convex. So an upper bound of delta at any one epsilon bounds the power from above. From below: if F is
at least F(m) at two points on either side of m, its minimum is between them and above the prolonged chords through m.

Grids chosen by the error law, coarse to fine, until the intervals are as narrow as asked.

Both discretisations together are wrong by about T d^2 (1 + s) / 3 in epsilon, s = -d ln delta / d epsilon. Stages ask
for widths of 1e-2, 1e-3, ... in turn (where grids are short, from 1e-3 on, and for 1e-2 after it where that missed),
whatever the width requested, and every stage's interval is cut with those before: each is true, so their intersection
is, and asking for a finer width of the same questions can only give an interval inside the coarser one. A stage that
would need a longer grid than allowed uses the longest one and is the last: the interval stays wider.

Answers that need no grid: plain Gaussian steps, one step of a known profile, and what holds of any composition.

From questions about a composition to certified intervals: one step exactly, more of them grid after grid.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri_exp

from dpspec.accounting import gaussian
from dpspec.accounting.composition import Composition, Cumulants, SaddlePoint, chance_of_any, pick_worst
from dpspec.accounting.duality import LogProfile, bound_level, bound_power
from dpspec.accounting.grid import WIDEST, Pair, TooLongError, TruncatedPair
from dpspec.accounting.numerics import DIRECTIONS, EPS, Direction, Interval, crossing
from dpspec.accounting.rare_steps import ComposedProfile, SplitComposition, WorstComposition, compose_with_rare_steps

#: Below this an epsilon is as good as zero when widths are compared with it.
TINY = 1e-7


#: A delta of which no lower bound was found is looked for so much deeper at least, in logarithms.
_DEEPER = 20.0


#: The least slope of ln delta that is believed.
_FLAT = 1e-6


#: Share of a power's width that discretisation may take: chords take the rest.
_CHORDS = 0.3


@dataclass(frozen=True)
class Question:
    """Epsilon at a delta, delta at an epsilon, a test's power at a level or its level at a power: one is given."""

    log_delta: float | None = None
    epsilon: float | None = None
    log_level: float | None = None
    log_power: float | None = None

    @property
    def testing(self) -> bool:
        """Whether it is about tests: decided by one line of the profile, which may be at any epsilon."""
        return self.log_level is not None or self.log_power is not None

    def bound_test(self, low: LogProfile, high: LogProfile, start: float, scale: float) -> tuple[Interval, float]:
        """The answer about tests, and the epsilon that decides it; see ``duality``."""
        if self.log_level is not None:
            return bound_power(self.log_level, low, high, start, scale)
        assert self.log_power is not None
        return bound_level(self.log_power, low, high, start, scale)

    def line(self, log_delta: float, epsilon: float) -> float:
        """What is least at the epsilon that decides: ln of the line's power, or minus ln of its level."""
        if self.log_level is not None:
            return float(np.logaddexp(log_delta, epsilon + self.log_level))
        assert self.log_power is not None
        return epsilon - math.log(max(-math.expm1(min(0.0, log_delta - self.log_power)), 1e-300))

    @property
    def trivial(self) -> Interval:
        """What holds for the answer about tests anyway: power is never below the level."""
        if self.log_level is not None:
            return Interval(math.exp(self.log_level) * (1.0 - 4.0 * EPS), 1.0)
        assert self.log_power is not None
        return Interval(0.0, math.exp(self.log_power) * (1.0 + 4.0 * EPS))


@dataclass
class PendingAnswer:
    """A question, where its answer lies as far as is known, and the interval that certainly holds it.

    log_delta: ln of the delta in question, as far as finite losses make it. ``saddle`` is moved, and ``log_delta``
    deepened, as compositions show where the answer really is. enough: of an answer that is certainly no larger than
    this no more is asked.
    """

    question: Question
    saddle: SaddlePoint
    answer: Interval
    log_delta: float
    enough: float = -math.inf

    @property
    def is_needless(self) -> bool:
        """Whether the answer is certainly no larger than what is ``enough``."""
        return self.answer.upper <= self.enough

    @property
    def position(self) -> float:
        """The epsilon asked for, or the one expected; for a test, that whose line decides it."""
        return self.saddle.epsilon if self.question.epsilon is None else self.question.epsilon

    def locate(self, above: ComposedProfile) -> None:
        """Replace the estimate of the answer's place, and of the profile's slope there, by what was found."""
        low, high = self.answer.lower, self.answer.upper
        if self.question.testing:
            epsilon, step = self.saddle.epsilon, max(2.0 * above.spacing, 1e-3 * self.saddle.spread)
            log_delta = above.log_finite(epsilon)
            tilt = (above.log_finite(epsilon - step) - above.log_finite(epsilon + step)) / (2.0 * step)
            if math.isfinite(log_delta) and _FLAT < tilt < math.inf:
                self.saddle, self.log_delta = replace(self.saddle, tilt=tilt, log_delta=log_delta), log_delta
            return
        if self.question.log_delta is None:
            self.log_delta = math.log(low) if low > 0.0 else self.log_delta - max(_DEEPER, 0.4 * abs(self.log_delta))
            return
        if not 0.0 < low <= high < math.inf:
            return
        middle = 0.5 * (low + high)
        step = max(2.0 * above.spacing, 1e-3 * middle)
        fall = above.log_finite(max(0.0, middle - step)) - above.log_finite(middle + step)
        slope = fall / (min(middle, step) + step)
        if math.isfinite(slope) and slope > 0.0:
            self.saddle = replace(self.saddle, epsilon=middle, tilt=slope)

    def positions(self) -> list[float]:
        """Where the composition is wanted, so far as it can be moved: not for a delta at a given epsilon."""
        if self.question.testing:
            return [self.saddle.epsilon]
        ends = (self.answer.lower, self.answer.upper)
        return [] if self.question.log_delta is None else [x for x in ends if 0.0 < x < math.inf]

    def tolerance(self, width: float) -> float:
        """The error in epsilon that ``width`` leaves."""
        if self.question.log_level is not None:  # power = delta + level e^epsilon, of which the second is tilt * delta
            return width * _CHORDS * (1.0 + self.saddle.tilt) / self.saddle.tilt
        if self.question.log_power is not None:
            return width * _CHORDS
        if self.question.log_delta is None:
            return width / self.saddle.tilt
        return width * max(self.saddle.epsilon, TINY)

    def is_within(self, width: float) -> bool:
        """Whether the interval is as narrow as asked, or need not be."""
        if self.is_needless:
            return True
        least = 0.0 if self.question.log_delta is None else TINY
        return self.answer.width <= width * max(self.answer.upper, least)


def truncate_phases(
    phases: Sequence[tuple[Pair, int]], direction: Direction, log_delta: float, log_share: float
) -> list[tuple[TruncatedPair, int]]:
    """What of each phase's step matters, all but a share of delta over all steps; with its steps."""
    log_far = log_share - math.log(sum(count for _, count in phases))
    return [(pair.truncate(direction, log_far + min(log_delta, 0.0), log_far), count) for pair, count in phases]


def largest_loss(phases: Sequence[tuple[Pair, int]], direction: Direction) -> float:
    """No finite composed loss is larger."""
    return math.fsum(pair.largest_loss(direction) * steps for pair, steps in phases) * (1.0 + 1e-15)


def infinite_mass(phases: Sequence[tuple[Pair, int]], direction: Direction) -> Interval:
    """The probability that the composed loss is infinite."""
    value = chance_of_any([(pair.infinite_mass(direction), steps) for pair, steps in phases])
    return Interval(value * (1.0 - 1e-12), min(1.0, value * (1.0 + 1e-12)))


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
    """The least epsilon whose upper bound of delta is within the target, at most ``within`` of itself too large;
    infinite if there is none.
    """
    passed = next((i for i, epsilon in enumerate(grid) if upper_at(epsilon) <= log_delta), None)
    if passed is None:
        return math.inf
    over = grid[max(0, passed - 1)]
    return crossing(lambda epsilon: log_delta - upper_at(epsilon), grid[passed], over, within=within * over)[0]


def _largest_epsilon(lower_at: LogProfile, log_delta: float, grid: Sequence[float], within: float) -> float:
    """The largest epsilon whose lower bound of delta reaches the target, at most ``within`` of itself too small; 0 if
    there is none.
    """
    passed = next((i for i in reversed(range(len(grid))) if lower_at(grid[i]) >= log_delta), None)
    if passed is None:
        return 0.0
    under = grid[min(passed + 1, len(grid) - 1)]
    return crossing(lambda epsilon: lower_at(epsilon) - log_delta, grid[passed], under, within=within * grid[passed])[0]


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
    """Whether each upper end of epsilon is surely below all that holds without a grid; False also where that is not
    plain.
    """
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


#: How answers say that they come from composed grids.
GRID = "pld/connect-the-dots"


#: Questions whose epsilons lie within so many tilted standard deviations share a composition: the first, and all.
_SHARED_COARSE, _SHARED = 8.0, 4.0


#: Within this difference besides: a composition loses a factor e^(difference / 2) of precision, unless it is so spread
#: out that its sums are taken without cancelling.
_DIFFERENCE, _LONG = 16.0, 64.0


#: Tables for first estimates are made for every so many units of ln delta.
_SHELF = 12.0


#: An epsilon estimated below this many standard deviations may well be zero.
_NEAR_ZERO = 0.1


#: The least slope of ln delta at which powers are looked for.
_FLATTEST = 1e-5


#: ln of a delta that may be so near one that a test's power is.
_NEAR_ONE = -0.05


#: Share of delta that the cut tails may hold in an estimate, ln.
_SHARE = math.log(1e-6)


def solve(
    phases: Sequence[tuple[Pair, int]],
    direction: Direction,
    questions: Sequence[Question],
    widths: Sequence[float],
    beside: Sequence[Interval | None] | None = None,
) -> list[Interval]:
    """Certified answers for the composition of ``phases`` (pair, steps) in one direction, in the order asked.

    widths: the relative width wanted of each answer; where the grid limits do not allow it, intervals come out wider.
    beside: for each question the other direction's answer, where only the larger of both counts, or None. An epsilon
    that is certainly no larger is not narrowed then: what it is below that is nobody's question, unless the other one
    is wider than asked: then this one's lower end may be the best there is.
    """
    if beside is None:
        return _solve(phases, (direction,), questions, widths)
    enough = [
        known.upper if known is not None and known.relative_width <= width else -math.inf
        for known, width in zip(beside, widths, strict=True)
    ]
    # Where one direction's epsilon is 0 so is the other's: delta at 0, the total variation distance, is one number.
    found = {
        i: known
        for i, (known, question) in enumerate(zip(beside, questions, strict=True))
        if known is not None and known.upper == 0.0 and question.log_delta is not None
    }
    rest = [i for i in range(len(questions)) if i not in found]
    asked, of_each, least = [questions[i] for i in rest], [widths[i] for i in rest], [enough[i] for i in rest]
    found.update(zip(rest, _solve(phases, (direction,), asked, of_each, least), strict=True))
    return [found[i] for i in range(len(questions))]


def solve_larger(
    phases: Sequence[tuple[Pair, int]], questions: Sequence[Question], widths: Sequence[float]
) -> list[Interval]:
    """The larger of both directions' answers about epsilon or delta, each about one direction's profile."""
    first = solve(phases, DIRECTIONS[0], questions, widths)
    second = solve(phases, DIRECTIONS[1], questions, widths, first)
    return [one.worse(other) for one, other in zip(first, second, strict=True)]


def solve_worst(
    phases: Sequence[tuple[Pair, int]], questions: Sequence[Question], widths: Sequence[float]
) -> list[Interval]:
    """The same for powers where at each epsilon the worse of both directions' profiles counts."""
    return _solve(phases, DIRECTIONS, questions, widths)


def _solve(
    phases: Sequence[tuple[Pair, int]],
    sides: Sequence[Direction],
    questions: Sequence[Question],
    widths: Sequence[float],
    enough: Sequence[float] | None = None,
) -> list[Interval]:
    """``enough``: for each question a value; of answers that are certainly no larger no more is asked."""
    if len(phases) == 1 and phases[0][1] == 1:
        exact = [answer_one_step(phases[0][0], sides, question) for question in questions]
        if all(interval is not None for interval in exact):
            return [interval.by(ONE_STEP) for interval in exact if interval is not None]
    opened = _open(phases, sides, questions)
    for item, value in zip(opened, enough or (), strict=enough is not None):
        item.enough = value
    unanswered = [
        (item, width)
        for item, width in zip(opened, widths, strict=True)
        if not (item.is_needless or _settled(item, width))
    ]
    groups = [
        GridRefinement(phases, sides, shared) for shared in _neighbours([item for item, _ in unanswered], wide=True)
    ]
    for group in groups:
        group.begin()
    # Coarsest first: an answer lies inside those that it would have if no other were asked for more finely than that.
    for width in sorted({width for _, width in unanswered}, reverse=True):
        wanted = {id(item) for item, of_item in unanswered if of_item <= width}
        for group in groups:
            for near in _neighbours([item for item in group.items if id(item) in wanted]):
                if not all(item.is_within(width) for item in near):
                    group.part(near).refine(width)
    return [item.answer.by(GRID) for item in opened]


def _neighbours(items: Sequence[PendingAnswer], *, wide: bool = False) -> list[list[PendingAnswer]]:
    """The items by position, in groups that share a composition each; ``wide``: a coarse one."""
    groups: list[list[PendingAnswer]] = []
    reach = -math.inf
    for item in sorted(items, key=lambda item: item.position):
        if item.position > reach:
            groups.append([])
            spread = item.saddle.spread
            reach = (_SHARED_COARSE if wide else _SHARED) * spread
            reach = item.position + (min(reach, _DIFFERENCE) if spread < _LONG else reach)
        groups[-1].append(item)
    return groups


def _settled(item: PendingAnswer, width: float) -> bool:
    """Whether it is a point, or a test known well enough or where the profile is so flat that no grid tells of it."""
    if item.answer.width == 0.0:
        return True
    return item.question.testing and (item.is_within(width) or item.saddle.tilt < _FLATTEST)


def _open(
    phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], questions: Sequence[Question]
) -> list[PendingAnswer]:
    """What is known of answers beforehand, and where they lie at first estimate."""
    epsilons = [question for question in questions if question.log_delta is not None]
    opened = iter(_open_epsilons(phases, sides[0], epsilons) if epsilons else ())
    return [
        _open_test(phases, sides, question)
        if question.testing
        else _open_delta(phases, sides[0], question)
        if question.log_delta is None
        else next(opened)
        for question in questions
    ]


def _open_epsilons(
    phases: Sequence[tuple[Pair, int]], direction: Direction, questions: Sequence[Question]
) -> list[PendingAnswer]:
    """Of epsilons at deltas; those of similar size are looked for in one table."""
    certain = infinite_mass(phases, direction)
    finite = []
    for question in questions:
        assert question.log_delta is not None
        log_delta = question.log_delta
        if certain.upper > 0.0:  # what finite losses may add
            log_delta += math.log(max(-math.expm1(min(math.log(certain.upper) - log_delta, 0.0)), 1e-300))
        finite.append(log_delta)
    shelves: dict[int, list[int]] = {}
    for i, log_delta in enumerate(finite):
        shelves.setdefault(math.floor(log_delta / _SHELF) if len(finite) > 1 else 0, []).append(i)
    opened: dict[int, PendingAnswer] = {}
    at_zero = functools.cache(lambda: solve(phases, direction, [Question(epsilon=0.0)], [1e-3])[0])
    for chosen in shelves.values():
        logs = [finite[i] for i in chosen]
        cumulants = Cumulants.of(truncate_phases(phases, direction, min(logs), _SHARE))
        for i, saddle in zip(chosen, cumulants.for_deltas(logs), strict=True):
            opened[i] = _open_epsilon(phases, direction, questions[i], finite[i], cumulants, saddle, at_zero)
    return [opened[i] for i in range(len(questions))]


def _open_epsilon(
    phases: Sequence[tuple[Pair, int]],
    direction: Direction,
    question: Question,
    log_delta: float,
    cumulants: Cumulants,
    saddle: SaddlePoint,
    at_zero: Callable[[], Interval],
) -> PendingAnswer:
    """``log_delta``: what finite losses may add to it; ``saddle``: the estimate for that; ``at_zero``: delta there."""
    assert question.log_delta is not None
    certain, bounds = infinite_mass(phases, direction), Interval(0.0, largest_loss(phases, direction))
    if certain.upper > 0.0 and question.log_delta <= math.log(certain.upper) + 4.0 * EPS * abs(question.log_delta):
        surely = question.log_delta < math.log(certain.lower) - 4.0 * EPS * abs(question.log_delta)
        answer = Interval(math.inf if surely else 0.0, math.inf)
        return PendingAnswer(question, cumulants.for_epsilon(0.0), answer, log_delta)
    if saddle.epsilon > _NEAR_ZERO * saddle.spread:
        return PendingAnswer(question, saddle, bounds, log_delta)
    # A delta so large that epsilon is 0 or little more: decided by delta at 0.
    there, saddle = at_zero(), cumulants.for_epsilon(0.0)
    if math.log(there.upper) <= question.log_delta:
        return PendingAnswer(question, saddle, Interval(0.0, 0.0), log_delta)
    gap = math.log(0.5 * (there.lower + there.upper)) - question.log_delta
    return PendingAnswer(question, cumulants.for_epsilon(max(gap / saddle.tilt, TINY)), bounds, log_delta)


def _open_delta(phases: Sequence[tuple[Pair, int]], direction: Direction, question: Question) -> PendingAnswer:
    epsilon = question.epsilon
    assert epsilon is not None
    certain = infinite_mass(phases, direction)
    bounds = Interval(max(certain.lower, -math.expm1(min(epsilon, 0.0))), 1.0)
    if epsilon >= largest_loss(phases, direction):
        bounds = certain  # no finite loss is that large
    saddle = _deep_enough(phases, direction, lambda cumulants: cumulants.for_epsilon(epsilon))
    return PendingAnswer(question, saddle, bounds, saddle.log_delta)


def _open_test(phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], question: Question) -> PendingAnswer:
    def find(cumulants: Cumulants) -> SaddlePoint:
        if question.log_level is not None:
            return cumulants.for_level(question.log_level)
        assert question.log_power is not None
        return cumulants.for_power(question.log_power)

    saddles = [_deep_enough(phases, side, find) for side in sides]
    if len(sides) > 1:  # each direction's own line may be worse for the other: the two meet at 0 at the latest
        tables = [
            Cumulants.of(truncate_phases(phases, side, min(s.log_delta for s in saddles), _SHARE)) for side in sides
        ]
        places = {*(saddle.epsilon for saddle in saddles), 0.0}
        worst = [pick_worst([table.for_epsilon(place) for table in tables]) for place in places]
        saddles = [min(worst, key=lambda saddle: question.line(saddle.log_delta, saddle.epsilon))]
    bounds = question.trivial
    if question.log_level is not None and saddles[0].log_delta > _NEAR_ONE:
        # outcomes of loss over -ln(level) have a level below it, and so much power
        sure = Question(epsilon=-question.log_level)
        bounds = Interval(max([bounds.lower, *(solve(phases, side, [sure], [1e-3])[0].lower for side in sides)]), 1.0)
    return PendingAnswer(question, saddles[0], bounds, saddles[0].log_delta)


def _deep_enough(
    phases: Sequence[tuple[Pair, int]], direction: Direction, find: Callable[[Cumulants], SaddlePoint]
) -> SaddlePoint:
    """A saddle point from tables whose cut tails are far below its delta."""
    log_delta = -30.0
    while True:
        saddle = find(Cumulants.of(truncate_phases(phases, direction, log_delta, _SHARE)))
        if saddle.log_delta >= log_delta or log_delta < -1e4:
            return saddle
        log_delta = saddle.log_delta - 5.0
