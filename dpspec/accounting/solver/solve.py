"""From questions about a composition to certified intervals: one step exactly, more of them grid after grid."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from dpspec.accounting.numerics.floats import DIRECTIONS, EPS, Direction
from dpspec.accounting.numerics.interval import Interval
from dpspec.accounting.pair import Pair
from dpspec.accounting.solver.question import (
    TINY,
    PendingAnswer,
    Question,
    infinite_mass,
    largest_loss,
    truncate_phases,
)
from dpspec.accounting.solver.refinement import GridRefinement
from dpspec.accounting.solver.saddle import Cumulants, SaddlePoint, pick_worst
from dpspec.accounting.solver.without_grid import ONE_STEP, answer_one_step

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
