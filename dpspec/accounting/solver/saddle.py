"""Roughly where an answer lies, which chooses grids, cuts and tilts: a saddle-point estimate.

With K(s) the cumulant generating function of the composed loss under the first distribution,

    ln delta(epsilon) ~ K(s) - s epsilon - ln s - ln(1 + s) - ln(2 pi v) / 2,  v = K''(s) + s^-2 + (1 + s)^-2,

at the s > 0 with K'(s) - epsilon - 1/s - 1/(1 + s) = 0. Nothing that is reported depends on its accuracy: it decides
only how wide the certified interval comes out at first try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpspec.accounting.numerics.floats import Floats
from dpspec.accounting.numerics.search import bisect, crossing
from dpspec.accounting.pair import TruncatedPair

#: ln of the tilts searched.
_TILTS = (math.log(1e-9), math.log(1e9))

#: So often is that range halved before the slope of what is looked for is followed.
_HALVINGS = 6

#: Tilts of several saddle points are read between so many at a time, and the range narrowed so often.
_LADDER, _LADDERS = 40, 2

#: A tilt is looked for up to this, relative to itself: every tilt gives true bounds, and near the best as good ones.
_NEAR = 1e-4


@dataclass(frozen=True)
class SaddlePoint:
    """A point of the privacy profile: ``tilt`` is -d ln delta / d epsilon, ``spread`` the tilted loss's deviation."""

    tilt: float
    epsilon: float
    log_delta: float
    spread: float


