"""Reconstruction robustness: certified intervals for gamma of any composition of declared steps.

    gamma(kappa) = 1 - f(kappa) = min over real epsilon of delta(epsilon) + e^epsilon kappa

for the present-first trade-off curve f (Kaissis et al. 2023, Theorem 1; ``docs/explanation/proofs/reconstruction.md``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dpspec.accounting import CLOSED, GRID, ONE_STEP, Directions, Interval, Laplace, Mixture, Pair, PrivacyLoss
from dpspec_rero.options import Steps, noisy_steps, revealed_probability

THEOREM = "Kaissis et al. 2023, Theorem 1"

#: Method name of an interval for steps with zero sensitivity.
NOTHING = "no step with noise"

#: Method name of an interval for steps without noise.
PLAIN = "without noise"

#: Relative width that the accountant aims at.
WIDTH = 1e-5

#: Directions in specs and in the accountant. Reconstruction uses present-first.
_DIRECTIONS: dict[str, Directions] = {"remove": "present-first", "add": "absent-first", "both": "both"}

#: Source of gamma by the interval's method. All rely on Theorem 1.
_SOURCES = {
    CLOSED: "Kaissis et al. 2023, Corollary 2",
    ONE_STEP: f"{THEOREM}, from the exact profile of one step",
    GRID: f"{THEOREM} and Corollary 3, option 1",
}

#: Relative rounding error of the operations that combine steps with and without noise.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Leakage:
    """Privacy leakage of a mechanism's steps. Every method returns an interval that contains the exact value."""

    phases: tuple[Steps, ...]

    @cached_property
    def _noisy(self) -> tuple[Steps, ...]:
        return tuple(phase for phase in noisy_steps(self.phases) if phase.effect > 0.0)

    @cached_property
    def _revealed(self) -> float:
        return revealed_probability(self.phases)

    def gammas(self, kappas: Sequence[float]) -> list[Interval]:
        """gamma at each kappa: the power of the best test for the record's presence at that level."""
        if self._noisy:
            intervals = _compose(self._noisy, "present-first").reros(kappas, direction="present-first", width=WIDTH)
        else:
            intervals = [Interval(kappa, kappa).by(NOTHING) for kappa in kappas]
        if (revealed := self._revealed) == 0.0:
            return intervals
        ends = [(with_revealed(one.lower, revealed), with_revealed(one.upper, revealed)) for one in intervals]
        return [_widen(replace(one, lower=low, upper=high)) for one, (low, high) in zip(intervals, ends, strict=True)]

    def tprs(self, fprs: Sequence[float], direction: str) -> list[Interval]:
        """Maximum power at each level in a direction of the spec: remove, add, or the worse of both."""
        if direction == "both":
            sides = zip(self.tprs(fprs, "remove"), self.tprs(fprs, "add"), strict=True)
            return [one.worse(other) for one, other in sides]
        if direction == "remove":
            return self.gammas(fprs)
        # Absent-first. A revealed record never counts as absent, so the level grows by 1 / hidden.
        hidden = 1.0 - self._revealed
        levels = [min(1.0, fpr / hidden) if self._revealed < 1.0 else 1.0 for fpr in fprs]
        if not self._noisy:
            return [_rounded(level).by(NOTHING) for level in levels]
        if all(phase.rate == 1.0 for phase in self._noisy):  # both directions have the same curve
            intervals = Leakage(self._noisy).gammas(levels)
        else:
            intervals = _compose(self._noisy, "absent-first").reros(levels, direction="absent-first", width=WIDTH)
        # The curve is concave: a relative error of the level changes the power by at most the same relative error.
        return intervals if self._revealed == 0.0 else [_widen(interval) for interval in intervals]

    def advantage(self) -> Interval:
        """The largest tpr - fpr of a membership attack, the same in both directions."""
        if not self._noisy:
            return _rounded(self._revealed).by(NOTHING)
        rest = _compose(self._noisy, "present-first").advantage(width=WIDTH)
        lower = max(self._revealed, (1.0 - self._revealed) * rest.lower) * (1.0 - _ROUNDING)
        upper = with_revealed(rest.upper, self._revealed) * (1.0 + _ROUNDING)
        return replace(rest, lower=lower, upper=min(1.0, upper)) if self._revealed > 0.0 else rest

    def epsilons(self, deltas: Sequence[float], direction: str, width: float = WIDTH) -> list[Interval]:
        """Epsilon at each delta in a direction of the spec; the upper end is infinite if a step has no noise."""
        if self._revealed > 0.0:
            # An absent record is never recognized with certainty unless a present record is always revealed.
            certain = self._revealed * (1.0 - _ROUNDING) if direction != "add" or self._revealed == 1.0 else 0.0
            return [Interval(math.inf if delta < certain else 0.0, math.inf).by(PLAIN) for delta in deltas]
        if not self._noisy:
            return [Interval(0.0, 0.0).by(NOTHING) for _ in deltas]
        return list(_compose(self._noisy, _DIRECTIONS[direction]).epsilons(deltas, width=width))


