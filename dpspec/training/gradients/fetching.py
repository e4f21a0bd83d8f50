"""Transfer tensors between the host and a GPU without synchronizing at every step.

Reading one number from a GPU waits for all of its queued work. Observers therefore keep per-step measurements on the
GPU and fetch them in blocks, with identical bits. On a CPU every value is read immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

#: A float, or a 0-dimensional tensor on a GPU that may still be computing it.
Number: TypeAlias = float | Tensor

#: Maximum number of entries and bytes in the queue before it is flushed.
_ENTRIES, _BYTES = 256, 16 * 2**20

T = TypeVar("T")


def send(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Copy a tensor to a device. A copy from the CPU does not block: unpinned memory is staged first."""
    return tensor.to(device, non_blocking=tensor.device.type == "cpu")


def float_on_cpu(tensor: Tensor) -> Number:
    """Return a 0-dimensional CPU tensor as a float, and a GPU tensor unchanged to avoid a synchronization."""
    return float(tensor) if tensor.device.type == "cpu" else tensor


def fetch(tensors: Sequence[Tensor]) -> list[Array]:
    """Copy tensors into arrays with identical bits, with a single device-to-host transfer for all GPU tensors."""
    away = [tensor.detach() for tensor in tensors if tensor.device.type != "cpu"]
    if away:
        flat = [tensor.reshape(-1).view(torch.uint8) for tensor in away]
        pieces = iter(torch.split(torch.cat(flat).cpu(), [len(piece) for piece in flat]))
    return [
        tensor.detach().numpy().copy()
        if tensor.device.type == "cpu"
        else next(pieces).clone().view(tensor.dtype).view(tensor.shape).numpy()
        for tensor in tensors
    ]


def all_equal(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether both tensors of every pair have the same shape, dtype, device and entries. NaN equals nothing."""
    if any((a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device) for a, b in pairs):
        return False
    if all(a.device.type == "cpu" for a, _ in pairs):
        return all(torch.equal(a, b) for a, b in pairs)
    return bool(torch.stack([(a == b).all() for a, b in pairs]).all())


class TransferQueue:
    """Queue of callbacks with tensor arguments, run in order: immediately on a CPU, in blocks on a GPU."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._bytes = 0

    def add(self, take: Callable[..., None], *values: Any) -> None:
        """Call ``take(*values)`` later, with tensors replaced by arrays. The tensors must not change in between."""
        tensors = [value for value in values if isinstance(value, Tensor)]
        self._waiting.append((take, values))
        self._bytes += sum(tensor.nbytes for tensor in tensors)
        full = len(self._waiting) >= _ENTRIES or self._bytes >= _BYTES
        if full or all(tensor.device.type == "cpu" for tensor in tensors):
            self.flush()

    def flush(self) -> None:
        waiting = self._waiting
        self.clear()
        arrays = iter(fetch([value for _, values in waiting for value in values if isinstance(value, Tensor)]))
        for take, values in waiting:
            take(*[next(arrays) if isinstance(value, Tensor) else value for value in values])

    def clear(self) -> None:
        self._waiting, self._bytes = [], 0


class SyncedAttribute(Generic[T]):
    """Attribute written by queued callbacks: flushes the ``transfers`` of its object before each read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_settled_{name}"

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            raise AttributeError(self._name)
        instance.transfers.flush()
        found: T = getattr(instance, self._name)
        return found

    def __set__(self, instance: Any, value: T) -> None:
        setattr(instance, self._name, value)