@dataclass(frozen=True, eq=False)
class Cumulants:
    """K and its derivatives for a composition, from a table of losses and log masses per phase."""

    phases: tuple[tuple[Floats, Floats, int], ...]
    _found: dict[float, tuple[float, float, float]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, parts: Sequence[tuple[TruncatedPair, int]]) -> Cumulants:
        """From phases of (part, steps)."""
        return cls(tuple((*part.table(), steps) for part, steps in parts))

    def at(self, tilt: float) -> tuple[float, float, float]:
        """K, K' and K'' at ``tilt``; kept, as searches for several answers begin with the same tilts."""
        if tilt not in self._found:
            self._found[tilt] = self._at(tilt)
        return self._found[tilt]

    def _at(self, tilt: float) -> tuple[float, float, float]:
        value = first = second = 0.0
        for losses, logs, steps in self.phases:
            exponents = logs + tilt * losses
            top = float(exponents.max())
            weights = np.exp(exponents - top)
            mass = float(weights.sum())
            mean = float(weights @ losses) / mass
            variance = float(weights @ np.square(losses - mean)) / mass
            value += steps * (top + math.log(mass))
            first += steps * mean
            second += steps * variance
        return value, first, second

    def for_epsilon(self, epsilon: float) -> SaddlePoint:
        """The saddle point at ``epsilon``."""
        return self._cross(lambda s: self._point(s).epsilon - epsilon, epsilon)

    def for_delta(self, log_delta: float) -> SaddlePoint:
        """The saddle point at which delta is about e^``log_delta``, at epsilon >= 0."""
        saddle = self._cross(lambda s: log_delta - self._point(s).log_delta, None)
        return saddle if saddle.epsilon > 0.0 else self.for_epsilon(0.0)

    def for_deltas(self, log_deltas: Sequence[float]) -> list[SaddlePoint]:
        """``for_delta`` of several: of two and more by interpolation, whose tilts are within a few percent."""
        if len(log_deltas) == 1:
            return [self.for_delta(log_deltas[0])]
        asked = np.array(log_deltas, dtype=np.float64)
        tilts = np.exp(np.linspace(*_TILTS, _LADDER))
        for _ in range(_LADDERS):
            values = self._along(tilts)[2]
            over, under = np.flatnonzero(values > asked.max()), np.flatnonzero(values < asked.min())
            first = over[-1] if len(over) else 0
            last = under[0] if len(under) and under[0] > first else len(tilts) - 1
            ladder = tilts
            tilts = np.geomspace(tilts[first], tilts[last], _LADDER)
        order = np.argsort(values)
        chosen = np.exp(np.interp(asked, values[order], np.log(ladder)[order]))
        epsilons, spreads, found = self._along(chosen)
        return [
            SaddlePoint(float(tilt), float(epsilon), float(log_delta), float(spread))
            if epsilon > 0.0
            else self.for_epsilon(0.0)
            for tilt, epsilon, spread, log_delta in zip(chosen, epsilons, spreads, found, strict=True)
        ]

    def _along(self, tilts: Floats) -> tuple[Floats, Floats, Floats]:
        """Epsilon, spread and ln delta of the saddle points at ``tilts``, (n,) each."""
        value, mean, variance = (np.zeros(len(tilts)) for _ in range(3))
        for losses, logs, steps in self.phases:
            weights = logs + tilts[:, None] * losses
            top = weights.max(axis=1)
            weights = np.exp(weights - top[:, None])
            mass = weights.sum(axis=1)
            mean_of_one = weights @ losses / mass
            value += steps * (top + np.log(mass))
            mean += steps * mean_of_one
            variance += steps * np.einsum("ij,ij->i", weights, np.square(losses - mean_of_one[:, None])) / mass
        epsilons = mean - 1.0 / tilts - 1.0 / (1.0 + tilts)
        around = 2.0 * math.pi * (variance + tilts**-2 + (1.0 + tilts) ** -2)
        log_deltas = value - tilts * epsilons - np.log(tilts) - np.log1p(tilts) - 0.5 * np.log(around)
        return epsilons, np.sqrt(variance), log_deltas

    def for_level(self, log_level: float) -> SaddlePoint:
        """The saddle point whose line, delta plus level times e^epsilon, decides the power at e^``log_level``.

        There the level is -d delta / d epsilon over e^epsilon.
        """
        return self._cross(lambda s: log_level - self._level(self._point(s)), None)

    def for_power(self, log_power: float) -> SaddlePoint:
        """The saddle point whose line reaches the power e^``log_power`` at its level: delta (1 + tilt)."""
        return self._cross(lambda s: log_power - self._point(s).log_delta - math.log1p(s), None)

    @staticmethod
    def _level(point: SaddlePoint) -> float:
        return math.log(point.tilt) + point.log_delta - point.epsilon

    def _point(self, tilt: float) -> SaddlePoint:
        value, mean, variance = self.at(tilt)
        epsilon = mean - 1.0 / tilt - 1.0 / (1.0 + tilt)
        return self._read(tilt, value, variance, epsilon)

    @staticmethod
    def _read(tilt: float, value: float, variance: float, epsilon: float) -> SaddlePoint:
        spread = variance + tilt**-2 + (1.0 + tilt) ** -2
        log_delta = value - tilt * epsilon - math.log(tilt) - math.log1p(tilt) - 0.5 * math.log(2 * math.pi * spread)
        return SaddlePoint(tilt, epsilon, log_delta, math.sqrt(variance))

    def _cross(self, excess: Callable[[float], float], epsilon: float | None) -> SaddlePoint:
        """The saddle point at the tilt where ``excess``, which rises with it, is zero."""
        low, high = bisect(lambda log_tilt: excess(math.exp(log_tilt)) < 0.0, *_TILTS, halvings=_HALVINGS)
        high, low = crossing(lambda log_tilt: excess(math.exp(log_tilt)), high, low, within=_NEAR)
        tilt = math.exp(0.5 * (low + high))
        value, mean, variance = self.at(tilt)
        centre = mean - 1.0 / tilt - 1.0 / (1.0 + tilt) if epsilon is None else epsilon
        return self._read(tilt, value, variance, centre)


def pick_worst(saddles: Sequence[SaddlePoint]) -> SaddlePoint:
    """The saddle point of the largest delta."""
    return max(saddles, key=lambda saddle: saddle.log_delta)
