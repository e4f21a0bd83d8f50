"""Tests of each step: p is the smallest tail of all steps with a Bonferroni correction.

Privacy is lost step by step, and a sum over all steps lets steps compensate each other. The values of the steps
(squared norms of noise, batch sizes) have one distribution. If a value may contain more than the noise, it is at least
that distribution given the past; then only values that are too small are tested (``both`` is False).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np

from dpspec.stats.conformance.evidence import StepSums, StepValue
from dpspec.stats.conformance.measurement import LEVEL, Measurement

Array: TypeAlias = np.ndarray[Any, Any]

#: Replaces values that are not finite, because evidence is JSON.
_HUGE = 1e300


class Law(Protocol):
    """Declared distribution of the value of a step, and of sums over steps."""

    @property
    def both(self) -> bool:
        """Whether large values contradict the declaration as well."""

    @property
    def test(self) -> str:
        """Name of the test of a sum."""

    @property
    def declared(self) -> float:
        """Declared value, in the unit of :meth:`size`."""

    def below(self, total: float, steps: int) -> float:
        """P[sum over ``steps`` steps <= ``total``]."""

    def above(self, total: float, steps: int) -> float:
        """P[sum over ``steps`` steps >= ``total``]."""

    def size(self, total: float, steps: int) -> float:
        """Estimate of the declared value from a sum."""

    def detectable(self, most: float, steps: int, level: float) -> float | None:
        """Deviation of ``steps`` steps that is rejected at ``level``, if their sum is at most ``most`` otherwise."""


def summary(values: Array, numbers: Array | None = None, count: int | None = None) -> StepSums:
    """Return minimum and maximum of ``values`` (T,), T >= 1.

    Args:
        values: Values of the steps.
        numbers: Numbers of the steps (T,), from 1. Default: all steps in order.
        count: Degrees of freedom of a step, for squared norms of noise.
    """
    given = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=_HUGE, posinf=_HUGE, neginf=0.0)
    step = np.arange(1, len(given) + 1) if numbers is None else numbers
    low, high = int(np.argmin(given)), int(np.argmax(given))
    least, most = (StepValue(_number(given[i]), int(step[i])) for i in (low, high))
    return StepSums(steps=len(given), least=least, most=most, count=count)


def single(sums: StepSums, law: Law) -> Measurement:
    """Test each step; ``detectable`` is the deviation of one step, even of the step with the largest value."""
    tails = [(law.below(sums.least.value, 1), sums.least.value, sums.least.step)]
    if law.both:
        tails.append((law.above(sums.most.value, 1), sums.most.value, sums.most.step))
    tried = sums.steps * len(tails)
    p_value, value, step = min(tails)
    return Measurement(
        test=f"{law.test} at each step, step {step}",
        declared=law.declared,
        measured=law.size(value, 1),
        p_value=min(1.0, tried * p_value),
        detectable=law.detectable(sums.most.value, 1, LEVEL / tried),
    )


def _number(value: float) -> float | int:
    """Round to nine digits, and keep integers."""
    capped = float(np.clip(value, -_HUGE, _HUGE))
    return int(capped) if capped.is_integer() and abs(capped) < 2.0**53 else float(f"{capped:.9g}")
