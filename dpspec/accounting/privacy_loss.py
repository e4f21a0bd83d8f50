"""The privacy loss of a composed mechanism as certified intervals, in both directions.

>>> from dpspec.accounting import Mixture, PrivacyLoss
>>> step = PrivacyLoss.of(Mixture.poisson(4, 0.01, 1.0))
>>> loss = step.compose(2000)
>>> epsilon = loss.epsilon(1e-6)
>>> epsilon.lower <= 14.5349763823 <= epsilon.upper, epsilon.method
(True, 'pld/connect-the-dots')

An epsilon takes these steps:

1. ``PrivacyLoss.epsilons`` checks its arguments and asks a ``Question`` (``profiles``).
2. ``_cached_answers`` answers by the closed form of Gaussian steps, or by single steps (``single_steps``), if it can.
3. ``solve`` answers each direction: it estimates the answer at a saddle point (``Cumulants`` of ``profiles``),
4. and ``GridRefinement`` (``refinement``) narrows its interval by grids (``grid``, ``composition``), coarse to fine.
5. ``SingleSteps.require_agreements`` compares the interval with the exact profiles of single steps.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, overload

import numpy as np

from dpspec.accounting.grid import Pair
from dpspec.accounting.merging import MergedPhases
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.numerics import (
    DIRECTIONS,
    EPS,
    OPPOSITE,
    AnyDirection,
    Direction,
    Directions,
    Floats,
    Interval,
    accountant_direction,
    bounded_effect,
    inside,
    log_or_minus_infinity,
    log_ratio,
    one_direction,
    positive,
    strict,
    whole,
)
from dpspec.accounting.profiles import (
    CLOSED,
    MOMENT,
    ONE_STEP,
    TESTS,
    Question,
    SaddlePoint,
    estimates_of,
    gaussian_answer,
    is_smaller,
    loss_extremes,
    one_step_answer,
)
from dpspec.accounting.refinement import FIRST_SHARE, TINY, GridRefinement, PendingAnswer
from dpspec.accounting.single_steps import SingleSteps
from dpspec.renames import old_arguments

#: The default relative width of an interval.
WIDTH = 1e-4

#: Levels under this do not change one minus them.
_RESOLVED = 1e-13

#: A power above the second with a width below the first needs no other direction.
_ENOUGH, _CERTAIN = 1e-3, 0.99

#: One minus an error closer to another error than this is the same number.
_RESOLUTION = 0.25 * EPS

#: The largest relative width of the error of a test whose power is wanted.
_WIDEST = 0.1

#: An interval of Gaussian mixtures of this relative width may gain from the other direction.
_VERY_WIDE = 1e-2

#: A Gaussian step of a larger effect (sensitivity over sigma) is not discretized: losses would leave any grid.
_STEEPEST = 1e6


@dataclass(frozen=True)
class PrivacyLoss:
    """The composition of ``steps`` of each phase's pair, in one direction or as the worse of both.

    Adaptive composition is covered (Zhu, Dong and Wang 2022, Theorem 10). Each answer is an interval that contains the
    exact value for the pairs given, and names its method: discretization, cut tails, wrapped mass and rounding are
    charged. Basic functions are assumed as accurate as ``library_accuracy`` checks.

    Args:
        phases: (pair, steps) each; steps of equal pairs are added.
        direction: of the answers: ``remove``, ``add``, or the worse of ``both``. The attribute is the name that pairs
            use: ``present-first`` or ``absent-first``.
    """

    phases: tuple[tuple[Pair, int], ...]
    direction: AnyDirection = "both"

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", accountant_direction(self.direction))
        if not self.phases:
            raise ValueError("phases must not be empty")
        merged: dict[object, tuple[Pair, int]] = {}
        for pair, count in self.phases:
            if not isinstance(pair, Pair):
                raise ValueError(f"phases must hold pairs of a Pair and its steps, got {pair!r}")
            steps = whole("steps", count, 1)
            merged[pair.key] = (pair, merged.get(pair.key, (pair, 0))[1] + steps)
        object.__setattr__(self, "phases", tuple(merged.values()))

    @classmethod
    def of(cls, pair: Pair, direction: AnyDirection = "both") -> PrivacyLoss:
        """One step of ``pair``."""
        return cls(((pair, 1),), direction)

    @classmethod
    @old_arguments("dpspec.accounting.PrivacyLoss.gaussian")
    def gaussian(
        cls, std: float, sensitivity: float = 1.0, rate: float = 1.0, direction: AnyDirection = "both"
    ) -> PrivacyLoss:
        """One step of the Gaussian mechanism, of all records or of a Poisson sample at ``rate``; see ``Mixture``.

        ``std`` has the unit of ``sensitivity``; with a sensitivity of 1 it is the noise multiplier.
        """
        q, noise, moved = inside("rate", rate, one=True), positive("std", std), positive("sensitivity", sensitivity)
        bounded_effect("std", moved, noise)
        return cls.of(Mixture.poisson(1, q, noise / moved), direction)

    @classmethod
    def of_steps(
        cls,
        steps: Iterable[tuple[float, float, int]],
        *,
        group_size: int = 1,
        direction: AnyDirection = "both",
    ) -> PrivacyLoss:
        """Steps of the Gaussian mechanism on Poisson samples, as the history of an accountant lists them.

        Args:
            steps: (noise multiplier, sampling rate, number of steps) each; a rate of 1 means all records.
            group_size: Maximum number of records in which neighbors differ.
            direction: As in the constructor.

        >>> loss = PrivacyLoss.of_steps([(1.0, 0.01, 1500), (2.0, 0.01, 500)])
        >>> round(loss.epsilon(1e-6).upper, 3)
        2.625
        """
        phases = ((Mixture.poisson(group_size, rate, noise), count) for noise, rate, count in steps)
        return cls(tuple(phases), direction)

    def compose(self, times: int) -> PrivacyLoss:
        """The composition of ``times`` copies."""
        count = whole("times", times, 1)
        return PrivacyLoss(tuple((pair, steps * count) for pair, steps in self.phases), self.direction)

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        """The composition of both, which must have one direction."""
        if not isinstance(other, PrivacyLoss):
            return NotImplemented
        if other.direction != self.direction:
            raise ValueError(f"direction must agree: {self.direction!r} and {other.direction!r}")
        return PrivacyLoss(self.phases + other.phases, self.direction)

    @overload
    def epsilon(self, delta: float, *, width: float = WIDTH) -> Interval: ...
    @overload
    def epsilon(self, delta: Sequence[float] | Floats, *, width: float = WIDTH) -> list[Interval]: ...

    def epsilon(self, delta: float | Sequence[float] | Floats, *, width: float = WIDTH) -> Interval | list[Interval]:
        """The smallest epsilon >= 0 for which the composition is (epsilon, ``delta``)-DP, 0 < delta < 1.

        Args:
            delta: the delta, or several, (n,), for a list of intervals as by ``epsilons``.
            width: the relative width wanted; the interval is wider if the grid limits do not allow it.
        """
        if not isinstance(delta, str | bytes) and np.ndim(delta) == 1:
            return self.epsilons([float(value) for value in cast("Sequence[float]", delta)], width=width)
        return self.epsilons([cast("float", delta)], width=width)[0]

    def epsilons(
        self,
        deltas: Sequence[float],
        *,
        width: float | Sequence[float] = WIDTH,
        least: float | Sequence[float] = TINY,
        other_direction: Sequence[Interval | None] | None = None,
    ) -> list[Interval]:
        """``epsilon`` at several deltas, in their order; nearby ones share one composition.

        Args:
            deltas: the deltas.
            width: of all, or one for each delta.
            least: of all, or one for each delta: the width is relative to this if it exceeds epsilon.
            other_direction: for a loss in one direction and each delta, the result for the other direction, or None. If
                given and narrow enough, only the larger of both counts, and an epsilon that is certainly no larger may
                be wide.
        """
        count = len(deltas)
        widths = list(width) if isinstance(width, Sequence) else [width] * count
        smallest = list(least) if isinstance(least, Sequence) else [least] * count
        for name, numbers in (("width", widths), ("least", smallest)):
            if len(numbers) != count:
                raise ValueError(f"{name} must be one number, or one for each of {count} deltas, got {len(numbers)}")
        if other_direction is not None and (len(other_direction) != count or self.direction == "both"):
            raise ValueError(
                "other_direction must hold one interval, or None, for each delta of a loss in one direction"
            )
        questions = [
            Question("epsilon", math.log(inside("delta", delta)), positive("least", epsilon))
            for delta, epsilon in zip(deltas, smallest, strict=True)
        ]
        opposite = None if other_direction is None else tuple(other_direction)
        return list(_cached_answers(self, tuple(questions), tuple(widths), opposite))

    def delta(self, epsilon: float, *, width: float = WIDTH) -> Interval:
        """The smallest delta for which the composition is (``epsilon``, delta)-DP.

        Args:
            epsilon: from -1e100 to 1e100.
            width: relative to delta, so that a delta of 1e-30 is as precise as a delta of 0.1.
        """
        return _cached_answers(self, (Question("delta", log_ratio("epsilon", epsilon)),), (width,), None)[0]

    def advantage(self, *, width: float = WIDTH) -> Interval:
        """The largest tpr - fpr of a test: the total variation distance, delta at epsilon 0, in either direction."""
        return self.delta(0.0, width=width)

    def tradeoff(self, alpha: float, *, width: float = WIDTH) -> Interval:
        """The smallest type-II error of a test of type-I error ``alpha`` in (0, 1], in this loss's direction.

        For both directions it is the symmetrized curve, a bound for either test. ``tradeoff_bounds``: whole curves.

        Args:
            alpha: the type-I error.
            width: relative to the smaller of the error and the power. An error below 1e-16 is an interval from 0.
        """
        return self._powers("alpha", [alpha], accountant_direction(self.direction), width, miss=True)[0].mirrored()

    def rero(self, kappa: float, *, direction: AnyDirection = "remove", width: float = WIDTH) -> Interval:
        """The largest success probability of a reconstruction attack with the baseline success ``kappa`` in (0, 1].

        The power at level kappa of the test of "absent" against "present" (Kaissis et al. 2023, Theorem 1).

        Args:
            kappa: the baseline success.
            direction: the curve; ``both`` is the symmetrized one, a valid but looser bound.
            width: relative, down to kappas of 1e-30 and below.
        """
        return self.reros([kappa], direction=direction, width=width)[0]

    def reros(
        self, kappas: Sequence[float], *, direction: AnyDirection = "remove", width: float = WIDTH
    ) -> list[Interval]:
        """``rero`` at several baselines, in their order; nearby ones share one composition."""
        return self._powers("kappa", kappas, accountant_direction(direction), width, miss=False)

    def level(self, power: float, *, direction: AnyDirection = "remove", width: float = WIDTH) -> Interval:
        """The level at which the best test has this ``power`` in (0, 1): the inverse of ``rero``, and as precise."""
        side = accountant_direction(direction)
        return self._tests("power", [inside("power", power)], side, [width], power=True)[0]

    def _powers(
        self, name: str, levels: Sequence[float], direction: Directions, width: float, *, miss: bool
    ) -> list[Interval]:
        """The largest powers at ``levels``; ``miss``: as precise in one minus the power.

        If a power is so close to one that this profile resolves it poorly, the other direction's profile is used: the
        same point of the curve, with the two distributions exchanged.
        """
        widths = [width] * len(levels)
        powers = self._tests(name, levels, direction, widths, power=False)
        imprecise = [
            i
            for i, power in enumerate(powers)
            if power.width > (width * (1.0 - power.lower) if miss else width * power.upper)
            and (miss or power.width > _ENOUGH or power.lower < _CERTAIN)
            and levels[i] > _RESOLVED
        ]
        if not miss:  # the error of a power close to one may be relatively wider than the power
            widths = [min(_WIDEST, width * max(1.0, p.lower / max(1.0 - p.lower, EPS))) for p in powers]
        opposite = direction if direction == "both" else OPPOSITE[direction]
        error_levels, error_widths = [1.0 - levels[i] for i in imprecise], [widths[i] for i in imprecise]
        errors = self._tests(name, error_levels, opposite, error_widths, power=True, resolution=_RESOLUTION)
        for i, error in zip(imprecise, errors, strict=True):
            powers[i] = powers[i].intersect(error.mirrored())
        return powers

    def _tests(
        self,
        name: str,
        values: Sequence[float],
        direction: Directions,
        widths: Sequence[float],
        *,
        power: bool,
        resolution: float = 0.0,
    ) -> list[Interval]:
        """The powers of the best tests at levels ``values``, or (``power``) the levels of tests with such powers.

        An answer is known well enough if its ends differ by at most ``resolution``.
        """
        checked = [inside(name, value, one=True) for value in values]
        kind: Literal["level", "power"] = "level" if power else "power"
        open_values = [
            (value, inside("width", width)) for value, width in zip(checked, widths, strict=True) if value < 1.0
        ]
        questions = tuple(
            Question(kind, math.log(value), max(resolution / width, sys.float_info.min)) for value, width in open_values
        )
        question_widths = tuple(width for _, width in open_values)
        loss = replace(self, direction=direction)
        answers = iter(_cached_answers(loss, questions, question_widths, None) if questions else ())
        return [Interval(1.0, 1.0).by(CLOSED) if value == 1.0 else next(answers) for value in checked]


@functools.lru_cache(maxsize=512)  # cells of a matrix, a run, its remedies and its verification repeat the question
@strict
def _cached_answers(
    loss: PrivacyLoss,
    questions: tuple[Question, ...],
    widths: tuple[float, ...],
    other_direction: tuple[Interval | None, ...] | None,
) -> tuple[Interval, ...]:
    """Answers by a closed form if there is one, else by single steps or from grids; see ``solve``."""
    for width in widths:
        inside("width", width)
    phases = [(pair, steps) for pair, steps in loss.phases if pair.effect != 0.0]
    sides: Sequence[Direction] = DIRECTIONS if loss.direction == "both" else (one_direction(loss.direction),)
    is_gaussian = all(pair.effect is not None for pair, _ in phases)
    if is_gaussian:
        mu = math.sqrt(math.fsum(steps * (pair.effect or 0.0) ** 2 for pair, steps in phases))
        if mu <= _STEEPEST:
            return tuple(gaussian_answer(question, mu).by(CLOSED) for question in questions)
        phases = [(Mixture.of_logs(np.array([mu]), np.zeros(1)), 1)]
    if all(pair.is_symmetric or pair.effect is not None for pair, _ in phases):
        sides = sides[:1]
    if len(sides) > 1 and questions[0].kind not in TESTS:
        return _worse_of_both(loss, questions, widths)
    single = SingleSteps(phases, sides)
    is_steep = is_gaussian or any(_STEEPEST < pair.dominating_effect < math.inf for pair, _ in phases)
    if is_steep or single.are_beyond_grids:
        return tuple(single.answer(question) for question in questions)
    answers = [single.early_answer(question, width) for question, width in zip(questions, widths, strict=True)]
    unanswered = [i for i, answer in enumerate(answers) if answer is None]
    if unanswered:
        opposite = [other_direction[i] for i in unanswered] if other_direction else [None] * len(unanswered)
        open_questions = [questions[i] for i in unanswered]
        composed = solve(phases, sides, open_questions, [widths[i] for i in unanswered], opposite)
        single.require_agreements(open_questions, composed)
        for i, answer, larger in zip(unanswered, composed, opposite, strict=True):
            is_needless = larger is not None and answer.upper <= larger.upper
            if answer.relative_width > widths[i] and not is_needless:
                answer = answer.within(single.answer(questions[i], answer))
            answers[i] = answer
    return tuple(answer for answer in answers if answer is not None)


def _worse_of_both(
    loss: PrivacyLoss, questions: tuple[Question, ...], widths: tuple[float, ...]
) -> tuple[Interval, ...]:
    """The larger epsilons or deltas of both directions.

    Present-first is the worse direction of Gaussian mixtures (Theorem 62 of ``proofs/grids.md``). If its interval is
    very wide, the other direction may still have the larger lower end.
    """
    first = _cached_answers(replace(loss, direction="present-first"), questions, widths, None)
    is_from_zero = all(question.kind == "epsilon" or question.value >= 0.0 for question in questions)
    is_first_worse = is_from_zero and all(pair.is_gaussian_mixture for pair, _ in loss.phases)
    if is_first_worse and all(answer.relative_width <= _VERY_WIDE for answer in first):
        return first
    second = _cached_answers(replace(loss, direction="absent-first"), questions, widths, first)
    answers = map(Interval.worse, first, second)
    return tuple(map(Interval.within, answers, first) if is_first_worse else answers)


def group_curve(
    phases: Sequence[tuple[Mixture, int]],
    deltas: Sequence[float],
    direction: AnyDirection = "both",
    width: float = WIDTH,
) -> list[Interval]:
    """Epsilon of DP-SGD for a group at several deltas: the mixtures of a training schedule, composed.

    It dominates the whole training run for an adversary who sees every iterate, and some losses and data attain it
    (Ganesh 2024, Theorems 3.1 and 3.3).

    Args:
        phases: (one-step pair, steps) each.
        deltas: the deltas.
        direction: as for ``PrivacyLoss``.
        width: the relative width of each interval.
    """
    return PrivacyLoss(tuple(phases), direction).epsilons(deltas, width=width)


#: Method of an answer from composed grids.
GRID = "pld/connect-the-dots"

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
    other_direction: Sequence[Interval | None] | None = None,
) -> list[Interval]:
    """Certified answers for a composition, in the order of the questions.

    Of two directions, which only tests have, the worse profile at each epsilon counts. ``other_direction``: see
    ``PrivacyLoss.epsilons``.
    """
    answers = [Interval(0.0, math.inf)] * len(questions)
    enough: dict[int, float] = {}  # of each question that needs a grid
    for i, question in enumerate(questions):
        opposite_answer = other_direction[i] if other_direction else None
        if opposite_answer is not None and opposite_answer.upper == 0.0 and question.kind == "epsilon":
            answers[i] = opposite_answer  # delta at 0, the total variation distance, is the same in both directions
            continue
        exact = one_step_answer(phases[0][0], sides, question) if len(phases) == phases[0][1] == 1 else None
        if exact is not None:
            answers[i] = exact.by(ONE_STEP)
            continue
        largest = -math.inf  # an answer certainly below the other direction's does not count
        if opposite_answer is not None:
            is_narrow = opposite_answer.relative_width <= widths[i]
            largest = opposite_answer.upper if is_narrow else opposite_answer.lower
        if is_smaller(question, largest, phases, sides[0]):
            answers[i] = Interval(0.0, largest).by(MOMENT)
            continue
        enough[i] = largest
    if not enough:
        return answers
    merged = MergedPhases.of(phases)
    similar = tuple(merged.similar if merged else phases)
    items = _open(phases, similar, sides, [questions[i] for i in enough])
    pending = []
    for item, (i, largest) in zip(items, enough.items(), strict=True):
        item.enough, item.width = largest, widths[i]
        settled = item.question.kind in TESTS and (item.is_within(item.width) or item.saddle.tilt < _FLATTEST)
        if not (item.is_needless or item.is_undecided or item.answer.width == 0.0 or settled):
            pending.append(item)
    groups = [GridRefinement(phases, sides, shared, merged) for shared in _neighbours(pending, wide=True)]
    for group in groups:
        group.begin()
    # Coarsest first: an answer is inside the answer that it would have without the questions of finer widths.
    for width in sorted({item.width for item in pending}, reverse=True):
        for group in groups:
            for neighbors in _neighbours([item for item in group.items if item.width <= width]):
                if not all(item.is_within(width) for item in neighbors):
                    part = group if len(neighbors) == len(group.items) else group.part(neighbors)
                    part.refine(width)
    for item, i in zip(items, enough, strict=True):
        answers[i] = item.answer.by(GRID)
    return answers


@functools.lru_cache(maxsize=16)
def _delta_at_zero(phases: tuple[tuple[Pair, int], ...]) -> Interval:
    """The total variation distance, the same in both directions."""
    return solve(phases, DIRECTIONS[:1], [Question("delta", 0.0)], [1e-3])[0]


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
    phases: Sequence[tuple[Pair, int]],
    similar: tuple[tuple[Pair, int], ...],
    sides: Sequence[Direction],
    questions: Sequence[Question],
) -> list[PendingAnswer]:
    """Answers with their trivial intervals and first estimates, from ``similar`` phases."""
    opened = []
    largest, infinite = loss_extremes(phases, sides[0])
    for question in questions:
        if question.kind in TESTS:
            saddle, (first, last) = _open_test(similar, sides, question), question.deciding_epsilons
            saddle = replace(saddle, epsilon=min(max(saddle.epsilon, first), last))
            opened.append(PendingAnswer(question, saddle, question.trivial, saddle.log_delta))
        elif question.kind == "delta":
            bounds = Interval(max(infinite.lower, -math.expm1(min(question.value, 0.0))), 1.0)
            if question.value >= largest:
                bounds = infinite  # no finite loss is that large
            saddle = _deep_enough(similar, sides[0], question)
            opened.append(PendingAnswer(question, saddle, bounds, saddle.log_delta))
        else:
            log_delta = question.value
            if infinite.upper > 0.0:  # the part that finite losses may contribute
                log_delta += math.log(max(-math.expm1(min(math.log(infinite.upper) - log_delta, 0.0)), 1e-300))
            opened.append(PendingAnswer(question, _NOWHERE, Interval(0.0, largest), log_delta))
    epsilons = [item for item in opened if item.question.kind == "epsilon"]
    _open_epsilons(phases, similar, sides[0], epsilons, infinite)
    # Outcomes of loss over -ln(level) have a level below it, and the power is at least their probability.
    near_one = [item for item in opened if item.question.kind == "power" and item.saddle.log_delta > _NEAR_ONE]
    sure = [Question("delta", -item.question.value) for item in near_one]
    for side in sides if near_one else ():
        for item, delta in zip(near_one, solve(phases, (side,), sure, [1e-3] * len(sure)), strict=True):
            item.answer = replace(item.answer, lower=max(item.answer.lower, delta.lower))
    return opened


def _open_epsilons(
    phases: Sequence[tuple[Pair, int]],
    similar: tuple[tuple[Pair, int], ...],
    side: Direction,
    items: Sequence[PendingAnswer],
    infinite: Interval,
) -> None:
    """Estimate epsilons, whose ``log_delta`` is known; certain ones, of 0 or infinity, become answers.

    ``infinite``: the probability of infinite losses.
    """
    at_zero: Interval | None = None
    shelves: dict[int, list[PendingAnswer]] = {}
    for item in items:  # deltas of similar size share a table
        shelves.setdefault(math.floor(item.log_delta / _SHELF) if len(items) > 1 else 0, []).append(item)
    for shelf in shelves.values():
        logs = [item.log_delta for item in shelf]
        cumulants = estimates_of(similar, side, min(logs), FIRST_SHARE)
        saddles = cumulants.for_deltas(logs) if len(logs) > 1 else [cumulants.find(log_delta=logs[0])]
        for item, saddle in zip(shelf, saddles, strict=True):
            item.saddle, value, rounding = saddle, item.question.value, 4.0 * EPS * abs(item.question.value)
            if infinite.upper > 0.0 and value <= math.log(infinite.upper) + rounding:
                surely = value < log_or_minus_infinity(infinite.lower) - rounding
                item.answer, item.saddle = Interval(math.inf if surely else 0.0, math.inf), cumulants.find(epsilon=0.0)
                item.is_undecided = not surely
            elif saddle.epsilon <= _NEAR_ZERO * saddle.spread:
                # A large delta, where epsilon is 0 or little more: delta at 0 decides.
                at_zero = at_zero or _delta_at_zero(tuple(phases))
                item.saddle = cumulants.find(epsilon=0.0)
                if log_or_minus_infinity(at_zero.upper) <= value:
                    item.answer = Interval(0.0, 0.0)
                else:
                    gap = math.log(0.5 * (at_zero.lower + at_zero.upper)) - value
                    item.saddle = cumulants.find(epsilon=max(gap / item.saddle.tilt, TINY))


def _open_test(similar: tuple[tuple[Pair, int], ...], sides: Sequence[Direction], question: Question) -> SaddlePoint:
    """The estimated line that decides a test, of the worse direction."""
    saddles = [_deep_enough(similar, side, question) for side in sides]
    if len(saddles) == 1:
        return saddles[0]
    # each direction's own line may be worse for the other: the two meet at 0 at the latest
    smallest = min(saddle.log_delta for saddle in saddles)
    tables = [estimates_of(similar, side, smallest, FIRST_SHARE) for side in sides]
    epsilons = {*(saddle.epsilon for saddle in saddles), 0.0}
    saddles_by_epsilon = [[table.find(epsilon=epsilon) for table in tables] for epsilon in epsilons]
    worst = [max(points, key=operator.attrgetter("log_delta")) for points in saddles_by_epsilon]

    def line(saddle: SaddlePoint) -> float:
        """The minimized quantity: ln of the power of a line, or minus ln of its level."""
        if question.kind == "power":
            return float(np.logaddexp(saddle.log_delta, saddle.epsilon + question.value))
        gap = -math.expm1(min(0.0, saddle.log_delta - question.value))
        return saddle.epsilon - math.log(max(gap, 1e-300))

    return min(worst, key=line)


def _deep_enough(similar: tuple[tuple[Pair, int], ...], side: Direction, question: Question) -> SaddlePoint:
    """A saddle point from tables whose cut tails are far below its delta."""
    log_delta, value = -30.0, question.value
    argument = {"delta": "epsilon", "power": "log_level", "level": "log_power"}[question.kind]
    while True:
        saddle = estimates_of(similar, side, log_delta, FIRST_SHARE).find(**{argument: value})
        if saddle.log_delta >= log_delta or log_delta < -1e4:
            return saddle
        log_delta = saddle.log_delta - 5.0
