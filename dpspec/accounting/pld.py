"""The privacy loss of a composed mechanism: what it leaks, in both directions, as certified intervals.

>>> from dpspec.accounting.mixture import Mixture
>>> step = PrivacyLoss.of(Mixture.poisson(4, 0.01, 1.0))
>>> loss = step.compose(2000)
>>> epsilon = loss.epsilon(1e-6)  # contains 14.5349763823...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.accounting import gaussian
from dpspec.accounting.checks import Directions, directions, finite, inside, whole
from dpspec.accounting.interval import Interval
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.questions import Question
from dpspec.accounting.solve import solve

#: Effects (sensitivity over sigma) above this are not discretised: losses would leave the range of any grid.
_STEEPEST = 1e6

#: The relative width of an interval when none is asked for.
WIDTH = 1e-4


@dataclass(frozen=True)
class PrivacyLoss:
    """The composition of ``steps`` of each phase's pair, seen in one direction or as the worse of both.

    Adaptive composition is covered: a pair dominates every choice of step that it dominates (Zhu, Dong and Wang 2022,
    Theorem 10). Answers are intervals that contain the exact value for the pairs given: discretisation, cut tails,
    wrapped mass and rounding are bounded and charged; the basic functions (exp, log, the normal tail, the FFT) are
    taken to keep their usual accuracy.
    """

    phases: tuple[tuple[Mixture, int], ...]
    direction: Directions = "both"

    def __post_init__(self) -> None:
        directions(self.direction)
        if not self.phases:
            raise ValueError("phases must not be empty")
        merged: dict[object, tuple[Mixture, int]] = {}
        for pair, count in self.phases:
            if not isinstance(pair, Mixture):
                raise ValueError(f"phases must hold pairs of a Mixture and its steps, got {pair!r}")
            steps = whole("steps", count, 1)
            merged[pair.key] = (pair, merged.get(pair.key, (pair, 0))[1] + steps)
        object.__setattr__(self, "phases", tuple(merged.values()))

    @classmethod
    def of(cls, mixture: Mixture, direction: Directions = "both") -> PrivacyLoss:
        """One step of ``mixture``."""
        return cls(((mixture, 1),), direction)

    def compose(self, times: int) -> PrivacyLoss:
        """This, run ``times`` times."""
        count = whole("times", times, 1)
        return PrivacyLoss(tuple((pair, steps * count) for pair, steps in self.phases), self.direction)

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        """This followed by ``other``, in the same direction."""
        if not isinstance(other, PrivacyLoss):
            return NotImplemented
        if other.direction != self.direction:
            raise ValueError(f"direction must agree: {self.direction!r} and {other.direction!r}")
        return PrivacyLoss(self.phases + other.phases, self.direction)

    def epsilon(self, delta: float, *, width: float = WIDTH) -> Interval:
        """The least epsilon >= 0 for which the composition is (epsilon, ``delta``)-DP, 0 < delta < 1.

        width: the relative width wanted; a wider interval comes back where the grid limits do not allow it.
        """
        return self.epsilons([delta], width=width)[0]

    def epsilons(self, deltas: Sequence[float], *, width: float = WIDTH) -> list[Interval]:
        """``epsilon`` at several deltas, in their order; nearby ones share one composition."""
        logs = [math.log(inside("delta", delta)) for delta in deltas]
        return self._solve([Question(log_delta=log) for log in logs], inside("width", width))

    def delta(self, epsilon: float, *, width: float = WIDTH) -> Interval:
        """The least delta for which the composition is (``epsilon``, delta)-DP; any finite epsilon.

        width: relative to delta, so that a delta of 1e-30 has as many true digits as one of 0.1.
        """
        return self._solve([Question(epsilon=finite("epsilon", epsilon))], inside("width", width))[0]

    def _solve(self, questions: list[Question], width: float) -> list[Interval]:
        moving = [(pair, steps) for pair, steps in self.phases if pair.effect != 0.0]
        effects = [pair.effect for pair, _ in moving]
        if all(effect is not None for effect in effects):
            terms = (steps * effect * effect for (_, steps), effect in zip(moving, effects, strict=True) if effect)
            mu = math.sqrt(math.fsum(terms))
            return [_gaussian(question, mu) for question in questions]
        tops = [(float(pair.ratio.shifts[-1]), steps) for pair, steps in moving]
        loosest = [_without_sampling(question, tops) for question in questions]
        if max(top for top, _ in tops) > _STEEPEST:
            return loosest
        answers = [solve(moving, side, questions, width) for side in directions(self.direction)]
        found = [a[0] if len(a) == 1 else a[0].worse(a[1]) for a in zip(*answers, strict=True)]
        return [loose if math.isinf(f.upper) else f for f, loose in zip(found, loosest, strict=True)]


def _without_sampling(question: Question, tops: Sequence[tuple[float, int]]) -> Interval:
    """From 0 to the closed form with every step at its largest effect, which dominates (Ganesh 2024, Lemma 2.9)."""
    mu = math.sqrt(math.fsum(steps * top * top for top, steps in tops))
    if not math.isfinite(mu):
        return Interval(0.0, math.inf if question.log_delta is not None else 1.0)
    return Interval(0.0, _gaussian(question, mu).upper)


def _gaussian(question: Question, mu: float) -> Interval:
    """The closed form for steps that are all plain Gaussian; ``mu`` 0 for no mechanism at all."""
    if question.log_delta is not None:
        return gaussian.epsilon_interval(question.log_delta, mu) if mu > 0.0 else Interval(0.0, 0.0)
    assert question.epsilon is not None
    if mu > 0.0:
        return gaussian.delta_interval(question.epsilon, mu)
    value = max(0.0, -math.expm1(min(question.epsilon, 0.0)))
    return Interval(value, value)
