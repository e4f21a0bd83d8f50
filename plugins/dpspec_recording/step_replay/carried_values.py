"""Values that a script computes from one batch and that the next step reads: queues, running means, hidden states.

A replay changes the records of one step. A record of an earlier batch also changes this step, beyond its own
contribution, if the step reads a value of that batch. All results of operations on the batch carry its values: the
forward pass, the loss, per-sample gradients, and results of the script until the next batch. Noisy gradients and
parameters do not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from dpspec_recording.step_replay.calls import Pauses, WholeFunctions, enter, is_script_mode_active, leave
from dpspec_recording.step_replay.dataset_values import OF_SHAPES, DatasetValues, memory_of, sums_move
from dpspec_recording.step_replay.trace import Operation, StepTrace, tensors_in, written_by


class CarriedValues(TorchDispatchMode):
    """Follows the values of a traced step until the next one. It changes no value and draws no number."""

    def __init__(self, parameters: Sequence[Tensor], pauses: Pauses, of_dataset: DatasetValues | None = None) -> None:
        """parameters: hold noisy sums alone. of_dataset: follows the values of the dataset between steps."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._of_dataset = of_dataset
        self._parameters = {memory_of(parameter) for parameter in parameters}
        self._pauses = pauses
        #: The memory that holds values of the batch. A weak reference keeps its number from another use.
        self._memory: dict[int, StorageWeakRef] = {}
        self._before: dict[int, StorageWeakRef] = {}  # of the batch before
        self._released: set[int] = set()  # memory of sums, which noise hides
        self._active, self._whole = False, WholeFunctions(self)

    def begin(self, trace: StepTrace, batch: Sequence[Tensor], released: Sequence[Tensor] = ()) -> None:
        """Note the values of a stopped trace that come from the tensors of its batch.

        Args:
            trace: Of the step.
            batch: The tensors of its batch.
            released: Sums whose noise the trace may show too: results that read them may be noisy.
        """
        self._before, self._memory = self._memory, {}
        self._released = set(map(memory_of, released))
        for tensor in batch:
            self._add(tensor)
        self.follow(trace.operations)

    def forget(self, tensors: Sequence[Tensor]) -> None:
        """Follow these tensors no longer: the batch may be a view of the dataset."""
        for tensor in tensors:
            self._memory.pop(memory_of(tensor), None)

    def follow(self, operations: Sequence[Operation]) -> None:
        """Note the values that further operations of the step compute from the batch."""
        for operation in operations:
            self._follow(operation.function, operation.args, operation.kwargs, operation.results)

    def start(self) -> None:
        """Follow values after the step: values that :meth:`begin` noted, and values of the dataset."""
        follows = bool(self._memory) or (self._of_dataset is not None and self._of_dataset.is_followed)
        if follows and not is_script_mode_active():
            self._active = True
            enter(self._whole)
            self.__enter__()  # type: ignore[no-untyped-call]
        else:
            self._memory = {}

    def stop(self, *, keep: bool = False) -> None:
        """End, and unless ``keep`` forget the values."""
        if self._active:
            self._active = False
            leave(self._whole)
            if _get_current_dispatch_mode() is self:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if self._of_dataset is not None:
            self._of_dataset.forget_released()
        if not keep:
            self._memory = {}

    def move(self, trace: StepTrace, sums: Sequence[Tensor], omitted: Collection[int]) -> bool:
        """Whether the sums of the next step depend on the values.

        Args:
            trace: The stopped trace of the next step.
            sums: Its clipped sum.
            omitted: The numbers (``id``) of the tensors of its batch.
        """
        read = [tensor for tensor in trace.tensors_before() if id(tensor) not in omitted and self._holds(tensor)]
        read = [tensor for tensor in read if tensor.is_floating_point()]
        return sums_move(trace, sums, read)

    def held_before(self, tensor: Tensor) -> bool:
        """Whether a tensor of a step holds values of the batch before the one of :meth:`begin`."""
        return tensor.layout == torch.strided and memory_of(tensor) in self._before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        if self._active and not self._pauses.depth:
            self._follow(func, args, kwargs or {}, results)
            if self._of_dataset is not None and self._of_dataset.is_followed:
                self._of_dataset.follow(func, args, kwargs or {}, results)
        return results

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Any) -> None:
        if func._schema.name.endswith(OF_SHAPES):
            return
        if any(map(self._holds, tensors_in((args, dict(kwargs))))):
            for tensor in (*tensors_in(results), *written_by(func, args, kwargs)):
                self._add(tensor)

    def _add(self, tensor: Tensor) -> None:
        number = memory_of(tensor)
        if number not in self._parameters | self._released and number not in self._memory:
            self._memory[number] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

    def _holds(self, tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and memory_of(tensor) in self._memory
