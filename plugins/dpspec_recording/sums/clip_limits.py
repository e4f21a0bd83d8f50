"""The norm to which Opacus clips gradients, and the norm by which it scales their noise.

Its optimizer scales noise by ``max_grad_norm``. Flat and adaptive clipping read the same attribute, per-layer clipping
reads the list ``max_grad_norms``, and ghost clipping reads ``max_grad_norm`` of the model. A scheduler or a script may
change one norm alone, or change both between the physical batches of a step.
"""

import math
from typing import Any

from dpspec_recording.folder.merging import ClipLimitFacts

#: Relative rounding of the root of the sum of squares of limits, which Opacus computes in float32.
CLIP_ROUNDING = 1e-5

#: The largest ratio of norms that a recording holds.
_LARGEST = 1e9


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


class ClipLimits:
    """Compares both norms at each step.

    A step without long gradients does not show the difference in its contributions. Its sensitivity is larger all the
    same.
    """

    def __init__(self) -> None:
        self._limit = 0.0
        self._larger, self._smallest, self._largest = 0, math.inf, 0.0

    @property
    def facts(self) -> ClipLimitFacts | None:
        """None without steps."""
        if self._largest == 0.0:
            return None
        smallest, largest = (min(ratio, _LARGEST) for ratio in (self._smallest, self._largest))
        return ClipLimitFacts(larger=self._larger, smallest=smallest, largest=largest)

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
