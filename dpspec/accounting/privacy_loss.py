"""The privacy loss of a composed mechanism: what it leaks, in both directions, as certified intervals.

>>> from dpspec.accounting import Mixture, PrivacyLoss
>>> step = PrivacyLoss.of(Mixture.poisson(4, 0.01, 1.0))
>>> loss = step.compose(2000)
>>> epsilon = loss.epsilon(1e-6)  # contains 14.5349763823...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy.typing as npt

from dpspec.accounting.discrete import Discrete
from dpspec.accounting.grid import Pair
from dpspec.accounting.laplace import Laplace
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.numerics import OPPOSITE, Directions, Interval, directions, finite, inside, positive, whole
from dpspec.accounting.solver import (
    CLOSED,
    Question,
    answer_in_closed_form,
    bound_without_grid,
    cut_without_grid,
    is_beyond_grids,
    solve,
    solve_larger,
    solve_worst,
)

#: The relative width of an interval when none is asked for.
WIDTH = 1e-4

#: Levels under this are not told from 0 in one minus them.
_TOLD = 1e-13


@dataclass(frozen=True)
class PrivacyLoss:
    """The composition of ``steps`` of each phase's pair, seen in one direction or as the worse of both.

    Adaptive composition is covered: a pair dominates every choice of step that it dominates (Zhu, Dong and Wang 2022,
    Theorem 10). Answers are intervals that contain the exact value for the pairs given, and say what computed them:
    discretisation, cut tails, wrapped mass and rounding are bounded and charged; the basic functions (exp, log, the
    normal tail, the FFT) are taken to keep the accuracy that ``docs/explanation/numerics.md`` states and
    ``library_accuracy`` checks.
    """

    phases: tuple[tuple[Pair, int], ...]
    direction: Directions = "both"

    def __post_init__(self) -> None:
        directions(self.direction)
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
    def of(cls, pair: Pair, direction: Directions = "both") -> PrivacyLoss:
        """One step of ``pair``."""
        return cls(((pair, 1),), direction)

    @classmethod
    def gaussian(
        cls, sigma: float, sensitivity: float = 1.0, rate: float = 1.0, direction: Directions = "both"
    ) -> PrivacyLoss:
        """One step of the Gaussian mechanism, of all records or of a Poisson sample at ``rate``; see ``Mixture``."""
        q, noise = inside("rate", rate, one=True), positive("sigma", sigma)
        return cls.of(Mixture.poisson(1, q, noise / positive("sensitivity", sensitivity)), direction)

    @classmethod
    def laplace(
        cls, scale: float, sensitivity: float = 1.0, rate: float = 1.0, direction: Directions = "both"
    ) -> PrivacyLoss:
        """One step of the Laplace mechanism, of all records or of a Poisson sample at ``rate``; see ``Laplace``."""
        return cls.of(Laplace(scale, sensitivity, rate), direction)

    @classmethod
    def mixture(
        cls, sensitivities: npt.ArrayLike, probabilities: npt.ArrayLike, sigma: float, direction: Directions = "both"
    ) -> PrivacyLoss:
        """One step of a scalar mixture of Gaussians; see ``Mixture``, which also knows groups and fixed batches."""
        return cls.of(Mixture(sensitivities, probabilities, sigma), direction)

    @classmethod
    def discrete(cls, present: npt.ArrayLike, absent: npt.ArrayLike, direction: Directions = "both") -> PrivacyLoss:
        """One step that shows finitely many outcomes; see ``Discrete``."""
        return cls.of(Discrete(present, absent), direction)

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

    def epsilons(
        self,
        deltas: Sequence[float],
        *,
        width: float | Sequence[float] = WIDTH,
        beside: Sequence[Interval | None] | None = None,
    ) -> list[Interval]:
        """``epsilon`` at several deltas, in their order; nearby ones share one composition.

        width: of all, or one for each delta. beside: of a loss in one direction, what this returned for the other one
        at each delta, or None. Where it is given and narrow enough only the larger of both counts, and an epsilon that
        is certainly no larger comes back as wide as that takes.
        """
        logs = [math.log(inside("delta", delta)) for delta in deltas]
        widths = list(width) if isinstance(width, Sequence) else [width] * len(logs)
        if len(widths) != len(logs):
            raise ValueError(f"width must be one number, or one for each of {len(logs)} deltas, got {len(widths)}")
        if beside is not None and (len(beside) != len(logs) or self.direction == "both"):
            raise ValueError("beside must hold one interval, or None, for each delta of a loss in one direction")
        return self._solve([Question(log_delta=log) for log in logs], [inside("width", one) for one in widths], beside)

    def delta(self, epsilon: float, *, width: float = WIDTH) -> Interval:
        """The least delta for which the composition is (``epsilon``, delta)-DP; any finite epsilon.

        width: relative to delta, so that a delta of 1e-30 has as many true digits as one of 0.1.
        """
        return self._solve([Question(epsilon=finite("epsilon", epsilon))], inside("width", width))[0]

    def advantage(self, *, width: float = WIDTH) -> Interval:
        """The largest tpr - fpr of a test: the total variation distance, delta at epsilon 0, in either direction."""
        return self.delta(0.0, width=width)

    def tradeoff(self, alpha: float, *, width: float = WIDTH) -> Interval:
        """The least type-II error of a test of type-I error ``alpha`` in (0, 1], in this loss's direction.

        Its tests look for the first distribution: "the record is present" for a present-first loss. Of both directions
        it is the symmetrised curve, what holds whichever is tested. Whole curves: ``tradeoff_bounds``. width:
        relative to the smaller of the two, the error and the power.
        """
        return self.tradeoffs([alpha], width=width)[0]

    def tradeoffs(self, alphas: Sequence[float], *, width: float = WIDTH) -> list[Interval]:
        """``tradeoff`` at several levels, in their order."""
        powers = self._curve("alpha", alphas, self.direction, width, miss=True)
        return [power.mirrored() for power in powers]

    def rero(self, kappa: float, *, direction: Directions = "present-first", width: float = WIDTH) -> Interval:
        """The most that a reconstruction attack can succeed whose baseline success is ``kappa`` in (0, 1].

        The power at level kappa of the test of "absent" against "present" (Kaissis et al. 2023, Theorem 1): of the
        present-first curve, *whatever the loss's own direction*. ``direction`` asks for the other curve, or by ``both``
        for the symmetrised one, a valid but looser bound. width: relative, down to kappas of 1e-30 and below.
        """
        return self.reros([kappa], direction=direction, width=width)[0]

    def reros(
        self, kappas: Sequence[float], *, direction: Directions = "present-first", width: float = WIDTH
    ) -> list[Interval]:
        """``rero`` at several baselines, in their order; nearby ones share one composition."""
        return self._curve("kappa", kappas, direction, width, miss=False)

    def level(self, power: float, *, direction: Directions = "present-first", width: float = WIDTH) -> Interval:
        """The level at which the best test has this ``power`` in (0, 1): the inverse of ``rero``, and as precise.

        So the baseline success from which reconstruction can succeed with probability ``power`` at most.
        """
        return self._tests("power", [inside("power", power)], direction, width, power=True)[0]

    def _curve(
        self, name: str, levels: Sequence[float], direction: Directions, width: float, *, miss: bool
    ) -> list[Interval]:
        """The most powers at ``levels``; ``miss``: as precise in one minus the power.

        Where a power is so near one that this profile hardly tells, the other direction's does: it is the same point of
        the curve, seen from the other law.
        """
        powers = self._tests(name, levels, direction, width, power=False)
        imprecise = [
            i
            for i, power in enumerate(powers)
            if power.width > width * (1.0 - power.lower if miss else power.upper) and levels[i] > _TOLD
        ]
        other = direction if direction == "both" else OPPOSITE[direction]
        errors = self._tests(name, [1.0 - levels[i] for i in imprecise], other, width, power=True)
        for i, error in zip(imprecise, errors, strict=True):
            powers[i] = powers[i].intersect(error.mirrored())
        return powers

    def _tests(
        self, name: str, values: Sequence[float], direction: Directions, width: float, *, power: bool
    ) -> list[Interval]:
        """The powers of the best tests at levels ``values``, or (``power``) the levels of those with such powers."""
        checked = [inside(name, value, one=True) for value in values]
        inside("width", width)
        logs = [math.log(value) for value in checked if value < 1.0]
        questions = [Question(log_power=log) if power else Question(log_level=log) for log in logs]
        answers = iter(replace(self, direction=direction)._solve(questions, width) if questions else [])
        return [Interval(1.0, 1.0).by(CLOSED) if value == 1.0 else next(answers) for value in checked]

    def _solve(
        self,
        questions: list[Question],
        widths: float | Sequence[float],
        beside: Sequence[Interval | None] | None = None,
    ) -> list[Interval]:
        moving = [(pair, steps) for pair, steps in self.phases if pair.effect != 0.0]
        exact = [answer_in_closed_form(question, moving) for question in questions]
        if all(interval is not None for interval in exact):
            return [interval for interval in exact if interval is not None]
        sides = directions(self.direction)
        if is_beyond_grids(moving):
            return [bound_without_grid(question, moving, sides) for question in questions]
        each = widths if isinstance(widths, Sequence) else [float(widths)] * len(questions)
        if len(sides) > 1 and any(question.testing for question in questions):
            intervals = solve_worst(moving, questions, each)
        elif len(sides) > 1:
            intervals = solve_larger(moving, questions, each)
        else:
            intervals = solve(moving, sides[0], questions, each, beside)
        return cut_without_grid(intervals, questions, moving, sides)


def group_curve(
    phases: Sequence[tuple[Mixture, int]], deltas: Sequence[float], direction: Directions = "both", width: float = WIDTH
) -> list[Interval]:
    """Epsilon of DP-SGD for a group at each of ``deltas``: the mixtures of a training schedule, composed.

    phases: (one-step pair, steps). The composition of the one-step mixtures dominates the whole training run, for an
    adversary that sees every iterate, and equality is reached by some losses and data (Ganesh 2024, Theorems 3.1 and
    3.3). Raises ``ValueError`` naming the argument that makes no sense.
    """
    return PrivacyLoss(tuple(phases), direction).epsilons(deltas, width=width)
