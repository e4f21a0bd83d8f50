"""What is asked of a composition, what is known of the answer so far, and roughly where it lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpspec.accounting.checks import Direction
from dpspec.accounting.compose import Composed, Worse, at_least_once
from dpspec.accounting.interval import Interval
from dpspec.accounting.pair import Pair, Part
from dpspec.accounting.saddle import Saddle

#: Below this an epsilon is as good as zero when widths are compared with it.
TINY = 1e-7

#: A delta of which no lower bound was found is looked for so much deeper at least, in logarithms.
_DEEPER = 20.0


#: ln of the tilts that are believed.
_STEEP = 20.0

#: Share of a power's width that discretisation may take: chords take the rest.
_CHORDS = 0.3


@dataclass(frozen=True)
class Question:
    """Epsilon at a delta, delta at an epsilon, or the most power of a test at a level: exactly one is given.

    miss: for a power, whether its width is wanted relative to one minus it, where that is smaller.
    """

    log_delta: float | None = None
    epsilon: float | None = None
    log_level: float | None = None
    miss: bool = False


@dataclass
class Open:
    """A question, where its answer lies as far as is known, and the interval that certainly holds it.

    log_delta: ln of the delta in question, as far as finite losses make it. ``saddle`` is moved, and ``log_delta``
    deepened, as compositions show where the answer really is.
    """

    question: Question
    saddle: Saddle
    answer: Interval
    log_delta: float

    @property
    def at(self) -> float:
        """The epsilon asked for, or the one expected; for a power, that whose line decides it."""
        return self.saddle.epsilon if self.question.epsilon is None else self.question.epsilon

    def locate(self, above: Composed | Worse) -> None:
        """Replace the estimate of the answer's place, and of the profile's slope there, by what was found."""
        low, high = self.answer.lower, self.answer.upper
        if self.question.log_level is not None:
            log_delta = above.log_finite(self.saddle.epsilon)
            tilt = self.question.log_level + self.saddle.epsilon - log_delta
            if math.isfinite(log_delta) and abs(tilt) < _STEEP:
                self.saddle = replace(self.saddle, tilt=math.exp(tilt), log_delta=log_delta)
                self.log_delta = log_delta
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

    def places(self) -> list[float]:
        """Where the composition is wanted, so far as it can be moved: not for a delta at a given epsilon."""
        if self.question.log_level is not None:
            return [self.saddle.epsilon]
        ends = (self.answer.lower, self.answer.upper)
        return [] if self.question.log_delta is None else [x for x in ends if 0.0 < x < math.inf]

    def tolerance(self, width: float) -> float:
        """The error in epsilon that ``width`` leaves."""
        if self.question.log_level is not None:  # power = delta + level e^epsilon, of which the second is tilt * delta
            power, tilt = 0.5 * (self.answer.lower + self.answer.upper), self.saddle.tilt
            room = min(1.0, max((1.0 - power) / power, 1e-6)) if self.question.miss else 1.0
            return width * _CHORDS * room * (1.0 + tilt) / tilt
        if self.question.log_delta is None:
            return width / self.saddle.tilt
        return width * max(self.saddle.epsilon, TINY)

    def done(self, width: float) -> bool:
        """Whether the interval is as narrow as asked."""
        if self.question.miss:
            return self.answer.width <= width * min(self.answer.upper, 1.0 - self.answer.lower)
        least = 0.0 if self.question.log_delta is None else TINY
        return self.answer.width <= width * max(self.answer.upper, least)


def parts(
    phases: Sequence[tuple[Pair, int]], direction: Direction, log_delta: float, log_share: float
) -> list[tuple[Part, int]]:
    """What of each phase's step matters, all but a share of delta over all steps; with its steps."""
    log_far = log_share - math.log(sum(count for _, count in phases))
    return [(pair.cut(direction, log_far + min(log_delta, 0.0), log_far), count) for pair, count in phases]


def largest_loss(phases: Sequence[tuple[Pair, int]], direction: Direction) -> float:
    """No finite composed loss is larger."""
    return math.fsum(pair.largest_loss(direction) * steps for pair, steps in phases) * (1.0 + 1e-15)


def infinite_mass(phases: Sequence[tuple[Pair, int]], direction: Direction) -> Interval:
    """The probability that the composed loss is infinite."""
    value = at_least_once([(pair.infinite_mass(direction), steps) for pair, steps in phases])
    return Interval(value * (1.0 - 1e-12), min(1.0, value * (1.0 + 1e-12)))
