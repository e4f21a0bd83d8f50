"""ln delta(epsilon) of a composition by a contour integral, for deltas below the range of float64.

With M(s) the product over phases of E_P[e^(s L)]^steps, L the loss of one step, and any tilt s > 0,

    delta(epsilon) = (1/pi) integral over u > 0 of Re[M(s + iu) e^(-(s + iu) epsilon) / ((s + iu) (s + iu + 1))] du.

The trapezoid rule converges exponentially, in u and over outputs. About eleven digits; *approximate*: errors are not
bounded. ``ArithmeticError`` reports an integrand that does not decay or cancels, as for few steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpspec.accounting import Direction, Floats, Mixture, Pair, finite, one_direction, whole

#: Grid of outputs: reach in units of sigma, maximum step, maximum step times largest shift, maximum size.
_REACH, _STEP, _STEP_SHIFT, _OUTPUTS = 13.0, 0.08, 1.0 / 16.0, 200_000

#: Nodes in u: per batch, in total, and relative size of the last node that ends the sum.
_BATCH, _NODES, _LAST = 256, 1 << 13, 1e-16

#: Maximum ln of the cancellation in the integral.
_CANCELLED = 9.0

#: Range of tilts.
_LOWEST, _HIGHEST = 1e-6, 1e6


@dataclass(frozen=True, eq=False)
class Contour:
    """The profile of ``phases`` of (pair, steps) in one direction; ``log_delta`` at any epsilon >= 0."""

    phases: tuple[tuple[Mixture, int], ...]
    direction: Direction
    _known: dict[float, float] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, phases: Sequence[tuple[Pair, int]], direction: Direction) -> Contour:
        kept = []
        for pair, steps in phases:
            if not isinstance(pair, Mixture):
                raise ValueError(f"phases must hold mixtures of Gaussians here, got {pair!r}")
            if pair.effect != 0.0:
                kept.append((pair, whole("steps", steps, 1)))
        return cls(tuple(kept), one_direction(direction))

    def log_delta(self, epsilon: float) -> float:
        """ln delta(``epsilon``) for epsilon >= 0; -inf if delta is 0."""
        eps = finite("epsilon", epsilon)
        if eps < 0.0:
            raise ValueError(f"epsilon must not be negative, got {epsilon!r}")
        # The largest loss absent-first is -ln P[no member in any batch].
        largest = -math.fsum(
            steps * (float(pair.log_probabilities[0]) if pair.sensitivities[0] == 0.0 else -math.inf)
            for pair, steps in self.phases
        )
        if not self.phases or (self.direction == "absent-first" and eps >= largest):
            return -math.inf
        if sum(steps for _, steps in self.phases) == 1:
            return float(self.phases[0][0].log_delta(eps, self.direction))
        if eps not in self._known:
            self._known[eps] = self._saddle(eps).log_delta(eps)
        return self._known[eps]

    def _saddle(self, epsilon: float) -> _Tables:
        """Tables near the tilt at which the tilted mean of the loss is epsilon + 1/s + 1/(1 + s).

        All tilts give the same integral; within half a standard deviation cancellation is negligible.
        """
        tables = other = self._tables(1.0)
        factor = 8.0 if tables.offset(epsilon) < 0.0 else 0.125
        while other.offset(epsilon) * tables.offset(epsilon) > 0.0:
            tables, other = other, self._tables(other.tilt * factor)
            if not _LOWEST < other.tilt < _HIGHEST:
                return other
        low, high = min(tables.tilt, other.tilt), max(tables.tilt, other.tilt)
        while abs(other.offset(epsilon)) > 0.5 and high > low * (1.0 + 1e-12):
            other = self._tables(math.sqrt(low * high))
            low, high = (other.tilt, high) if other.offset(epsilon) < 0.0 else (low, other.tilt)
        return other

    def _tables(self, tilt: float) -> _Tables:
        phases = []
        for pair, steps in self.phases:
            shifts = pair.sensitivities / pair.sigma
            power = 1.0 + tilt if self.direction == "present-first" else -tilt
            top = float(shifts[-1])
            step = min(_STEP, _STEP_SHIFT / top)
            low, high = min(0.0, power * top) - _REACH, max(0.0, power * top) + _REACH
            if high - low > _OUTPUTS * step:
                raise ArithmeticError(f"the contour at tilt {tilt:g} needs too many outputs")
            z = np.arange(low, high, step)
            loss = pair.log_ratio(z * pair.sigma)
            exponents = power * loss - 0.5 * np.square(z)
            kept = exponents > exponents.max() - 60.0
            weights = np.exp(exponents[kept] - exponents.max())
            log_moment = float(exponents.max()) + math.log(weights.sum() * step / math.sqrt(2.0 * math.pi))
            signed = loss[kept] if self.direction == "present-first" else -loss[kept]
            shares = weights / weights.sum()
            phases.append(_Phase(signed, shares, float(shares @ signed), log_moment, steps))
        return _Tables(tilt, tuple(phases))


@dataclass(frozen=True, eq=False)
class _Phase:
    """Losses of one step with tilted probabilities and their mean, ln E[e^(tilt loss)], and the number of steps."""

    losses: Floats
    weights: Floats
    mean: float
    log_moment: float
    steps: int


@dataclass(frozen=True, eq=False)
class _Tables:
    tilt: float
    phases: tuple[_Phase, ...]

    @cached_property
    def moments(self) -> tuple[float, float]:
        """The tilted mean and standard deviation of the total loss."""
        mean = math.fsum(phase.steps * phase.mean for phase in self.phases)
        squares = (phase.steps * float(phase.weights @ np.square(phase.losses - phase.mean)) for phase in self.phases)
        return mean, math.sqrt(math.fsum(squares))

    def offset(self, epsilon: float) -> float:
        """Signed distance of the tilt from the saddle in standard deviations; negative if the tilt is too low."""
        s, (mean, spread) = self.tilt, self.moments
        width = math.sqrt(spread**2 + s**-2 + (1.0 + s) ** -2)
        return (mean - epsilon - 1.0 / s - 1.0 / (1.0 + s)) / width

    def log_delta(self, epsilon: float) -> float:
        """The integral, in units of e^-(tilt epsilon) M(tilt)."""
        s, (mean, spread) = self.tilt, self.moments
        width = 2.0 * math.pi / (60.0 * spread + 40.0 / min(s, 1.0) + 40.0)
        drift = mean - epsilon
        total = size = 0.0
        for start in range(0, _NODES, _BATCH):
            u = width * np.arange(start, start + _BATCH)
            value = np.exp(1j * u * drift) / ((s + 1j * u) * (s + 1.0 + 1j * u))
            for phase in self.phases:
                value *= (np.exp(1j * np.outer(u, phase.losses - phase.mean)) @ phase.weights) ** phase.steps
            if start == 0:
                value[0] *= 0.5
                size = abs(value[0])
            total += float(value.real.sum())
            if np.max(np.abs(value[-_BATCH // 4 :])) < _LAST * size:
                break
        else:
            raise ArithmeticError(f"the contour integral does not converge at epsilon {epsilon:g}")
        if total < math.exp(-_CANCELLED) * size:
            raise ArithmeticError(f"the contour integral cancels at epsilon {epsilon:g}")
        scale = math.fsum(phase.steps * phase.log_moment for phase in self.phases) - s * epsilon
        return scale + math.log(total * width / math.pi)
