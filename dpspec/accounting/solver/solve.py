"""From questions about a composition to certified intervals: one step exactly, more of them grid after grid.

Some answers need no grid: plain Gaussian steps, one step of a known profile, and what holds of any composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scipy.special import ndtri_exp

from dpspec.accounting import gaussian
from dpspec.accounting.numerics.floats import DIRECTIONS, EPS, Direction
from dpspec.accounting.numerics.interval import Interval
from dpspec.accounting.numerics.search import bisect
from dpspec.accounting.pair import Pair
from dpspec.accounting.solver.question import (
    TINY,
    Cumulants,
    PendingAnswer,
    Question,
    SaddlePoint,
    infinite_mass,
    largest_loss,
    truncate_phases,
)
from dpspec.accounting.solver.refinement import GridRefinement, pick_worst

#: How answers say that they come from the formula of a plain Gaussian pair: that of the steps, or one that dominates.
CLOSED, DOMINATED = "closed form", "closed form of a dominating pair"

#: How an epsilon says that no loss is larger.
LARGEST = "largest loss"

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
    found: Interval, question: Question, phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction]
) -> Interval:
    """``found``, cut by ``bound_without_grid`` where that is below it; mostly it is not, which one value tells."""
    if _is_below_without_grid(found.upper, question, phases, sides):
        return found
    loose = bound_without_grid(question, phases, sides)
    if found.upper <= loose.upper:
        return found
    return Interval(min(found.lower, loose.upper), loose.upper, loose.method, found.lower_method)


def _is_below_without_grid(
    epsilon: float, question: Question, phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction]
) -> bool:
    """Whether an ``epsilon`` is surely below all that holds without a grid; False also where that is not plain."""
    mu = math.sqrt(math.fsum(steps * pair.dominating_effect * pair.dominating_effect for pair, steps in phases))
    if question.log_delta is None or not (0.0 < mu < math.inf and epsilon < math.inf):
        return False
    if epsilon > max(largest_loss(phases, side) for side in sides):
        return False
    # More than both roundings above the delta asked: the closed form's bisection ends beyond.
    room = 4.0 * gaussian.relative_error(epsilon, mu) + 16.0 * EPS * abs(question.log_delta)
    return room < 1.0 and float(gaussian.log_delta(epsilon, mu)) > question.log_delta + room


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
    ends = bisect(
        lambda epsilon: bounds(epsilon)[end] > log_delta, low, high, enough=lambda a, b: b - a <= 2.0 * EPS * b
    )
    return ends[end]


#: How answers say that they come from composed grids, or from the exact profile of the only step that there is.
GRID, ONE_STEP = "pld/connect-the-dots", "exact profile of one step"

#: Questions whose epsilons lie within so many tilted standard deviations share one composition.
_SHARED = 4.0

#: An epsilon estimated below this many standard deviations may well be zero.
_NEAR_ZERO = 0.1

#: The least slope of ln delta at which powers are looked for.
_FLATTEST = 1e-5

#: ln of a delta that may be so near one that a test's power is.
_NEAR_ONE = -0.05

#: Share of delta that the cut tails may hold in an estimate, ln.
_SHARE = math.log(1e-6)


def solve(
    phases: Sequence[tuple[Pair, int]], direction: Direction, questions: Sequence[Question], width: float
) -> list[Interval]:
    """Certified answers for the composition of ``phases`` (pair, steps) in one direction, in the order asked.

    width: the relative width wanted; where the grid limits do not allow it, intervals come out wider.
    """
    return _solve(phases, (direction,), questions, width)


def solve_larger(phases: Sequence[tuple[Pair, int]], questions: Sequence[Question], width: float) -> list[Interval]:
    """The larger of both directions' answers about epsilon or delta, each about one direction's profile.

    The second direction's is narrowed only until it is certainly no larger than the first's upper end: what it is below
    that is nobody's question, unless the first is wider than asked: then the second's lower end may be the best there
    is.
    """
    first = solve(phases, DIRECTIONS[0], questions, width)
    enough = [found.upper if found.relative_width <= width else -math.inf for found in first]
    second = _solve(phases, DIRECTIONS[1:], questions, width, enough)
    return [one.worse(other) for one, other in zip(first, second, strict=True)]


def solve_worst(phases: Sequence[tuple[Pair, int]], questions: Sequence[Question], width: float) -> list[Interval]:
    """The same for powers where at each epsilon the worse of both directions' profiles counts."""
    return _solve(phases, DIRECTIONS, questions, width)


