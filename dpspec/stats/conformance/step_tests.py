"""Tests of each step: p is the smallest tail of all steps with a Bonferroni correction.

A sum over all steps lets steps compensate each other. The values of the steps (squared norms of noise, batch sizes)
have one distribution. If a value may contain more than the noise, only small ones are tested (``both`` is False).
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpspec.json_records import Amount, Positive, Record, Row
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance.measurement import LEVEL, Measurement
from dpspec.stats.conformance.noise_tests import StepNoise
from dpspec.stats.conformance.sampling import BatchSize

Array: TypeAlias = np.ndarray[Any, Any]

#: Replaces values that are not finite, because evidence is JSON.
HUGE = 1e300


@dataclass(frozen=True)
class StepValue(Row):
    """The value at one step, and the step's number from 1."""

    value: Amount
    step: Positive


@dataclass(frozen=True, kw_only=True)
class StepSums(Record):
    """Minimum and maximum over ``steps`` steps of one number per step.

    ``count``: degrees of freedom of each step, if the values are squared norms of noise.
    """

    steps: Positive
    least: StepValue
    most: StepValue
    count: Positive | None = None

    def problem(self) -> str | None:
        if self.least.value > self.most.value:
            return f"least must be at most {self.most.value}, got {self.least.value}"
        return None


#: Declared distribution of the value of a step.
Law: TypeAlias = StepNoise | BatchSize | TruncatedSize


def summary(values: Array, numbers: Array | None = None, count: int | None = None) -> StepSums:
    """Return minimum and maximum of ``values`` (T,), T >= 1, at the steps ``numbers`` (T,), by default 1 to T."""
    given = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=HUGE, posinf=HUGE, neginf=0.0)
    step = np.arange(1, len(given) + 1) if numbers is None else numbers

    def value_at(place: np.intp) -> StepValue:
        """Round to nine digits, and keep integers."""
        value = float(np.clip(given[place], -HUGE, HUGE))
        whole = value.is_integer() and abs(value) < 2.0**53
        return StepValue(int(value) if whole else float(f"{value:.9g}"), int(step[place]))

    return StepSums(steps=len(given), least=value_at(np.argmin(given)), most=value_at(np.argmax(given)), count=count)


def single(sums: StepSums, law: Law) -> Measurement:
    """Test each step; ``detectable`` is the deviation of one step, even of the step with the largest value."""
    tails = [(law.below(sums.least.value), sums.least.value, sums.least.step)]
    if law.both:
        tails.append((law.above(sums.most.value), sums.most.value, sums.most.step))
    tried = sums.steps * len(tails)
    p_value, value, step = min(tails)
    return Measurement(
        test=f"{law.test} at each step, step {step}",
        declared=law.declared,
        measured=law.size(value),
        p_value=min(1.0, tried * p_value),
        detectable=law.detectable(sums.most.value, LEVEL / tried),
    )
