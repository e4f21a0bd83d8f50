"""From questions about a composition in one direction to certified intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpspec.accounting.checks import Direction
from dpspec.accounting.interval import Interval
from dpspec.accounting.ladder import Ladder
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.onestep import answer
from dpspec.accounting.questions import TINY, Open, Question, largest_loss, ranges
from dpspec.accounting.saddle import Cumulants

#: Questions whose epsilons lie within so many tilted standard deviations share one composition.
_SHARED = 4.0

#: An epsilon estimated below this many standard deviations may well be zero.
_NEAR_ZERO = 0.1

#: Share of delta that the cut tails may hold in an estimate, ln.
_SHARE = math.log(1e-6)


def solve(
    phases: Sequence[tuple[Mixture, int]], direction: Direction, questions: Sequence[Question], width: float
) -> list[Interval]:
    """Certified answers for the composition of ``phases`` (pair, steps), in the order asked.

    width: the relative width wanted; where the grid limits do not allow it, intervals come out wider.
    """
    if len(phases) == 1 and phases[0][1] == 1:
        return [answer(phases[0][0].ratio, direction, question) for question in questions]
    opened = [_open(phases, direction, question) for question in questions]
    order = sorted((i for i in range(len(opened)) if opened[i].answer.width > 0.0), key=lambda i: opened[i].at)
    while order:
        first = opened[order[0]]
        reach = first.at + _SHARED * first.saddle.spread
        shared = [i for i in order if opened[i].at <= reach]
        order = order[len(shared) :]
        Ladder(phases, direction, [opened[i] for i in shared]).climb(width)
    return [item.answer for item in opened]


def _open(phases: Sequence[tuple[Mixture, int]], direction: Direction, question: Question) -> Open:
    if question.log_delta is None:
        assert question.epsilon is not None
        return _open_delta(phases, direction, question.epsilon)
    cumulants = Cumulants.of(ranges(phases, direction, question.log_delta, _SHARE), direction)
    saddle = cumulants.for_delta(question.log_delta)
    known = Interval(0.0, largest_loss(phases, direction))
    if saddle.epsilon > _NEAR_ZERO * saddle.spread:
        return Open(question, saddle, known)
    # A delta so large that epsilon is 0 or little more: decided by delta at 0.
    at_zero = solve(phases, direction, [Question(epsilon=0.0)], 1e-3)[0]
    saddle = cumulants.for_epsilon(0.0)
    if math.log(at_zero.upper) <= question.log_delta:
        return Open(question, saddle, Interval(0.0, 0.0))
    gap = math.log(0.5 * (at_zero.lower + at_zero.upper)) - question.log_delta
    return Open(question, cumulants.for_epsilon(max(gap / saddle.tilt, TINY)), known)


def _open_delta(phases: Sequence[tuple[Mixture, int]], direction: Direction, epsilon: float) -> Open:
    known = Interval(max(0.0, -math.expm1(min(epsilon, 0.0))), 1.0)
    if epsilon >= largest_loss(phases, direction):
        known = Interval(0.0, 0.0)  # no loss is that large
    log_delta = -30.0
    while True:
        saddle = Cumulants.of(ranges(phases, direction, log_delta, _SHARE), direction).for_epsilon(epsilon)
        if saddle.log_delta >= log_delta or log_delta < -1e4:
            return Open(Question(epsilon=epsilon), saddle, known)
        log_delta = saddle.log_delta - 5.0
