"""What is asked of a composition, what is known of the answer so far, and roughly where it lies.

Where the answer lies, roughly, a saddle-point estimate says, which chooses grids, cuts and tilts. With K(s) the
cumulant generating function of the composed loss under the first distribution,

    ln delta(epsilon) ~ K(s) - s epsilon - ln s - ln(1 + s) - ln(2 pi v) / 2,  v = K''(s) + s^-2 + (1 + s)^-2,

at the s > 0 with K'(s) - epsilon - 1/s - 1/(1 + s) = 0. Nothing that is reported depends on its accuracy: it decides
only how wide the certified interval comes out at first try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dpspec.accounting.composition.composition import chance_of_any
from dpspec.accounting.composition.rare_steps import ComposedProfile
from dpspec.accounting.numerics.crossing import crossing
from dpspec.accounting.numerics.floats import EPS, Direction, Floats
from dpspec.accounting.numerics.interval import Interval
from dpspec.accounting.numerics.search import bisect
from dpspec.accounting.pair import Pair, TruncatedPair
from dpspec.accounting.solver.duality import LogProfile, bound_level, bound_power

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


#: Below this an epsilon is as good as zero when widths are compared with it.
TINY = 1e-7

#: A delta of which no lower bound was found is looked for so much deeper at least, in logarithms.
_DEEPER = 20.0


#: The least slope of ln delta that is believed.
_FLAT = 1e-6

#: Share of a power's width that discretisation may take: chords take the rest.
_CHORDS = 0.3


@dataclass(frozen=True)
class Question:
    """Epsilon at a delta, delta at an epsilon, a test's power at a level or its level at a power: one is given."""

    log_delta: float | None = None
    epsilon: float | None = None
    log_level: float | None = None
    log_power: float | None = None

    @property
    def testing(self) -> bool:
        """Whether it is about tests: decided by one line of the profile, which may be at any epsilon."""
        return self.log_level is not None or self.log_power is not None

    def bound_test(self, low: LogProfile, high: LogProfile, start: float, scale: float) -> tuple[Interval, float]:
        """The answer about tests, and the epsilon that decides it; see ``duality``."""
        if self.log_level is not None:
            return bound_power(self.log_level, low, high, start, scale)
        assert self.log_power is not None
        return bound_level(self.log_power, low, high, start, scale)

    def line(self, log_delta: float, epsilon: float) -> float:
        """What is least at the epsilon that decides: ln of the line's power, or minus ln of its level."""
        if self.log_level is not None:
            return float(np.logaddexp(log_delta, epsilon + self.log_level))
        assert self.log_power is not None
        return epsilon - math.log(max(-math.expm1(min(0.0, log_delta - self.log_power)), 1e-300))

    @property
    def trivial(self) -> Interval:
        """What holds for the answer about tests anyway: power is never below the level."""
        if self.log_level is not None:
            return Interval(math.exp(self.log_level) * (1.0 - 4.0 * EPS), 1.0)
        assert self.log_power is not None
        return Interval(0.0, math.exp(self.log_power) * (1.0 + 4.0 * EPS))


@dataclass
class PendingAnswer:
    """A question, where its answer lies as far as is known, and the interval that certainly holds it.

    log_delta: ln of the delta in question, as far as finite losses make it. ``saddle`` is moved, and ``log_delta``
    deepened, as compositions show where the answer really is. enough: of an answer that is certainly no larger than
    this no more is asked.
    """

    question: Question
    saddle: SaddlePoint
    answer: Interval
    log_delta: float
    enough: float = -math.inf

    @property
    def is_needless(self) -> bool:
        """Whether the answer is certainly no larger than what is ``enough``."""
        return self.answer.upper <= self.enough

    @property
    def position(self) -> float:
        """The epsilon asked for, or the one expected; for a test, that whose line decides it."""
        return self.saddle.epsilon if self.question.epsilon is None else self.question.epsilon

    def locate(self, above: ComposedProfile) -> None:
        """Replace the estimate of the answer's place, and of the profile's slope there, by what was found."""
        low, high = self.answer.lower, self.answer.upper
        if self.question.testing:
            epsilon, step = self.saddle.epsilon, max(2.0 * above.spacing, 1e-3 * self.saddle.spread)
            log_delta = above.log_finite(epsilon)
            tilt = (above.log_finite(epsilon - step) - above.log_finite(epsilon + step)) / (2.0 * step)
            if math.isfinite(log_delta) and _FLAT < tilt < math.inf:
                self.saddle, self.log_delta = replace(self.saddle, tilt=tilt, log_delta=log_delta), log_delta
            return
        if self.question.log_delta is None:
            self.log_delta = math.log(low) if low > 0.0 else self.log_delta - max(_DEEPER, 0.4 * abs(self.log_delta))
            return
        if not 0.0 < low <= high < math.inf:
            return
        middle = 0.5 * (low + high)
        step = max(2.0 * above.spacing, 1e-3 * middle)
        fall = above.log_finite(max(0.0, middle - step)) - above.log_finite(middle + step)
        slope = fall / (min(middle, step) + step)
        if math.isfinite(slope) and slope > 0.0:
            self.saddle = replace(self.saddle, epsilon=middle, tilt=slope)

    def positions(self) -> list[float]:
        """Where the composition is wanted, so far as it can be moved: not for a delta at a given epsilon."""
        if self.question.testing:
            return [self.saddle.epsilon]
        ends = (self.answer.lower, self.answer.upper)
        return [] if self.question.log_delta is None else [x for x in ends if 0.0 < x < math.inf]

    def tolerance(self, width: float) -> float:
        """The error in epsilon that ``width`` leaves."""
        if self.question.log_level is not None:  # power = delta + level e^epsilon, of which the second is tilt * delta
            return width * _CHORDS * (1.0 + self.saddle.tilt) / self.saddle.tilt
        if self.question.log_power is not None:
            return width * _CHORDS
        if self.question.log_delta is None:
            return width / self.saddle.tilt
        return width * max(self.saddle.epsilon, TINY)

    def is_within(self, width: float) -> bool:
        """Whether the interval is as narrow as asked, or need not be."""
        if self.is_needless:
            return True
        least = 0.0 if self.question.log_delta is None else TINY
        return self.answer.width <= width * max(self.answer.upper, least)


def truncate_phases(
    phases: Sequence[tuple[Pair, int]], direction: Direction, log_delta: float, log_share: float
) -> list[tuple[TruncatedPair, int]]:
    """What of each phase's step matters, all but a share of delta over all steps; with its steps."""
    log_far = log_share - math.log(sum(count for _, count in phases))
    return [(pair.truncate(direction, log_far + min(log_delta, 0.0), log_far), count) for pair, count in phases]


def largest_loss(phases: Sequence[tuple[Pair, int]], direction: Direction) -> float:
    """No finite composed loss is larger."""
    return math.fsum(pair.largest_loss(direction) * steps for pair, steps in phases) * (1.0 + 1e-15)


def infinite_mass(phases: Sequence[tuple[Pair, int]], direction: Direction) -> Interval:
    """The probability that the composed loss is infinite."""
    value = chance_of_any([(pair.infinite_mass(direction), steps) for pair, steps in phases])
    return Interval(value * (1.0 - 1e-12), min(1.0, value * (1.0 + 1e-12)))
