"""gamma and its relatives as certified intervals of the accountant, and what of steps without noise comes on top."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dpspec.accounting.checks import Direction
from dpspec.accounting.interval import Interval
from dpspec_rero import engine, theory
from dpspec_rero.steps import Steps, noisy, revealed

#: Charged to the few operations that mix steps with and without noise.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Certified:
    """What a mechanism's steps certainly leak; every answer is an interval that contains the exact value."""

    phases: tuple[Steps, ...]

    @cached_property
    def _noisy(self) -> tuple[Steps, ...]:
        return tuple(phase for phase in noisy(self.phases) if phase.effect > 0.0)

    @cached_property
    def _seen(self) -> float:
        return revealed(self.phases)

    @cached_property
    def _alike(self) -> bool:
        """Whether both directions have the same curve: without sampling, by reflection of the noise."""
        return all(phase.rate == 1.0 for phase in self._noisy)

    @property
    def method(self) -> str:
        """How gamma is computed."""
        return "pld/connect-the-dots" if theory.closed_form(self._noisy) is None else "closed form"

    @property
    def source(self) -> str:
        """Where the way of computing gamma stands."""
        form = theory.closed_form(self._noisy)
        return engine.SOURCE if form is None else theory.SOURCES[form[1]]

    def gammas(self, kappas: Sequence[float]) -> list[Interval]:
        """gamma at each kappa: the power of the best test for the record's presence at that level."""
        if self._noisy:
            found = engine.tprs(self._noisy, kappas, "present-first")
        else:
            found = [Interval(kappa, kappa) for kappa in kappas]
        return [_shown(interval, self._seen) for interval in found]

    def tprs(self, fprs: Sequence[float], direction: str) -> list[Interval]:
        """The most power at each level in a direction of the spec: remove, add, or the worse of both."""
        if direction == "both":
            sides = zip(self.tprs(fprs, "remove"), self.tprs(fprs, "add"), strict=True)
            return [one.worse(other) for one, other in sides]
        if direction == "remove":
            return self.gammas(fprs)
        return self._absent_first(fprs, "absent-first")

    def symmetrised(self, kappas: Sequence[float]) -> list[Interval]:
        """The power that the curve for both directions together allows: a looser bound on gamma."""
        if self._alike:
            return self.gammas(kappas)
        return [_shown(interval, self._seen) for interval in engine.symmetrised(self._noisy, kappas)]

    def advantage(self) -> Interval:
        """The largest tpr - fpr of a membership attack, the same in both directions."""
        if not self._noisy:
            return Interval(self._seen, self._seen)
        rest = engine.privacy_loss(self._noisy, "present-first").advantage(width=engine.WIDTH)
        lower = max(self._seen, (1.0 - self._seen) * rest.lower)
        return Interval(lower, max(lower, theory.with_revealed(rest.upper, self._seen)))

    def epsilons(self, deltas: Sequence[float], direction: str) -> list[Interval]:
        """Epsilon at each delta in a direction of the spec; infinite where a record may be shown without noise."""
        if self._seen > 0.0:
            return [Interval(math.inf, math.inf) for _ in deltas]
        if not self._noisy:
            return [Interval(0.0, 0.0) for _ in deltas]
        loss = engine.privacy_loss(self._noisy, engine.DIRECTIONS[direction])
        return list(loss.epsilons(deltas, width=engine.WIDTH))

    def prior(self, gamma: float) -> Interval:
        """The kappa at which gamma(kappa) reaches ``gamma``, 0 < gamma < 1: the inverse curve, absent-first."""
        hidden = 1.0 - self._seen
        if gamma <= self._seen:
            return Interval(0.0, 0.0)
        rest = (gamma - self._seen) / hidden
        if not self._noisy:
            return Interval(rest, rest)
        return engine.privacy_loss(self._noisy, "absent-first").tradeoff(1.0 - rest)

    def _absent_first(self, fprs: Sequence[float], direction: Direction) -> list[Interval]:
        """Where the record is shown it is not taken for absent: there the other tests have the more level to spend."""
        spent = [min(1.0, fpr / (1.0 - self._seen)) if self._seen < 1.0 else 1.0 for fpr in fprs]
        if not self._noisy:
            return [Interval(level, level) for level in spent]
        if self._alike:
            return Certified(self._noisy).gammas(spent)
        return engine.tprs(self._noisy, spent, direction)


def _shown(interval: Interval, seen: float) -> Interval:
    if seen == 0.0:
        return interval
    low, high = theory.with_revealed(interval.lower, seen), theory.with_revealed(interval.upper, seen)
    return Interval(low * (1.0 - _ROUNDING), min(1.0, high * (1.0 + _ROUNDING)))
