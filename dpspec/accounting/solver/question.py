"""What is asked of a composition, what is known of the answer so far, and what of each step matters to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpspec.accounting.composition.composition import chance_of_any
from dpspec.accounting.composition.rare_steps import ComposedProfile
from dpspec.accounting.numerics.floats import EPS, Direction
from dpspec.accounting.numerics.interval import Interval
from dpspec.accounting.pair import Pair, TruncatedPair
from dpspec.accounting.solver.duality import LogProfile, bound_level, bound_power
from dpspec.accounting.solver.saddle import SaddlePoint

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
