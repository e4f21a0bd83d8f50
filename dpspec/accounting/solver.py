"""Certified answers about a composition: first estimates, then grids, for questions that share compositions."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import numpy as np

from dpspec.accounting.composition import Cumulants, SaddlePoint, loss_extremes
from dpspec.accounting.grid import Pair
from dpspec.accounting.numerics import EPS, Direction, Interval
from dpspec.accounting.profiles import ONE_STEP, TESTS, Question, one_step_answer
from dpspec.accounting.refinement import TINY, GridRefinement, PendingAnswer, truncate_phases

#: Method of an answer from composed grids.
GRID = "pld/connect-the-dots"

#: ln of the share of delta in the cut tails of an estimate.
_SHARE = math.log(1e-6)

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
        widths: the relative width wanted of each answer.
        other: for one direction and each question, the other direction's answer or None, if only the larger of both
            counts. An epsilon that is certainly no larger is not narrowed if the other one is narrow enough.
    """
    if len(sides) > 1 and not any(question.kind in TESTS for question in questions):
        first = solve(phases, sides[:1], questions, widths)
        second = solve(phases, sides[1:], questions, widths, first)
        return list(map(Interval.worse, first, second))
    found = [Interval(0.0, math.inf)] * len(questions)
    rest, asked, enough = [], [], []
    for i, question in enumerate(questions):
        known = other[i] if other else None
        if known is not None and known.upper == 0.0 and question.kind == "epsilon":
            found[i] = known  # delta at 0, the total variation distance, is the same in both directions
            continue
        exact = one_step_answer(phases[0][0], sides, question) if len(phases) == phases[0][1] == 1 else None
        if exact is not None:
            found[i] = exact.by(ONE_STEP)
            continue
        rest.append(i)
        asked.append(question)
        enough.append(known.upper if known is not None and known.relative_width <= widths[i] else -math.inf)
    items = _open(phases, sides, asked)
    pending = []
    wanted: dict[int, float] = {}  # by the identity of the item
    for item, i, largest in zip(items, rest, enough, strict=True):
        item.enough = largest
        settled = item.question.kind in TESTS and (item.is_within(widths[i]) or item.saddle.tilt < _FLATTEST)
        if not (item.is_needless or item.answer.width == 0.0 or settled):
            pending.append(item)
            wanted[id(item)] = widths[i]
    groups = []
    for shared in _neighbours(pending, wide=True):
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
    return found


def _neighbours(items: Sequence[PendingAnswer], *, wide: bool = False) -> list[list[PendingAnswer]]:
    groups: list[list[PendingAnswer]] = []
    reach = -math.inf
    for item in sorted(items, key=operator.attrgetter("saddle.epsilon")):
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
    largest, infinite = loss_extremes(phases, sides[0])
    for question in questions:
        if question.kind in TESTS:
            opened.append(_open_test(phases, sides, question))
        elif question.kind == "delta":
            bounds = Interval(max(infinite.lower, -math.expm1(min(question.value, 0.0))), 1.0)
            if question.value >= largest:
                bounds = infinite  # no finite loss is that large
            saddle = _deep_enough(phases, sides[0], question)
            opened.append(PendingAnswer(question, saddle, bounds, saddle.log_delta))
        else:
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
        logs = [item.log_delta for item in items]
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
                    item.saddle = cumulants.find(epsilon=max(gap / item.saddle.tilt, TINY))
    return opened


def _open_test(phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction], question: Question) -> PendingAnswer:
    saddles = [_deep_enough(phases, side, question) for side in sides]
    if len(sides) > 1:  # each direction's own line may be worse for the other: the two meet at 0 at the latest
        smallest = min(saddle.log_delta for saddle in saddles)
        tables = [Cumulants(truncate_phases(phases, side, smallest, _SHARE)) for side in sides]
        places = {*(saddle.epsilon for saddle in saddles), 0.0}
        found = [[table.find(epsilon=place) for table in tables] for place in places]
        worst = [max(points, key=lambda saddle: saddle.log_delta) for points in found]

        def line(saddle: SaddlePoint) -> float:
            """Minimal for the line that decides the test: ln of its power, or minus ln of its level."""
            if question.kind == "power":
                return float(np.logaddexp(saddle.log_delta, saddle.epsilon + question.value))
            gap = -math.expm1(min(0.0, saddle.log_delta - question.value))
            return saddle.epsilon - math.log(max(gap, 1e-300))

        saddles = [min(worst, key=line)]
    bounds = question.trivial
    if question.kind == "power" and saddles[0].log_delta > _NEAR_ONE:
        # outcomes of loss over -ln(level) have a level below it, and the power is their probability at least
        sure = Question("delta", -question.value)
        lower = max(solve(phases, (side,), [sure], [1e-3])[0].lower for side in sides)
        bounds = Interval(max(bounds.lower, lower), 1.0)
    return PendingAnswer(question, saddles[0], bounds, saddles[0].log_delta)


def _deep_enough(phases: Sequence[tuple[Pair, int]], direction: Direction, question: Question) -> SaddlePoint:
    """A saddle point from tables whose cut tails are far below its delta."""
    log_delta, value = -30.0, question.value
    while True:
        cumulants = Cumulants(truncate_phases(phases, direction, log_delta, _SHARE))
        given = {"delta": "epsilon", "power": "log_level", "level": "log_power"}[question.kind]
        saddle = cumulants.find(**{given: value})
        if saddle.log_delta >= log_delta or log_delta < -1e4:
            return saddle
        log_delta = saddle.log_delta - 5.0
