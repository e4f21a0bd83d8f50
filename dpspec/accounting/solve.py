"""From questions about a composition in one direction to certified intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dpspec.accounting.checks import DIRECTIONS, EPS, Direction
from dpspec.accounting.interval import Interval
from dpspec.accounting.ladder import Ladder, worst
from dpspec.accounting.onestep import answer
from dpspec.accounting.pair import Pair
from dpspec.accounting.questions import TINY, Open, Question, infinite_mass, largest_loss, parts
from dpspec.accounting.saddle import Cumulants, Saddle

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


def solve_worst(phases: Sequence[tuple[Pair, int]], questions: Sequence[Question], width: float) -> list[Interval]:
    """The same for powers where at each epsilon the worse of both directions' profiles counts."""
    return _solve(phases, DIRECTIONS, questions, width)


def _solve(
    phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], questions: Sequence[Question], width: float
) -> list[Interval]:
    if len(phases) == 1 and phases[0][1] == 1:
        exact = [answer(phases[0][0], sides, question) for question in questions]
        if all(interval is not None for interval in exact):
            return [interval for interval in exact if interval is not None]
    opened = [_open(phases, sides, question) for question in questions]
    left = [i for i, item in enumerate(opened) if item.answer.width > 0.0 and not _settled(item, width)]
    order = sorted(left, key=lambda i: opened[i].at)
    while order:
        first = opened[order[0]]
        reach = first.at + _SHARED * first.saddle.spread
        shared = [i for i in order if opened[i].at <= reach]
        order = order[len(shared) :]
        Ladder(phases, sides, [opened[i] for i in shared]).climb(width)
    return [item.answer for item in opened]


def _settled(item: Open, width: float) -> bool:
    """Whether a test is known well enough, or decided where the profile is so flat that a grid tells nothing of it."""
    return item.question.testing and (item.done(width) or item.saddle.tilt < _FLATTEST)


def _open(phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], question: Question) -> Open:
    if question.testing:
        return _open_test(phases, sides, question)
    (direction,) = sides
    if question.log_delta is None:
        return _open_delta(phases, direction, question)
    certain = infinite_mass(phases, direction)
    log_delta, known = question.log_delta, Interval(0.0, largest_loss(phases, direction))
    if certain.upper > 0.0:  # what finite losses may add
        log_delta += math.log(max(-math.expm1(min(math.log(certain.upper) - log_delta, 0.0)), 1e-300))
    cumulants = Cumulants.of(parts(phases, direction, log_delta, _SHARE))
    if certain.upper > 0.0 and question.log_delta <= math.log(certain.upper) + 4.0 * EPS * abs(question.log_delta):
        surely = question.log_delta < math.log(certain.lower) - 4.0 * EPS * abs(question.log_delta)
        answer = Interval(math.inf if surely else 0.0, math.inf)
        return Open(question, cumulants.for_epsilon(0.0), answer, log_delta)
    saddle = cumulants.for_delta(log_delta)
    if saddle.epsilon > _NEAR_ZERO * saddle.spread:
        return Open(question, saddle, known, log_delta)
    # A delta so large that epsilon is 0 or little more: decided by delta at 0.
    at_zero = solve(phases, direction, [Question(epsilon=0.0)], 1e-3)[0]
    saddle = cumulants.for_epsilon(0.0)
    if math.log(at_zero.upper) <= question.log_delta:
        return Open(question, saddle, Interval(0.0, 0.0), log_delta)
    gap = math.log(0.5 * (at_zero.lower + at_zero.upper)) - question.log_delta
    return Open(question, cumulants.for_epsilon(max(gap / saddle.tilt, TINY)), known, log_delta)


def _open_delta(phases: Sequence[tuple[Pair, int]], direction: Direction, question: Question) -> Open:
    epsilon = question.epsilon
    assert epsilon is not None
    certain = infinite_mass(phases, direction)
    known = Interval(max(certain.lower, -math.expm1(min(epsilon, 0.0))), 1.0)
    if epsilon >= largest_loss(phases, direction):
        known = certain  # no finite loss is that large
    saddle = _deep_enough(phases, direction, lambda cumulants: cumulants.for_epsilon(epsilon))
    return Open(question, saddle, known, saddle.log_delta)


def _open_test(phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], question: Question) -> Open:
    def find(cumulants: Cumulants) -> Saddle:
        if question.log_level is not None:
            return cumulants.for_level(question.log_level)
        assert question.log_power is not None
        return cumulants.for_power(question.log_power)

    saddles = [_deep_enough(phases, side, find) for side in sides]
    if len(sides) > 1:  # each direction's own line may be worse for the other: the two meet at 0 at the latest
        tables = [Cumulants.of(parts(phases, side, min(s.log_delta for s in saddles), _SHARE)) for side in sides]
        places = {*(saddle.epsilon for saddle in saddles), 0.0}
        found = [worst([table.for_epsilon(place) for table in tables]) for place in places]
        saddles = [min(found, key=lambda saddle: question.line(saddle.log_delta, saddle.epsilon))]
    known = question.trivial
    if question.log_level is not None and saddles[0].log_delta > _NEAR_ONE:
        # outcomes of loss over -ln(level) have a level below it, and so much power
        sure = Question(epsilon=-question.log_level)
        known = Interval(max([known.lower, *(solve(phases, side, [sure], 1e-3)[0].lower for side in sides)]), 1.0)
    return Open(question, saddles[0], known, saddles[0].log_delta)


def _deep_enough(
    phases: Sequence[tuple[Pair, int]], direction: Direction, find: Callable[[Cumulants], Saddle]
) -> Saddle:
    """A saddle point from tables whose cut tails are far below its delta."""
    log_delta = -30.0
    while True:
        saddle = find(Cumulants.of(parts(phases, direction, log_delta, _SHARE)))
        if saddle.log_delta >= log_delta or log_delta < -1e4:
            return saddle
        log_delta = saddle.log_delta - 5.0
