"""Rows as wide as records, which a step reads outside of its batch, and which move its sum.

The mistake: a few records are in the loss of all others, as anchors, exemplars or a support set::

    anchors = x[:10]
    loss = criterion(embed(batch) @ embed(anchors).T, labels)

A rule compares these rows with the dataset: rows of public data or of a weight are not among its records.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from dpspec_recording.step_replay.limits import ROWS_ROUNDING
from dpspec_recording.step_replay.trace import AbstainError, StepTrace, address_of

#: The number of searched steps and of replays in each, the largest tensor in numbers, and the fewest values of a row.
_STEPS, _REPLAYS, _MOST_NUMBERS, _FEWEST_VALUES = 3, 8, 2**18, 4

#: The factor and summand of other values.
_SCALE, _SHIFT = -1.5, 0.5


class OtherRows:
    """Collects them from the first traced steps.

    Attributes:
        rows: Copies (k, d) by the address of their memory.
    """

    def __init__(self) -> None:
        self.rows: dict[int, Tensor] = {}
        self._steps = 0

    def note(self, trace: StepTrace, sums: Sequence[Tensor], omitted: Collection[int], drawn: Sequence[Tensor]) -> None:
        """Search a stopped trace.

        Args:
            trace: Of the step.
            sums: Its clipped sum.
            omitted: The numbers (``id``) of the parameters and of the tensors of the batch.
            drawn: Tensors (b, ...) of the dataset at the drawn records.
        """
        batches = [_flat(rows) for rows in drawn if rows.is_floating_point() and rows.dim() > 1 and len(rows)]
        if self._steps >= _STEPS or not batches:
            return
        self._steps += 1
        widths, replays = {rows.shape[1] for rows in batches}, 0
        for tensor in trace.tensors_before():
            is_searched = tensor.is_floating_point() and tensor.layout == torch.strided and tensor.dim() > 0
            if not is_searched or id(tensor) in omitted or not 0 < tensor.numel() <= _MOST_NUMBERS:
                continue
            rows = _flat(trace.value_before(tensor))
            if rows.shape[1] not in widths or rows.shape[1] < _FEWEST_VALUES or replays >= _REPLAYS:
                continue
            outside = _are_outside(rows, [batch for batch in batches if batch.shape[1] == rows.shape[1]])
            if bool(outside.any()):
                replays += 1
                if _move(trace, sums, tensor, outside):
                    self.rows[address_of(tensor)] = rows[outside].detach().clone()


def _flat(rows: Tensor) -> Tensor:
    """Rows (n, ...) as (n, d); a vector (d,) is one row."""
    return rows.reshape(1, -1) if rows.dim() == 1 else rows.reshape(len(rows), -1)


def _are_outside(rows: Tensor, batches: Sequence[Tensor]) -> Tensor:
    """For each of ``rows`` (n, d), whether it differs from all rows of the batches."""
    of_batches = {bytes(row.numpy().data) for batch in batches for row in batch.detach().cpu().float().contiguous()}
    return torch.tensor([bytes(row.numpy().data) not in of_batches for row in rows.detach().cpu().float().contiguous()])


def _move(trace: StepTrace, sums: Sequence[Tensor], tensor: Tensor, outside: Tensor) -> bool:
    """Whether the sum moves if these rows of a tensor get other values."""
    memory = trace.memory_before(tensor)
    whole = memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    rows = whole[None] if tensor.dim() == 1 else whole
    mask = outside.to(rows.device)
    rows[mask] = _SCALE * rows[mask] + _SHIFT
    try:
        moved = trace.replay([], sums, {address_of(tensor): memory})
    except AbstainError:
        return False
    pairs = zip(moved, sums, strict=True)
    return any(float((new - old).norm()) > ROWS_ROUNDING * float(old.norm()) for new, old in pairs)
