"""The norm to which Opacus clips gradients, and the norm by which it scales their noise.

The mistake: a script sets one norm, and clips to a longer one than the noise belongs to::

    optimizer.max_grad_norm = 0.5          # scales the noise
    # with ghost clipping the model's max_grad_norm clips, per layer the list max_grad_norms: both stay 1.0

A scheduler may change one norm alone, or change both between the physical batches of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpspec.decimals import nearest
from dpspec_recording.folder.merging import Count, Number, join_by
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun

#: Relative rounding of the root of the sum of squares of limits, which Opacus computes in float32.
CLIP_ROUNDING = 1e-5

#: The largest ratio of norms that a recording holds.
_LARGEST = 1e9


@dataclass(frozen=True, kw_only=True)
class ClipLimitFacts:
    """Norms of clipping over norms of the noise: the steps with a larger one, the smallest and the largest ratio."""

    larger: Count = field(metadata=join_by(max, sum))
    smallest: Number = field(metadata=join_by(min))
    largest: Number = field(metadata=join_by(max))


LIMITS = Fault(
    name="clip-limits",
    condition="clipping",
    title="norm to which gradients are clipped, over the norm by which their noise is scaled",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/202",
    advice=(
        "Opacus clips by max_grad_norms per layer, or by the model's max_grad_norm with ghost clipping. It "
        "scales noise by the optimizer's max_grad_norm, which alone its schedulers set. Set both, between "
        "steps and not between physical batches; with layers the optimizer's is the root of the sum of "
        "squares."
    ),
)


class ClipLimits(Observer[ClipLimitFacts]):
    """Compares both norms at each step.

    A step without long gradients does not show the difference in its contributions. Its sensitivity is larger all the
    same.
    """

    name, kind, needs = "clip_limits", ClipLimitFacts | None, "before_clip"

    def __init__(self) -> None:
        self._limit = 0.0
        self._larger, self._smallest, self._largest = 0, math.inf, 0.0

    def start(self, training: Training) -> None:
        """Keep the optimizer, which has the norm of the noise."""
        self._training = training

    def before_clip(self) -> None:
        """Read the norm of clipping."""
        given_parts = self._training.script_parts
        model = given_parts.hooks or given_parts.model
        self.clip(clip_limit(given_parts.optimizer, given_parts.clipping or "", model))

    def after_noise(self) -> None:
        """Compare it with the norm of the noise."""
        self.add_noise(self._training.step.clip_norm)

    def clip(self, limit: float) -> None:
        """A physical batch of the step is clipped to a norm; NaN clips nothing."""
        self._limit = math.inf if math.isnan(limit) else max(self._limit, limit)

    def add_noise(self, clip_norm: float) -> None:
        """The sum of the step gets noise that is scaled by a norm."""
        limit, self._limit = self._limit, 0.0
        if limit == 0.0:  # no gradient was clipped
            return
        ratio = limit / clip_norm if clip_norm > 0.0 else math.inf
        self._larger += ratio > 1.0 + CLIP_ROUNDING
        self._smallest, self._largest = min(self._smallest, ratio), max(self._largest, ratio)

    def facts(self) -> ClipLimitFacts | None:
        """None if no gradient was clipped."""
        if self._largest == 0.0:
            return None
        smallest, largest = (min(ratio, _LARGEST) for ratio in (self._smallest, self._largest))
        return ClipLimitFacts(larger=self._larger, smallest=smallest, largest=largest)

    @staticmethod
    def judge(facts: ClipLimitFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """No step may clip to a longer norm. A rank may have clipped no batch, a single process with rows has."""
        if facts is not None:
            advice = (
                f"Gradients are clipped to up to {nearest(facts.largest, digits=3)} times the norm by which their "
                f"noise is scaled: the noise multiplier is smaller than declared. {LIMITS.advice}"
            )
            note = f"larger at {facts.larger} of {run.steps} steps"
            right, advice = facts.larger == 0, advice if facts.largest else ""
            yield LIMITS.compared(right, 1.0, facts.largest, note, CLIP_ROUNDING, advice=advice)


def clip_limit(optimizer: Any, clipping: str, model: Any) -> float:
    """The norm to which Opacus clips the gradient of a record now.

    Args:
        optimizer: Opacus' optimizer.
        clipping: ``flat``, ``per-layer``, ``adaptive`` or ``ghost``.
        model: Opacus' object that computes the clipping factors of ghost clipping.
    """
    if clipping == "per-layer":
        return math.hypot(*map(float, optimizer.max_grad_norms))
    return abs(float((model if clipping == "ghost" else optimizer).max_grad_norm))
