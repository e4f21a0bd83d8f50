"""The noisy count of unclipped records by which Opacus' ``AdaClipDPOptimizer`` chooses its next clip norm.

It multiplies the clip norm by exp(-rate (count / rows - quantile)), between two limits, after each update.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import MethodType
from typing import Any

from dpspec_recording.folder.merging import AdaptiveFacts
from dpspec_recording.watching.step_hooks import put_method

#: The attributes of the optimizer that choose the clip norm, which must be constants.
CONSTANTS = (
    *("unclipped_num_std", "target_unclipped_quantile", "clipbound_learning_rate"),
    *("min_clipbound", "max_clipbound"),
)

#: Relative difference of clip norms in float32 that rounding explains.
_ROUNDING = 1e-5


class AdaptiveCount:
    """Observes the noise of each count, and compares each clip norm with the one that follows from the count before.

    Attributes:
        facts: The observations.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._count = optimizer, 0.0
        self._next_clip_norm: float | None = None
        self.facts = AdaptiveFacts(counts=0, squares=0.0, largest=0.0, silent=0, unexplained=0, least_std=math.inf)

    def attach(self, guarded: Callable[[Callable[[], None]], None], undo: ExitStack) -> None:
        """Begin to observe, until ``undo`` ends it."""
        add_noise = self._optimizer.add_noise

        def observed(_: Any) -> None:
            guarded(self._before)
            add_noise()
            guarded(self._after)

        undo.callback(put_method(self._optimizer, "add_noise", MethodType(observed, self._optimizer)))

    def _before(self) -> None:
        self._count = float(self._optimizer.unclipped_num)
        expected, clip_norm = self._next_clip_norm, float(self._optimizer.max_grad_norm)
        if expected is not None and not abs(clip_norm - expected) <= _ROUNDING * expected:
            self.facts = replace(self.facts, unexplained=self.facts.unexplained + 1)

    def _after(self) -> None:
        std, quantile, rate, low, high = (float(getattr(self._optimizer, name)) for name in CONSTANTS)
        noisy, rows = float(self._optimizer.unclipped_num), int(self._optimizer.sample_size)
        square = ((noisy - self._count) / std) ** 2 if std > 0.0 else 0.0
        before = self.facts
        self.facts = AdaptiveFacts(
            counts=before.counts + 1,
            squares=before.squares + square,
            largest=max(before.largest, square),
            silent=before.silent + (square == 0.0),
            unexplained=before.unexplained,
            least_std=min(before.least_std, std),
        )
        share = noisy / rows if rows else math.copysign(math.inf, noisy)
        grown = math.exp(min(700.0, -rate * (share - quantile)))
        self._next_clip_norm = min(high, max(low, float(self._optimizer.max_grad_norm) * grown))
