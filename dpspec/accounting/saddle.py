"""Where the answer lies, roughly: a saddle-point estimate that chooses grids, cuts and tilts.

With K(s) the cumulant generating function of the composed loss under the first distribution,

    ln delta(epsilon) ~ K(s) - s epsilon - ln s - ln(1 + s) - ln(2 pi v) / 2,  v = K''(s) + s^-2 + (1 + s)^-2,

at the s > 0 with K'(s) - epsilon - 1/s - 1/(1 + s) = 0. Nothing that is reported depends on its accuracy: it decides
only how wide the certified interval comes out at first try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.checks import Floats
from dpspec.accounting.pair import Part

#: ln of the tilts searched.
_TILTS = (math.log(1e-9), math.log(1e9))


@dataclass(frozen=True)
class Saddle:
    """A point of the privacy profile: ``tilt`` is -d ln delta / d epsilon, ``spread`` the tilted loss's deviation."""

    tilt: float
    epsilon: float
    log_delta: float
    spread: float


@dataclass(frozen=True, eq=False)
class Cumulants:
    """K and its derivatives for a composition, from a table of losses and log masses per phase."""

    phases: tuple[tuple[Floats, Floats, int], ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[Part, int]]) -> Cumulants:
        """From phases of (part, steps)."""
        return cls(tuple((*part.table(), steps) for part, steps in parts))

    def at(self, tilt: float) -> tuple[float, float, float]:
        """K, K' and K'' at ``tilt``."""
        total = np.zeros(3)
        for losses, logs, steps in self.phases:
            exponents = logs + tilt * losses
            top = float(exponents.max())
            weights = np.exp(exponents - top)
            mass = float(weights.sum())
            mean = float(weights @ losses) / mass
            variance = float(weights @ np.square(losses - mean)) / mass
            total += steps * np.array([top + math.log(mass), mean, variance])
        return float(total[0]), float(total[1]), float(total[2])

    def for_epsilon(self, epsilon: float) -> Saddle:
        """The saddle point at ``epsilon``."""
        return self._bisect(lambda s: self._point(s).epsilon < epsilon, epsilon)

    def for_delta(self, log_delta: float) -> Saddle:
        """The saddle point at which delta is about e^``log_delta``, at epsilon >= 0."""
        found = self._bisect(lambda s: self._point(s).log_delta > log_delta, None)
        return found if found.epsilon > 0.0 else self.for_epsilon(0.0)

    def for_level(self, log_level: float) -> Saddle:
        """The saddle point whose line, delta plus level times e^epsilon, decides the power at e^``log_level``.

        There the level is -d delta / d epsilon over e^epsilon.
        """
        return self._bisect(lambda s: self._level(self._point(s)) > log_level, None)

    def for_power(self, log_power: float) -> Saddle:
        """The saddle point whose line reaches the power e^``log_power`` at its level: delta (1 + tilt)."""
        return self._bisect(lambda s: self._point(s).log_delta + math.log1p(s) > log_power, None)

    @staticmethod
    def _level(point: Saddle) -> float:
        return math.log(point.tilt) + point.log_delta - point.epsilon

    def _point(self, tilt: float) -> Saddle:
        value, mean, variance = self.at(tilt)
        epsilon = mean - 1.0 / tilt - 1.0 / (1.0 + tilt)
        return self._read(tilt, value, variance, epsilon)

    @staticmethod
    def _read(tilt: float, value: float, variance: float, epsilon: float) -> Saddle:
        spread = variance + tilt**-2 + (1.0 + tilt) ** -2
        log_delta = value - tilt * epsilon - math.log(tilt) - math.log1p(tilt) - 0.5 * math.log(2 * math.pi * spread)
        return Saddle(tilt, epsilon, log_delta, math.sqrt(variance))

    def _bisect(self, below: Callable[[float], bool], epsilon: float | None) -> Saddle:
        low, high = _TILTS
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if below(math.exp(middle)) else (low, middle)
        tilt = math.exp(0.5 * (low + high))
        value, mean, variance = self.at(tilt)
        at = mean - 1.0 / tilt - 1.0 / (1.0 + tilt) if epsilon is None else epsilon
        return self._read(tilt, value, variance, at)
