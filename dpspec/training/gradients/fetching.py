"""Numbers between a GPU and its host: sent without waiting, and fetched many at once, when somebody asks for them.

Whoever asks a GPU for one number waits until all that was asked of it before is done. What logs and observers measure
step by step therefore stays there and is fetched in blocks, as it is: results are those of asking at once, bit by bit.
On a CPU nothing is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

#: A number: at hand, or (0-dimensional) on a GPU that may still be computing it.
Number: TypeAlias = float | Tensor

#: A block is fetched when it holds so many entries or bytes.
_ENTRIES, _BYTES = 256, 16 * 2**20

T = TypeVar("T")


def send(tensor: Tensor, device: str | torch.device) -> Tensor:
    """The tensor on a device. From a CPU to a GPU nobody waits: memory that is not pinned is copied aside at once."""
    return tensor.to(device, non_blocking=tensor.device.type == "cpu")


def at_hand(tensor: Tensor) -> Number:
    """A 0-dimensional tensor as a float where that costs no waiting, on a CPU; elsewhere as it is."""
    return float(tensor) if tensor.device.type == "cpu" else tensor


def fetch(tensors: Sequence[Tensor]) -> list[Array]:
    """Arrays of their own, bit by bit the same; one copy for all that stand on a GPU, which is the same for all."""
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
    """Whether both of every pair have one shape, type, place and the same entries; nothing equals what is no number."""
    if any((a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device) for a, b in pairs):
        return False
    if all(a.device.type == "cpu" for a, _ in pairs):
        return all(torch.equal(a, b) for a, b in pairs)
    return bool(torch.stack([(a == b).all() for a, b in pairs]).all())


class Later:
    """Hands what is added to it on, in order: on a CPU at once, from a GPU in blocks."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._bytes = 0

    def add(self, take: Callable[..., None], *values: Any) -> None:
        """``take`` is going to be called with ``values``, tensors as arrays; nobody changes them from here on."""
        tensors = _tensors(values)
        self._waiting.append((take, values))
        self._bytes += sum(tensor.nbytes for tensor in tensors)
        full = len(self._waiting) >= _ENTRIES or self._bytes >= _BYTES
        if full or all(tensor.device.type == "cpu" for tensor in tensors):
            self.settle()

    def settle(self) -> None:
        """Fetch what is waiting."""
        if not self._waiting:
            return
        waiting = self._waiting
        self.forget()
        arrays = iter(fetch([tensor for _, values in waiting for tensor in _tensors(values)]))
        for take, values in waiting:
            take(*[next(arrays) if isinstance(value, Tensor) else value for value in values])

    def forget(self) -> None:
        """Drop what is waiting."""
        self._waiting, self._bytes = [], 0


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


class HasLater(Protocol):
    """Something whose attributes are written later."""

    @property
    def later(self) -> Later:
        """What is still to come."""


class Settled(Generic[T]):
    """An attribute that is complete whenever it is read: what is still on a GPU is fetched first."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_settled_{name}"

    @overload
    def __get__(self, one: None, owner: type) -> Settled[T]: ...

    @overload
    def __get__(self, one: HasLater, owner: type) -> T: ...

    def __get__(self, one: HasLater | None, owner: type) -> T | Settled[T]:
        if one is None:
            return self
        one.later.settle()
        found: T = getattr(one, self._name)
        return found

    def __set__(self, one: HasLater, value: T) -> None:
        setattr(one, self._name, value)
