"""Fingerprints of tensors, and digests of values.

A fingerprint is equal for equal bits, and differs for other bits except by a random collision. In the host's memory it
is XXH3 of 128 bits with a random seed. On other devices it is two sums modulo 2^64 over the bits of each number as an
integer x: sum x, and sum x w with odd weights w that depend on the place and on random numbers.
"""

import ctypes
import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_128_digest

from dpspec_recording.shards import local

#: Integers of the same size as a number, or as half of one.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}

#: Types of numbers whose memory is read; others are reinterpreted as integers.
_DENSE = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}

#: Numbers that are read in one piece.
_CHUNK = 2**20

#: The key of fingerprints: a seed, and odd factors of the weights.
Key: TypeAlias = tuple[int, int, int]


def key_of(secret: bytes) -> Key:
    """The key from 24 random bytes."""
    seed, first, second = (int.from_bytes(secret[start : start + 8], "little") for start in (0, 8, 16))
    return seed, first // 4 * 2 + 1 - 2**62, second // 4 * 2 + 1 - 2**62


#: The key of this process.
KEY = key_of(secrets.token_bytes(24))

#: The maximum number of values in one digest.
MOST_VALUES = 100_000

#: The digest of a value that cannot be read.
UNREAD = ""


class Tally:
    """A count of events. Events on a device are read when the count is."""

    def __init__(self) -> None:
        self._count, self._waiting = 0, dict[torch.device, Tensor]()

    def add(self, event: bool | Tensor) -> None:
        if isinstance(event, Tensor):
            before = self._waiting.get(event.device)
            self._waiting[event.device] = event.long() if before is None else before + event
        else:
            self._count += event

    def __int__(self) -> int:
        return self._count + sum(int(count) for count in self._waiting.values())


class TensorSnapshot:
    """The bits of tensors and numbers as of the last :meth:`keep`, by fingerprints."""

    def __init__(self) -> None:
        self._fingerprints: list[Any] | None = None

    @property
    def exists(self) -> bool:
        return self._fingerprints is not None

    def forget(self) -> None:
        self._fingerprints = None

    def keep(self, values: Iterable[Any]) -> None:
        self._fingerprints = list(map(fingerprint, values))

    def differ(self, values: Iterable[Any]) -> bool | Tensor:
        """Whether a value has other bits than it had, or none were kept."""
        before = self._fingerprints
        return True if before is None else differ(before, list(map(fingerprint, values)))


def is_plain(value: Tensor) -> bool:
    """Whether a tensor is strided, in CPU memory and of a supported dtype."""
    return value.is_cpu and value.dtype in _DENSE and value.layout == torch.strided and not value.is_neg()


def differ(before: Sequence[Any], now: Sequence[Any]) -> bool | Tensor:
    """Whether any fingerprint or the number of fingerprints differs."""
    if len(before) != len(now):
        return True
    return any_event(_differ(old, new) for old, new in zip(before, now, strict=True))


def _differ(old: Any, new: Any) -> bool | Tensor:
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return (new != old.to(new.device)).any()
    return type(old) is not type(new) or bool(old != new)


def any_event(events: Iterable[bool | Tensor]) -> bool | Tensor:
    """Whether one of the events happened; a tensor if that is to be read from a device."""
    on_devices: list[Tensor] = []
    for event in events:
        if isinstance(event, Tensor):
            on_devices.append(event)
        elif event:
            return True
    return torch.stack([event.to(on_devices[0].device) for event in on_devices]).any() if on_devices else False


def fingerprint(value: Any, key: Key = KEY) -> Any:
    """The fingerprint of a value; a tensor on the device of a tensor that is not in the host's memory."""
    if not isinstance(value, Tensor):
        return repr(value)
    value = local(value)
    if value.is_meta:
        return None
    if not value.is_cpu:
        return _sums(value, key)
    memory = memory_of(value.detach().contiguous() if is_plain(value) else integers(value))
    return value.dtype, value.shape, xxh3_128_digest(memory, key[0])


def _sums(value: Tensor, key: Key) -> Tensor:
    """(2,) the sums of a tensor on another device."""
    sums = torch.zeros(2, dtype=torch.int64, device=value.device)
    for start, part in enumerate(torch.split(integers(value), _CHUNK)):
        bits = part.to(torch.int64)
        positions = (torch.arange(len(bits), device=bits.device) + start * _CHUNK) * key[1]
        weights = ((positions ^ (positions >> 31)) * key[2]) | 1
        sums += torch.stack([bits.sum(), (bits * weights).sum()])
    return sums


def memory_of(value: Tensor) -> Any:
    """The bytes of a contiguous tensor, which is copied from another device.

    ``Tensor.numpy`` would forbid the training to resize the tensor's storage.
    """
    host = value if value.is_cpu else value.cpu()
    width, size = host.element_size(), host.numel()
    if host.untyped_storage().nbytes() < (host.storage_offset() + size) * width:
        raise ValueError("a tensor's memory was freed")
    memory: Any = (ctypes.c_char * (size * width)).from_address(host.data_ptr())
    memory.owner = host  # lives as long as its memory is used
    return memory


def integers(value: Tensor) -> Tensor:
    """The bits of a tensor's numbers in a row, as integers."""
    values = local(value).detach()
    if values.is_quantized:
        values = values.dequantize()
    dense = values if values.layout == torch.strided else values.to_dense()
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.resolve_neg().contiguous().reshape(-1).view(_BITS[real.element_size()])


def tensor_digest(value: Tensor) -> str:
    whole = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode())
    for part in torch.split(integers(value), _CHUNK):  # frozen parameters may be too large for a second copy
        whole.update(memory_of(part))
    return whole.hexdigest()


def digest(value: Any) -> str:
    """SHA-256 of numbers, strings, tensors, arrays, containers, and the attributes of other objects.

    Raises:
        ValueError: The value has more than :data:`MOST_VALUES` parts, or contains itself.
    """
    whole, waiting, count = hashlib.sha256(), [value], 0
    while waiting:
        part, count = waiting.pop(), count + 1
        if count > MOST_VALUES:
            raise ValueError(f"a value has more than {MOST_VALUES} parts")
        content = ""
        if isinstance(part, Tensor):
            content = tensor_digest(part)
        elif part is None or isinstance(part, bool | int | float | complex | str | bytes | np.generic):
            content = repr(part)
        elif isinstance(part, Mapping):
            waiting += [entry for item in part.items() for entry in item]
        elif isinstance(part, list | tuple):
            waiting += part
        elif isinstance(part, set | frozenset):
            waiting += sorted(map(digest, part))
        elif hasattr(part, "__array__"):
            array = np.ascontiguousarray(part)
            content = f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
        else:
            waiting.append(dict(getattr(part, "__dict__", {})))
        whole.update(f"{type(part).__qualname__} {len(waiting)} {len(content)} {content} ".encode())
    return whole.hexdigest()


def readable_digest(value: Any) -> str:
    """The digest of a value; ``UNREAD`` if it is too large or its class fails."""
    try:
        return digest(value)
    except Exception:  # code of the value's own class
        return UNREAD
