"""What is asked of a composition, what is known of the answer so far, and roughly where it lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpspec.accounting.checks import Direction
from dpspec.accounting.compose import Composed
from dpspec.accounting.interval import Interval
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.outputs import Range, cut
from dpspec.accounting.saddle import Saddle

#: Below this an epsilon is as good as zero when widths are compared with it.
TINY = 1e-7

#: A delta of which no lower bound was found is looked for so much deeper at least, in logarithms.
_DEEPER = 20.0


@dataclass(frozen=True)
class Question:
    """Epsilon at a delta, or delta at an epsilon: exactly one is given."""

    log_delta: float | None = None
    epsilon: float | None = None


@dataclass
class Open:
    """A question, where its answer lies as far as is known, and the interval that certainly holds it.

    ``saddle`` is moved, and ``log_delta`` deepened, as compositions show where the answer really is.
    """

    question: Question
    saddle: Saddle
    answer: Interval
    log_delta: float = 0.0

    def __post_init__(self) -> None:
        self.log_delta = self.saddle.log_delta if self.question.log_delta is None else self.question.log_delta

    @property
    def at(self) -> float:
        """The epsilon asked for, or the one expected."""
        return self.saddle.epsilon if self.question.epsilon is None else self.question.epsilon

    def locate(self, above: Composed) -> None:
        """Replace the estimate of the answer's place, and of the profile's slope there, by what was found."""
        low, high = self.answer.lower, self.answer.upper
        if self.question.log_delta is None:
            self.log_delta = math.log(low) if low > 0.0 else self.log_delta - max(_DEEPER, 0.4 * abs(self.log_delta))
            return
        if not 0.0 < low <= high < math.inf:
            return
        middle = 0.5 * (low + high)
        step = max(2.0 * above.spacing, 1e-3 * middle)
        fall = above.log_upper(max(0.0, middle - step)) - above.log_upper(middle + step)
        slope = fall / (min(middle, step) + step)
        if math.isfinite(slope) and slope > 0.0:
            self.saddle = replace(self.saddle, epsilon=middle, tilt=slope)

    def tolerance(self, width: float) -> float:
        """The error in epsilon that ``width`` leaves."""
        if self.question.log_delta is None:
            return width / self.saddle.tilt
        return width * max(self.saddle.epsilon, TINY)

    def done(self, width: float) -> bool:
        """Whether the interval is as narrow as asked."""
        least = 0.0 if self.question.log_delta is None else TINY
        return self.answer.width <= width * max(self.answer.upper, least)


def ranges(
    phases: Sequence[tuple[Mixture, int]], direction: Direction, log_delta: float, log_share: float
) -> list[tuple[Range, int]]:
    """The outputs of each phase outside which at most a share of delta lies, over all steps; with its steps."""
    log_far = log_share - math.log(sum(count for _, count in phases))
    return [(cut(pair.ratio, direction, log_far + min(log_delta, 0.0), log_far), count) for pair, count in phases]


def largest_loss(phases: Sequence[tuple[Mixture, int]], direction: Direction) -> float:
    """No composed loss is larger: absent-first, -ln P[c = 0] bounds that of a step."""
    if direction == "present-first":
        return math.inf
    return -math.fsum(pair.ratio.log_zero * steps for pair, steps in phases) * (1.0 + 1e-12)
