"""Short vectors from before a step that the step reads, and the columns with a number for each record.

The mistake: a function of the loss has weights or a prior from the label counts of all records::

    prior = (torch.bincount(y) / len(y)).log()
    loss = cross_entropy(logits + prior, labels)
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from dpspec_recording.step_replay.trace import StepTrace, address_of

#: The largest length of a vector, and the largest number of vectors that are kept.
_LONGEST, _MOST = 1024, 64


class ReadVectors:
    """Collects them from traced steps.

    Attributes:
        vectors: Copies (k,) in double precision.
        columns: Tensors (n,), one number for each of the n records of the dataset.
    """

    def __init__(self) -> None:
        self.vectors: list[Tensor] = []
        self.columns: list[Tensor] = []
        self._noted: set[int] = set()

    def note(self, trace: StepTrace, omitted: Collection[int], records: int | None = None) -> None:
        """Note the tensors of a stopped trace.

        Args:
            trace: Of the step.
            omitted: The numbers (``id``) of the parameters and of the tensors of the batch.
            records: The number n of records of the dataset, if it is known.
        """
        for tensor in trace.tensors_before():
            address, size = address_of(tensor), tensor.numel()
            if id(tensor) in omitted or tensor.layout != torch.strided or size != max(tensor.shape, default=1):
                continue
            if address in self._noted or len(self._noted) >= _MOST:
                continue
            if size == records and size > 1:
                self.columns.append(tensor.detach())
            elif tensor.is_floating_point() and 1 <= size <= _LONGEST:
                self.vectors.append(trace.value_before(tensor).reshape(-1).double().cpu())
            else:
                continue
            self._noted.add(address)
