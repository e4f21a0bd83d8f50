"""Constants that a step reads: short vectors from before it, numbers of Python, and tables of the dataset's records.

The mistake: a function of the loss, or a line of the loop, has a statistic of all records::

    mean, prior = x.mean(0), (torch.bincount(y) / len(y)).log()
    loss = cross_entropy(model(batch - mean) + prior, labels)
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dpspec_recording.step_replay.trace import StepTrace, address_of

#: The largest length of a vector, and the largest number of constants of each kind that are kept.
_LONGEST, _MOST = 4096, 64


class ReadVectors:
    """Collects them from traced steps.

    Attributes:
        vectors: Copies (k,) in double precision, by the address of their memory.
        numbers: Numbers of Python that are not integers.
        tables: Tensors (n, ...) with a row for each of the n records of the dataset, likewise.
    """

    def __init__(self) -> None:
        self.vectors: dict[int, Tensor] = {}
        self.numbers: set[float] = set()
        self.tables: dict[int, Tensor] = {}

    def note(self, trace: StepTrace, omitted: Collection[int], records: int | None = None) -> None:
        """Note the constants of a stopped trace.

        Args:
            trace: Of the step.
            omitted: The numbers (``id``) of the parameters and of the tensors of the batch.
            records: The number n of records of the dataset, if it is known.
        """
        for tensor in trace.tensors_before():
            address, size = address_of(tensor), tensor.numel()
            if id(tensor) in omitted or tensor.layout != torch.strided or not size:
                continue
            is_table = tensor.dim() > 0 and len(tensor) == records
            is_vector = tensor.is_floating_point() and size <= _LONGEST and size == max(tensor.shape, default=1)
            if is_table and len(self.tables) < _MOST:
                self.tables.setdefault(address, tensor.detach())
            elif is_vector and address not in self.vectors and len(self.vectors) < _MOST:
                self.vectors[address] = trace.value_before(tensor).reshape(-1).double().cpu()
        for operation in trace.operations:
            for leaf in tree_leaves((operation.args, dict(operation.kwargs))):
                if type(leaf) is float and math.isfinite(leaf) and leaf != round(leaf) and len(self.numbers) < _MOST:
                    self.numbers.add(leaf)
