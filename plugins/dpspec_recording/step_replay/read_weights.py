"""Weights of another model that the script trained before, which a step reads, and which move its sum.

The mistake: a teacher that was trained on the same records gives the labels of a private student::

    loss = kl_div(log_softmax(model(batch)), softmax(teacher(batch)))
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpspec_recording.step_replay.limits import ROWS_ROUNDING
from dpspec_recording.step_replay.trace import AbstainError, StepTrace, address_of

if TYPE_CHECKING:
    from dpspec_recording.watching.trained_weights import TrainedWeights

#: The number of searched steps, and of replays in each.
_STEPS, _REPLAYS = 3, 8


class ReadWeights:
    """Searches the first traced steps.

    Attributes:
        found: Those that moved a sum.
    """

    def __init__(self, earlier: Sequence[TrainedWeights]) -> None:
        """earlier: the weights that the script trained before."""
        self.found: list[TrainedWeights] = []
        self._earlier, self._steps = earlier, 0

    def note(self, trace: StepTrace, sums: Sequence[Tensor], omitted: Collection[int]) -> None:
        """Search a stopped trace.

        Args:
            trace: Of the step.
            sums: Its clipped sum.
            omitted: The numbers (``id``) of the trained parameters and of the tensors of the batch.
        """
        if self._steps >= _STEPS or not self._earlier:
            return
        self._steps, replays = self._steps + 1, 0
        for tensor in trace.tensors_before():
            if id(tensor) in omitted or replays >= _REPLAYS:
                continue
            value = trace.value_before(tensor)
            sources = [source for source in self._earlier if source not in self.found and source.include(value)]
            if sources:
                replays += 1
                self.found += sources if _moves(trace, sums, tensor) else []


def _moves(trace: StepTrace, sums: Sequence[Tensor], tensor: Tensor) -> bool:
    """Whether the sum moves if a tensor from before the step has other values."""
    memory = trace.memory_before(tensor)
    memory.view(tensor.dtype).mul_(-1.5).add_(0.5)
    try:
        moved = trace.replay([], sums, {address_of(tensor): memory})
    except AbstainError:
        return False
    pairs = zip(moved, sums, strict=True)
    return any(float(torch.linalg.vector_norm(new - old)) > ROWS_ROUNDING * float(old.norm()) for new, old in pairs)
