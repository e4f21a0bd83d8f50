"""The noisy count of unclipped records by which Opacus' ``AdaClipDPOptimizer`` chooses its next clip norm.

The mistakes: the count gets no noise, or the clip norm follows from something else than the noisy count::

    optimizer.unclipped_num_std = 0.0
    optimizer.max_grad_norm = float(norms.median())     # of these records

The optimizer multiplies the clip norm by exp(-rate (count / rows - quantile)), between two limits, after each update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dpspec_recording.folder.events import ADAPTIVE_CONSTANTS
from dpspec_recording.folder.merging import Count, Number, join_by
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement
from dpspec_recording.watching.noise_statistics import spread

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun

#: Relative difference of clip norms in float32 that rounding explains.
_ROUNDING = 1e-5

_SUM, _MAX = join_by(sum), join_by(max)


@dataclass(frozen=True, kw_only=True)
class AdaptiveFacts:
    """Noisy counts of adaptive clipping. squares, largest: the sum and the largest of the squares of their noise over
    its variance; silent: counts without noise; unexplained: clip norms that do not follow; least_std: of the noise, in
    records."""

    counts: Count = field(metadata=_SUM)
    squares: Number = field(metadata=_SUM)
    largest: Number = field(metadata=_MAX)
    silent: Count = field(metadata=_SUM)
    unexplained: Count = field(metadata=_SUM)
    least_std: Number = field(metadata=join_by(min))


COUNT_NOISE = Fault(
    name="count-noise",
    condition="noise-scale",
    title="noise of the count of unclipped records",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/757",
    advice="Leave add_noise and unclipped_num_std of the optimizer unchanged.",
)
SILENT = Fault(
    name="silent-counts",
    condition="noise-scale",
    title="counts of unclipped records without noise",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/757",
    advice=("Leave add_noise and unclipped_num_std of the optimizer unchanged: a count without noise shows a record."),
)
NEXT_NORM = Fault(
    name="next-clip-norm",
    condition="data-independent-hyperparameters",
    title="clip norms that do not follow from the noisy count before",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/757",
    advice="Let AdaClipDPOptimizer alone set its clip norm: others may depend on the records.",
)


class AdaptiveCount(Observer[AdaptiveFacts]):
    """Observes the noise of each count, and compares each clip norm with the one that follows from the count before."""

    name, kind = "adaptive", AdaptiveFacts | None

    def __init__(self) -> None:
        self._optimizer: Any = None
        self._count = 0.0
        self._next_clip_norm: float | None = None
        self._facts = AdaptiveFacts(counts=0, squares=0.0, largest=0.0, silent=0, unexplained=0, least_std=math.inf)

    def start(self, training: Training) -> None:
        """Keep an optimizer that counts."""
        if training.script_parts.clipping == "adaptive":
            self._optimizer = training.private_optimizer

    def before_noise(self) -> None:
        """Keep the count without noise, and compare the clip norm."""
        if self._optimizer is None:
            return
        self._count = float(self._optimizer.unclipped_num)
        expected, clip_norm = self._next_clip_norm, float(self._optimizer.max_grad_norm)
        if expected is not None and not abs(clip_norm - expected) <= _ROUNDING * expected:
            self._facts = replace(self._facts, unexplained=self._facts.unexplained + 1)

    def after_noise(self) -> None:
        """Measure the noise of the count, and compute the next clip norm."""
        if self._optimizer is None:
            return
        std, quantile, rate, low, high = (float(getattr(self._optimizer, name)) for name in ADAPTIVE_CONSTANTS)
        noisy, rows = float(self._optimizer.unclipped_num), int(self._optimizer.sample_size)
        square = ((noisy - self._count) / std) ** 2 if std > 0.0 else 0.0
        before = self._facts
        self._facts = AdaptiveFacts(
            counts=before.counts + 1,
            squares=before.squares + square,
            largest=max(before.largest, square),
            silent=before.silent + (square == 0.0),
            unexplained=before.unexplained,
            least_std=min(before.least_std, std),
        )
        share = noisy / rows if rows else math.copysign(math.inf, noisy)
        grown = math.exp(min(700.0, -rate * (share - quantile)))  # beyond 700, exp overflows
        self._next_clip_norm = min(high, max(low, float(self._optimizer.max_grad_norm) * grown))

    def facts(self) -> AdaptiveFacts | None:
        """None for other clipping, and before the first count."""
        return self._facts if self._facts.counts else None

    @staticmethod
    def judge(facts: AdaptiveFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """The declared noise is on each count, and clip norms follow from noisy counts.

        The squares of all counts show a wrong scale of the noise, the largest one a wrong noise of a single step.
        """
        if facts is None or not facts.counts:
            return
        steps = facts.counts
        of_all = spread(facts.squares, steps, COUNT_NOISE.title)
        yield COUNT_NOISE.measured(of_all, f"of all {steps} counts")
        single = spread(facts.largest, 1, COUNT_NOISE.title, steps)
        yield COUNT_NOISE.measured(single, f"at each step, of {steps}", limit_of="one-step")
        yield SILENT.none_found(facts.silent, f"{steps} steps")
        yield NEXT_NORM.none_found(facts.unexplained, f"{steps} steps")
