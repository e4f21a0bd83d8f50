"""Tables with a row for each record of the dataset, if a step reads rows outside of its batch.

A memory bank of embeddings, soft labels or scores of all records makes each record a part of other gradients. A table
that holds the records themselves is found by its values (:class:`~dpspec_recording.step_replay.held_records
.HeldRecords`). A function of the records is not: its rows are similar if the records are. Rows of a public table are
independent of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from dpspec_recording.step_replay.held_records import DrawnRecords
from dpspec_recording.step_replay.limits import ROWS_ROUNDING
from dpspec_recording.step_replay.trace import AbstainError, StepTrace

#: The number of records whose distances are compared, and the fewest.
MOST_RECORDS, _FEWEST = 256, 40

#: The largest table, and the number of permutations that estimate the null distribution.
_MOST_NUMBERS, _PERMUTATIONS = 2**24, 50

#: The covariance of distances of dependent rows, in standard deviations of the one of permuted rows. The null
#: distribution is a weighted sum of chi-square variables: one alone exceeds 20 with probability 8e-8, or 3e-7 if the
#: estimated deviation is 10 % too small.
_DEPENDENT = 20.0

#: The factor of other rows.
_SCALE = -1.5


def reads_record_table(
    trace: StepTrace, sums: Sequence[Tensor], drawn: DrawnRecords | None, omitted: Collection[int]
) -> bool:
    """Whether the sum depends on rows of a table at other records, and these rows on the records.

    Args:
        trace: The stopped trace of the step.
        sums: Its clipped sum.
        drawn: The records of the batch, and a sample of others.
        omitted: The numbers (``id``) of tensors of parameters and the batch, which are skipped.
    """
    if drawn is None or drawn.records < _FEWEST:
        return False
    for tensor in trace.tensors_before():
        is_table = tensor.dim() in (1, 2) and tensor.layout == torch.strided and tensor.is_floating_point()
        if is_table and id(tensor) not in omitted and drawn.records <= tensor.numel() <= _MOST_NUMBERS:
            for transposed in (False, True)[: tensor.dim()]:
                if tensor.shape[transposed] == drawn.records and _is_read(trace, sums, tensor, drawn, transposed):
                    value = trace.value_before(tensor)
                    if _depends(value.t() if transposed else value, drawn.sample):
                        return True
    return False


def _is_read(trace: StepTrace, sums: Sequence[Tensor], tensor: Tensor, drawn: DrawnRecords, transposed: bool) -> bool:
    """Whether the sum moves if the rows of all other records change."""
    memory = trace.memory_before(tensor)
    whole = memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    rows = whole.t() if transposed else whole
    undrawn = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    undrawn[drawn.indices.to(rows.device)] = False
    rows[undrawn] = _SCALE * rows[undrawn] + 0.5
    try:
        moved = trace.replay([], sums, {tensor.untyped_storage().data_ptr(): memory})
    except AbstainError:
        return False
    pairs = zip(moved, sums, strict=True)
    return any(float((new - old).norm()) > ROWS_ROUNDING * float(old.norm()) for new, old in pairs)


def _depends(table: Tensor, sample: Callable[[], tuple[tuple[Tensor, ...], Tensor] | None]) -> bool:
    """Whether rows of a table (n, ...) depend on the records at a sample of the indices."""
    sampled = sample()
    if sampled is None or len(sampled[1]) < _FEWEST:
        return False
    rows, indices = sampled
    of_table = _centered_distances(table[indices.to(table.device)])
    return any(covariance_of(of_table, _centered_distances(row)) > _DEPENDENT for row in rows)


def covariance_of(first: Tensor, second: Tensor) -> float:
    """The covariance of two matrices of centered distances (n, n), in standard deviations of permuted ones."""
    generator = torch.Generator().manual_seed(0)
    values = torch.stack(
        [
            (first[order][:, order] * second).sum()
            for order in (torch.randperm(len(first), generator=generator) for _ in range(_PERMUTATIONS))
        ]
    )
    deviation = float(values.std())
    return float((first * second).sum() - values.mean()) / deviation if deviation > 0.0 else 0.0


def _centered_distances(rows: Tensor) -> Tensor:
    flat = rows.detach().reshape(len(rows), -1).double().cpu()
    distances = torch.cdist(flat, flat)
    return distances - distances.mean(0) - distances.mean(1, keepdim=True) + distances.mean()
