"""Values that a script computes from the dataset or from earlier batches, and that a step reads: centroids, priors.

The mistake: in each epoch a statistic of all records enters the loss of each record::

    with torch.no_grad():
        centroids = torch.stack([embed(x[y == k]).mean(0) for k in range(classes)])
    loss = cross_entropy(...) + (embed(batch) - centroids[labels]).square().mean()

Operations between a step and the next batch are followed from the memory of the dataset's tensors and of the batches,
calls of torch within audited steps from the batches, and the model's outputs at batches. Numbers of Python, arrays,
values from before the first step, batches that workers load, and a dataset that is not in memory are not followed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from dpspec_recording.step_replay.limits import ROWS_ROUNDING
from dpspec_recording.step_replay.trace import AbstainError, StepTrace, tensors_in, written_by

#: Operations whose results have the shape of their argument, and not its values.
OF_SHAPES = ("_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")

#: Factors and summands for values. A clamp at 1 hides that a value of 1.7 grows, but not that it is 0.
_OTHER_VALUES = ((1.0, 1.0), (0.0, 0.0))

#: The largest number of operations between steps that are followed.
_MOST_OPERATIONS = 20_000


def memory_of(tensor: Tensor) -> int:
    """The number of the memory of a tensor."""
    number: int = tensor.untyped_storage()._cdata
    return number


def _kept(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class DatasetValues:
    """Follows the values that operations compute from the records, in the tensors of a dataset or in batches."""

    def __init__(self, dataset: Iterable[Tensor], parameters: Iterable[Tensor]) -> None:
        """dataset: the tensors that hold the records. parameters: hold noisy sums alone."""
        #: The memory of the dataset, and of computed values. A weak reference keeps its number from another use.
        self._dataset = {memory_of(tensor): _kept(tensor) for tensor in dataset if tensor.layout == torch.strided}
        self._parameters = set(map(memory_of, parameters))
        self._memory: dict[int, StorageWeakRef] = {}
        self._operations, self._asked = 0, 1

    @property
    def is_followed(self) -> bool:
        """Whether further operations are followed."""
        return self._operations < _MOST_OPERATIONS

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Any) -> None:
        """Note the results of an operation that reads the dataset, or values computed from it."""
        try:
            self._follow(func, args, kwargs, results)
        except Exception:  # a tensor without a memory, as some subclasses are
            self.end()

    def follow_call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Any) -> None:
        """Note the results of a call of torch within a step that reads its batch, or values computed from records."""
        if not self.is_followed or getattr(func, "__name__", "").endswith(OF_SHAPES):
            return
        try:
            if any(map(self._is_computed, tensors_in((args, dict(kwargs))))):
                self.add(tensors_in((results, args[0] if func is Tensor.__setitem__ else None)))
        except Exception:
            self.end()

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Note the tensors of a batch, or results that depend on it."""
        for tensor in tensors if self.is_followed else ():
            number = memory_of(tensor) if tensor.layout == torch.strided else None
            if number is not None and number not in self._parameters and number not in self._dataset:
                self._memory[number] = _kept(tensor)

    def end(self) -> None:
        """Follow no further operation."""
        self._operations = _MOST_OPERATIONS

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Any) -> None:
        self._operations += 1
        if func._schema.name.endswith(OF_SHAPES):
            return
        if any(self._holds(tensor) for tensor in tensors_in((args, dict(kwargs)))):
            self.add((*tensors_in(results), *written_by(func, args, kwargs)))

    def forget_released(self) -> None:
        """Forget the values that the script has released."""
        for number in [number for number, memory in self._memory.items() if memory.expired()]:  # type: ignore[no-untyped-call]
            del self._memory[number]

    def ask_for_trace(self, step: int) -> bool:
        """Whether to trace the step of this number, as it may read values: one in each doubling of the steps."""
        if not self._memory or step < 2 * self._asked:
            return False
        self._asked = step
        return True

    def read_by(self, trace: StepTrace, omitted: Collection[int], lengths: Collection[int]) -> list[Tensor]:
        """The values from before a step that it reads.

        Args:
            trace: The stopped trace of the step.
            omitted: The numbers (``id``) of the tensors of its batch.
            lengths: The numbers of records in the batch and in the dataset: labels have the first length, and tables
                with the second one are searched by :mod:`~dpspec_recording.step_replay.record_tables`.
        """
        return [
            tensor
            for tensor in trace.tensors_before()
            if tensor.is_floating_point()
            and id(tensor) not in omitted
            and self._is_computed(tensor)
            and not (tensor.dim() and len(tensor) in lengths)
        ]

    def _holds(self, tensor: Tensor) -> bool:
        return self._is_computed(tensor) or (tensor.layout == torch.strided and memory_of(tensor) in self._dataset)

    def _is_computed(self, tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and memory_of(tensor) in self._memory


def sums_move(trace: StepTrace, sums: Sequence[Tensor], read: Sequence[Tensor]) -> bool:
    """Whether the clipped ``sums`` of a step depend on the values of tensors that its stopped trace has ``read``."""
    for factor, shift in _OTHER_VALUES if read else ():
        try:
            moved = trace.replay_with_other_memory(read, sums, factor=factor, shift=shift)
        except AbstainError:
            return False
        pairs = zip(moved, sums, strict=True)
        if any(float((new - old).norm()) > ROWS_ROUNDING * float(old.norm()) for new, old in pairs):
            return True
    return False
