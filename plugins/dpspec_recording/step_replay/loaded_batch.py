"""The batches of a loader when they are loaded, before the script changes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dpspec_recording.step_replay.trace import Operation, StepTrace, tensors_in

_ATEN = torch.ops.aten


class _NotedCollate:
    """A loader's ``collate_fn`` that notes its results. Another process gets the original one."""

    def __init__(self, collate: Callable[[Any], Any], note: Callable[[Any, int], None]) -> None:
        self.original, self._note = collate, note
        self._thread = threading.get_ident()
        self.ended = False

    def __call__(self, samples: Any) -> Any:
        batch = self.original(samples)
        if not self.ended and threading.get_ident() == self._thread and isinstance(samples, list):
            self._note(batch, len(samples))
        return batch

    def __reduce__(self) -> Any:
        return _original, (self.original,)


def _original(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return collate


def original_collate(loader: Any) -> Callable[[Any], Any]:
    """The ``collate_fn`` of a loader, without the notes of its results."""
    collate: Callable[[Any], Any] = loader.collate_fn
    return collate.original if isinstance(collate, _NotedCollate) else collate


def rows_of(batch: Any, records: int) -> list[Tensor]:
    """Return the tensors of a batch that have a row for each of its records."""
    tensors = tensors_in(dict(batch) if isinstance(batch, Mapping) else batch)
    return [tensor for tensor in tensors if tensor.dim() and len(tensor) == records]


def note_batches(loader: Any, note: Callable[[Any, int], None], undo: ExitStack) -> None:
    """Call ``note`` with each batch that this thread loads, and its number of records, until ``undo`` ends it.

    ``BatchMemoryManager`` loads its physical batches by the same function. Workers load in other processes: their
    batches are not noted.
    """
    if not isinstance(loader, DataLoader) or loader.num_workers or loader.batch_sampler is None:
        return
    original = loader.collate_fn
    noted = _NotedCollate(original, note)
    loader.collate_fn = noted

    def end() -> None:
        noted.ended = True
        if loader.collate_fn is noted:
            loader.collate_fn = original

    undo.callback(end)


def comes_from(trace: StepTrace, tensors: Sequence[Tensor], batch: Sequence[Tensor]) -> bool:
    """Return whether noted operations compute one of ``tensors`` from a tensor of ``batch``, or it is one."""
    derived = {id(tensor) for tensor in batch}
    for operation in trace.operations:
        if any(id(tensor) in derived for tensor in tensors_in((operation.args, dict(operation.kwargs)))):
            derived |= {id(tensor) for tensor in tensors_in(operation.results)}
    return any(id(tensor) in derived for tensor in tensors)


def row_order(operation: Operation, rows: int) -> list[Tensor]:
    """Return the integers by which an operation puts a tensor's ``rows`` rows in another order, if it does."""
    source = operation.args[0] if operation.args else None
    if not isinstance(source, Tensor) or not source.dim() or len(source) != rows:
        return []
    order: list[Tensor] = []
    if operation.function is _ATEN.index.Tensor and len(operation.args[1]) == 1:
        order = tensors_in(operation.args[1])
    elif operation.function is _ATEN.index_select.default and operation.args[1] == 0:
        order = [operation.args[2]]
    return [indices for indices in order if indices.shape == (rows,) and not indices.is_floating_point()]