def gamma_source(*intervals: Interval) -> str:
    return "; ".join(sorted({_SOURCES.get(interval.method, THEOREM) for interval in intervals}))


def with_revealed(gamma: float, revealed: float) -> float:
    """1 - (1 - revealed)(1 - gamma): gamma with steps without noise."""
    return gamma + revealed * (1.0 - gamma)


def pure_epsilon(phases: Sequence[Steps], direction: str = "both") -> float:
    """Epsilon at delta 0 of Laplace steps, each with its own Poisson sample: the sum of the steps' largest losses.

    With Q the distribution without the record, P = (1 - q) Q + q Q(. - g) the one with it, and s = |g|_1 / b, the ratio
    Q(x - g) / Q(x) reaches e^-s and e^s. The largest loss of a step is ln(1 + q (e^s - 1)) for remove, ln(P / Q), and
    the smaller -ln(1 - q (1 - e^-s)) for add, ln(Q / P). Independent steps reach them together.
    """
    if revealed_probability(phases) > 0.0 or any(phase.noise != "laplace" and phase.effect > 0.0 for phase in phases):
        return math.inf
    largest = absent_first_epsilon if direction == "add" else amplified_epsilon
    return math.fsum(phase.count * largest(phase.rate, phase.effect) for phase in noisy_steps(phases))


def amplified_epsilon(rate: float, epsilon: float) -> float:
    """ln(1 + q (e^epsilon - 1)) for a rate q and epsilon >= 0 (Balle, Barthe and Gaboardi 2018, Theorem 9)."""
    if epsilon < 30.0:
        return math.log1p(rate * math.expm1(epsilon))
    return epsilon + math.log(rate + (1.0 - rate) * math.exp(-epsilon))


def absent_first_epsilon(rate: float, epsilon: float) -> float:
    """-ln(1 - q (1 - e^-epsilon)) for a rate q and epsilon >= 0."""
    if rate == 1.0:
        return epsilon
    missed = -rate * math.expm1(-epsilon)
    return -math.log1p(-missed) if missed <= 0.5 else -math.log((1.0 - rate) + rate * math.exp(-epsilon))


def _compose(phases: Sequence[Steps], direction: Directions) -> PrivacyLoss:
    pairs: list[tuple[Pair, int]] = []
    for phase in phases:
        laplace = phase.noise == "laplace"
        mixture = Mixture([0.0, phase.effect], [1.0 - phase.rate, phase.rate], 1.0)
        pairs.append((Laplace(1.0, phase.effect, phase.rate) if laplace else mixture, phase.count))
    return PrivacyLoss(tuple(pairs), direction)


def _widen(interval: Interval) -> Interval:
    low, high = interval.lower * (1.0 - _ROUNDING), interval.upper * (1.0 + _ROUNDING)
    return replace(interval, lower=low, upper=min(1.0, high))


def _rounded(value: float) -> Interval:
    return _widen(Interval(value, value))