def _solve(
    phases: Sequence[tuple[Pair, int]],
    sides: Sequence[Direction],
    questions: Sequence[Question],
    width: float,
    enough: Sequence[float] | None = None,
) -> list[Interval]:
    """``enough``: for each question a value; of answers that are certainly no larger no more is asked."""
    if len(phases) == 1 and phases[0][1] == 1:
        exact = [answer_one_step(phases[0][0], sides, question) for question in questions]
        if all(interval is not None for interval in exact):
            return [interval.by(ONE_STEP) for interval in exact if interval is not None]
    opened = [_open(phases, sides, question) for question in questions]
    for item, value in zip(opened, enough or (), strict=enough is not None):
        item.enough = value
    unanswered = [i for i, item in enumerate(opened) if not (item.is_needless or _settled(item, width))]
    order = sorted(unanswered, key=lambda i: opened[i].position)
    while order:
        first = opened[order[0]]
        reach = first.position + _SHARED * first.saddle.spread
        shared = [i for i in order if opened[i].position <= reach]
        order = order[len(shared) :]
        GridRefinement(phases, sides, [opened[i] for i in shared]).refine(width)
    return [item.answer.by(GRID) for item in opened]


def _settled(item: PendingAnswer, width: float) -> bool:
    """Whether it is a point, or a test known well enough or where the profile is so flat that no grid tells of it."""
    if item.answer.width == 0.0:
        return True
    return item.question.testing and (item.is_within(width) or item.saddle.tilt < _FLATTEST)


def _open(phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], question: Question) -> PendingAnswer:
    if question.testing:
        return _open_test(phases, sides, question)
    (direction,) = sides
    if question.log_delta is None:
        return _open_delta(phases, direction, question)
    certain = infinite_mass(phases, direction)
    log_delta, bounds = question.log_delta, Interval(0.0, largest_loss(phases, direction))
    if certain.upper > 0.0:  # what finite losses may add
        log_delta += math.log(max(-math.expm1(min(math.log(certain.upper) - log_delta, 0.0)), 1e-300))
    cumulants = Cumulants.of(truncate_phases(phases, direction, log_delta, _SHARE))
    if certain.upper > 0.0 and question.log_delta <= math.log(certain.upper) + 4.0 * EPS * abs(question.log_delta):
        surely = question.log_delta < math.log(certain.lower) - 4.0 * EPS * abs(question.log_delta)
        answer = Interval(math.inf if surely else 0.0, math.inf)
        return PendingAnswer(question, cumulants.for_epsilon(0.0), answer, log_delta)
    saddle = cumulants.for_delta(log_delta)
    if saddle.epsilon > _NEAR_ZERO * saddle.spread:
        return PendingAnswer(question, saddle, bounds, log_delta)
    # A delta so large that epsilon is 0 or little more: decided by delta at 0.
    at_zero = solve(phases, direction, [Question(epsilon=0.0)], 1e-3)[0]
    saddle = cumulants.for_epsilon(0.0)
    if math.log(at_zero.upper) <= question.log_delta:
        return PendingAnswer(question, saddle, Interval(0.0, 0.0), log_delta)
    gap = math.log(0.5 * (at_zero.lower + at_zero.upper)) - question.log_delta
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
        bounds = Interval(max([bounds.lower, *(solve(phases, side, [sure], 1e-3)[0].lower for side in sides)]), 1.0)
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
