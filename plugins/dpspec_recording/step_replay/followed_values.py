"""Values that operations compute from records, from one step to the next: queues, running means, centroids, priors.

The mistake: a statistic of all records, or a value of the batch before, enters the loss of each record::

    with torch.no_grad():
        centroids = torch.stack([embed(x[y == k]).mean(0) for k in range(classes)])
    loss = cross_entropy(...) + (embed(batch) - centroids[labels]).square().mean()

Operations are followed by the memory that they read and write: within a traced step, and between it and the next batch.
Calls of torch within audited steps, and the model's outputs at batches, are followed too. Parameters hold noisy sums
alone. Not followed: numbers of Python, arrays, values from before the first step, and batches that workers load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from dpspec_recording.step_replay.calls import Pauses, WholeFunctions, enter, is_script_mode_active, leave
from dpspec_recording.step_replay.trace import Operation, StepTrace, tensors_in, written_by

#: Operations whose results have the shape of their argument, and not its values.
_OF_SHAPES = ("_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")

#: The largest number of operations between steps that are followed from the dataset.
MOST_OPERATIONS = 20_000


class FollowedValues:
    """The memory of values that operations compute from records."""

    def __init__(self, excluded: Iterable[Tensor], sources: Iterable[Tensor] = (), most: float = math.inf) -> None:
        """Follow values.

        Args:
            excluded: Tensors that hold noisy sums alone, such as parameters.
            sources: The tensors of the dataset.
            most: The largest number of operations.
        """
        #: A weak reference keeps the number of a memory from another use.
        self._sources = {_memory(tensor): _kept(tensor) for tensor in sources if _has_memory(tensor)}
        self._excluded = frozenset(map(_memory, excluded))
        self._memory: dict[int, StorageWeakRef] = {}
        self._left = most

    @property
    def is_followed(self) -> bool:
        """Whether further operations are followed."""
        return self._left > 0

    def __bool__(self) -> bool:
        return bool(self._memory)

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether a tensor has computed values."""
        return _has_memory(tensor) and _memory(tensor) in self._memory

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Any) -> None:
        """Note the results of an operation that reads the dataset, or values computed from records."""
        self._left -= 1
        with _Ending(self):
            if func._schema.name.endswith(_OF_SHAPES):
                return
            read = tensors_in((args, dict(kwargs)))
            if any(tensor in self or (_has_memory(tensor) and _memory(tensor) in self._sources) for tensor in read):
                self.add((*tensors_in(results), *written_by(func, args, kwargs)))

    def follow_call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Any) -> None:
        """Note the results of a call of torch within a step that reads its batch, or values computed from records."""
        with _Ending(self):
            is_of_shape = getattr(func, "__name__", "").endswith(_OF_SHAPES)
            if self.is_followed and not is_of_shape and any(t in self for t in tensors_in((args, dict(kwargs)))):
                self.add(tensors_in((results, args[0] if func is Tensor.__setitem__ else None)))

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Note the tensors of a batch, or results that depend on it."""
        for tensor in tensors if self.is_followed else ():
            number = _memory(tensor) if _has_memory(tensor) else None
            if number is not None and number not in self._excluded and number not in self._sources:
                self._memory.setdefault(number, _kept(tensor))

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Follow these tensors no longer."""
        for tensor in tensors:
            self._memory.pop(_memory(tensor), None)

    def forget_released(self) -> None:
        """Forget the values that the script has released."""
        self._memory = {number: memory for number, memory in self._memory.items() if not memory.expired()}  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Follow no further operation."""
        self._left = 0


class _Ending:
    """Ends the search at an error, as of a tensor without a memory, which some subclasses have."""

    def __init__(self, values: FollowedValues) -> None:
        self._values = values

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> bool:
        if kind is not None and issubclass(kind, Exception):
            self._values.end()
            return True
        return False


class BetweenSteps(TorchDispatchMode):
    """Follows values of a traced step until the next one, and values of the dataset. It changes no value.

    Attributes:
        of_batch: Values that operations compute from the last traced batch.
        before: The same of the traced batch before.
        of_dataset: Values that they compute from the dataset, or from batches.
        loaded: The last batch.
    """

    def __init__(self, parameters: Sequence[Tensor], pauses: Pauses, dataset: Iterable[Tensor] | None = None) -> None:
        """dataset: the tensors of the dataset; None if its values are not followed."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._parameters, self._pauses = parameters, pauses
        self.of_batch, self.before = FollowedValues(parameters), FollowedValues(parameters)
        self.of_dataset = FollowedValues(parameters, dataset or (), 0 if dataset is None else MOST_OPERATIONS)
        self.loaded = FollowedValues(parameters)
        self._active, self._whole = False, WholeFunctions(self)

    def load(self, batch: Sequence[Tensor]) -> None:
        """The loader returns the tensors of a batch."""
        self.of_dataset.add(batch)
        self.loaded = FollowedValues(self._parameters)
        self.loaded.add(batch)

    def begin(self, trace: StepTrace, batch: Sequence[Tensor], released: Sequence[Tensor] = ()) -> None:
        """Note the values of a stopped trace that come from the tensors of its batch.

        Args:
            trace: Of the step.
            batch: The tensors of its batch.
            released: Sums whose noise the trace may show too: results that read them may be noisy.
        """
        self.before, self.of_batch = self.of_batch, FollowedValues([*self._parameters, *released])
        self.of_batch.add(batch)
        self.follow(trace.operations)

    def follow(self, operations: Sequence[Operation]) -> None:
        """Note the values that further operations of the step compute from the batch."""
        for operation in operations:
            self.of_batch.follow(operation.function, operation.args, operation.kwargs, operation.results)

    def start(self) -> None:
        """Follow values after the step."""
        if (self.of_batch or self.of_dataset.is_followed) and not is_script_mode_active():
            self._active = True
            enter(self._whole)
            self.__enter__()  # type: ignore[no-untyped-call]
        else:
            self.of_batch = FollowedValues(self._parameters)

    def stop(self, *, keep: bool = False) -> None:
        """End, and unless ``keep`` forget the values of the batch."""
        if self._active:
            self._active = False
            leave(self._whole)
            if _get_current_dispatch_mode() is self:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.of_dataset.forget_released()
        if not keep:
            self.of_batch = FollowedValues(self._parameters)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        if self._active and not self._pauses.depth:
            for values in (self.of_batch, self.of_dataset):
                if values.is_followed:
                    values.follow(func, args, kwargs or {}, results)
        return results


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided


def _memory(tensor: Tensor) -> int:
    """The number of the memory of a tensor."""
    number: int = tensor.untyped_storage()._cdata
    return number


def _kept(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
