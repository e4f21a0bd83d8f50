"""Of one number per step, what the tests of steps need: the extremes of its sums over some steps.

The layout of evidence is here too: which steps are looked at, how many coordinates, which patterns of steps are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpspec.json_records import Amount, Positive, Real, Record, Row, Share

Array: TypeAlias = np.ndarray[Any, Any]

#: At most so many coordinates of each step's noise are kept, evenly spaced, and at most so many numbers in all.
MOST_COORDINATES, MOST_NUMBERS = 4096, 2**22

#: So many coordinates of the first step tell whether two runs share their noise.
FIRST_COORDINATES = 1024

#: Stretches and patterns of steps are tested in runs of so many steps and more; every k-th step up to k of this.
LEAST_STEPS, MOST_PERIODS = 12, 32


def kept_width(steps: int) -> int:
    """How many coordinates of a step are kept, so that ``steps`` steps need no more than 16 MiB."""
    return max(64, min(MOST_COORDINATES, MOST_NUMBERS // max(1, steps)))


def looked(steps: int, looks: int | None) -> Array:
    """(steps,) bool: at most ``looks`` of the steps, spread evenly, the first one among them; all where it is None."""
    seen = np.zeros(steps, dtype=bool)
    seen[np.linspace(0, steps - 1, min(looks or steps, steps)).round().astype(int)] = True
    return seen


def stretch_lengths(steps: int) -> list[int]:
    """The lengths of the stretches of steps that are tested: powers of 2 up to half of ``steps``."""
    return [2**k for k in range(1, steps.bit_length()) if 2 ** (k + 1) <= steps]


def last_period(steps: int) -> int:
    """Every k-th step is tested for k from 2 to this."""
    return min(MOST_PERIODS, steps // 2)


@dataclass(frozen=True)
class StepValue(Row):
    """The value of one step, and its number, from 1 on."""

    value: Amount
    step: Positive


@dataclass(frozen=True)
class StretchSums(Row):
    """The least and the largest sum over ``length`` steps in a row."""

    length: Positive
    least: Amount
    most: Amount


@dataclass(frozen=True)
class PeriodSums(Row):
    """Of the sums over every ``period``-th step the most surprising ones, and how many steps each adds up."""

    period: Positive
    least_steps: Positive
    least: Amount
    most_steps: Positive
    most: Amount


@dataclass(frozen=True)
class SomeSteps(Row):
    """The likelihood ratio that any steps have another size: its logarithm, and the share and size that say most."""

    log_ratio: Real
    share: Share
    size: Amount


@dataclass(frozen=True, kw_only=True)
class StepSums(Record):
    """The extremes of all sums over some steps of a run (see ``step_tests``).

    count: where the values are squared lengths of noise, the degrees of freedom of one step.
    """

    steps: Positive
    least: StepValue
    most: StepValue
    stretches: tuple[StretchSums, ...] | None = None
    every: tuple[PeriodSums, ...] | None = None
    any: SomeSteps | None = None
    count: Positive | None = None

    def problem(self) -> str | None:
        """Patterns are those of so many steps, and nothing is least that is above the most."""
        if self.least.value > self.most.value:
            return f"least must be at most {self.most.value}, got {self.least.value}"
        if (self.stretches is None, self.every is None, self.any is None) != (self.steps < LEAST_STEPS,) * 3:
            return f"stretches, every and any must be there from {LEAST_STEPS} steps on, and only then"
        if self.stretches is None or self.every is None:
            return None
        lengths = stretch_lengths(self.steps)
        if [one.length for one in self.stretches] != lengths or any(one.least > one.most for one in self.stretches):
            return f"stretches must be ordered sums over {lengths} steps"
        if [one.period for one in self.every] != list(range(2, 1 + last_period(self.steps))):
            return f"every must be sums over every 2nd to {last_period(self.steps)}th step"
        for one in self.every:
            if not {one.least_steps, one.most_steps} <= {self.steps // one.period, -(-self.steps // one.period)}:
                return f"every must add up each {one.period}th of {self.steps} steps"
        return None
