"""Fingerprints of tensors, and digests of any Python value.

Fingerprints are equal for equal bits, and differ for other bits except by a random collision. In the host's memory a
fingerprint of up to 256 kB is the bytes themselves. Of more it is sum x w modulo 2^64 over words x of 32 bits, with
secret random weights w of 64 bits: other bits give the same sum with probability 2^-33 at most, because a difference of
two words has less than 32 zero bits at its end. On other devices it is two sums modulo 2^64 over the bits of each
number as an integer x: sum x, and sum x w with odd weights w that depend on the place and on random numbers.
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import secrets
import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.recording.ranks.shards import local

#: Integers of the same size as a number, or as half of one.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}

#: Types whose tensors numpy shares the memory of; others are reinterpreted.
_NUMPY = {torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool}

#: Numbers that are read in one piece.
_CHUNK = 2**20

#: Largest number of bytes that are their own fingerprint, and weights of the words of larger ones.
_EXACT = 2**18
_WEIGHTS = np.frombuffer(secrets.token_bytes(2**18), dtype=np.uint64)

#: Random numbers of this process, odd, for the weights.
_FIRST, _SECOND = (secrets.randbits(62) * 2 + 1 - 2**62 for _ in range(2))

#: The bytes or sums of values in the host's memory, and the sums of the others.
Fingerprint: TypeAlias = tuple[list[Any], list[Tensor]]

#: Limits of one digest: values, depth of nesting, and bytes of arrays and strings.
MOST_VALUES, MOST_DEPTH, MOST_BYTES = 100_000, 50, 1 << 30

#: Objects that work on a training and are not part of its state.
_OPAQUE = (
    *(torch.optim.Optimizer, torch.utils.data.DataLoader, torch.device, torch.dtype, type),
    *(ModuleType, logging.Logger, logging.Handler),
)

#: The digest of a value that cannot be compared.
UNREAD = ""


class Tally:
    """A count of events. Events on a device are read when the count is."""

    def __init__(self) -> None:
        self._known, self._waiting = 0, dict[torch.device, Tensor]()

    def add(self, event: bool | Tensor) -> None:
        if isinstance(event, Tensor):
            before = self._waiting.get(event.device)
            self._waiting[event.device] = event.long() if before is None else before + event
        else:
            self._known += event

    def __int__(self) -> int:
        return self._known + sum(int(count) for count in self._waiting.values())


def require_plain(tensors: Iterable[Tensor | None]) -> None:
    """Raise ``TypeError`` for a tensor of the script's own class, whose arithmetic runs the script's code."""
    for one in tensors:
        kind = type(one)
        if one is None or kind is Tensor or kind is nn.Parameter or (strange := type(local(one))) is Tensor:
            continue
        raise TypeError(f"a parameter or gradient is of class {strange.__name__}: the recorder knows torch's own only")


def fingerprint(values: Iterable[Any]) -> Fingerprint:
    host: list[Any] = []
    device: list[Tensor] = []
    _collect(values, host, device)
    return host, device


def differs(one: Fingerprint, other: Fingerprint) -> bool | Tensor:
    if one[0] != other[0] or len(one[1]) != len(other[1]):
        return True
    if not one[1]:
        return False
    device = one[1][0].device
    now, then = (torch.stack([sums.to(device) for sums in side[1]]) for side in (one, other))
    return (now != then).any()


def _collect(values: Iterable[Any], host: list[Any], device: list[Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            value = local(value)
            if value.is_cpu:
                host.append(_bytes(value))
            elif value.is_meta:
                host.append(None)
            else:
                device.append(_sums(value))
        elif isinstance(value, float):
            host.append(struct.pack("<d", value))
        elif isinstance(value, int):
            host.append(value)
        elif isinstance(value, dict):
            _collect(value.values(), host, device)
        elif isinstance(value, list | tuple):
            _collect(value, host, device)


def _bytes(value: Tensor) -> tuple[Any, ...]:
    known = value.dtype in _NUMPY and value.layout == torch.strided
    array = value.detach().numpy() if known and not value.is_neg() else integers(value).numpy(force=True)
    if array.nbytes <= _EXACT:
        return value.dtype, value.shape, array.tobytes()
    words = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rest = len(words) % 4
    whole = words[: len(words) - rest].view(np.uint32)
    parts = (whole[start : start + len(_WEIGHTS)] for start in range(0, len(whole), len(_WEIGHTS)))
    sums = (int(np.dot(part.astype(np.uint64), _WEIGHTS[: len(part)])) for part in parts)
    return value.dtype, value.shape, words[len(words) - rest :].tobytes(), *sums


def _sums(value: Tensor) -> Tensor:
    """(2,) the sums of a tensor on another device."""
    found = torch.zeros(2, dtype=torch.int64, device=value.device)
    for start, part in enumerate(torch.split(integers(value), _CHUNK)):
        bits = part.to(torch.int64)
        places = (torch.arange(len(bits), device=bits.device) + start * _CHUNK) * _FIRST
        weights = ((places ^ (places >> 31)) * _SECOND) | 1
        found += torch.stack([bits.sum(), (bits * weights).sum()])
    return found


def integers(value: Tensor) -> Tensor:
    """The bits of a tensor's numbers in a row, as integers."""
    value = local(value)
    value = value.detach().dequantize() if value.is_quantized else value.detach()
    dense = value if value.layout == torch.strided else value.to_dense()
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.resolve_neg().contiguous().reshape(-1).view(_BITS[real.element_size()])


def tensor_digest(value: Tensor) -> str:
    whole = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode())
    for part in torch.split(integers(value), _CHUNK):  # frozen parameters may be too large for a second copy
        whole.update(part.cpu().numpy().data)
    return whole.hexdigest()


class TooLargeError(ValueError):
    """A value exceeds the limits of a digest."""


def digest(value: Any, skip: Collection[int] = (), *, functions: bool = False) -> str:
    """SHA-256 of numbers, strings, tensors, arrays, containers, and the attributes of other objects.

    Classes, optimizers and loaders count by name, random generators by seed, and objects whose ``id`` is in ``skip`` by
    type. Functions count by name, or with ``functions`` also by their defaults, enclosed variables and bound object.
    Values may contain themselves. Raises :class:`TooLargeError` beyond the limits.
    """
    walk = _Walk(skip, functions)
    walk.add(value, 0)
    return walk.hash.hexdigest()


def readable_digest(value: Any, skip: Collection[int] = ()) -> str:
    """The digest of a value with the contents of its functions; ``UNREAD`` if it is too large or its class fails."""
    try:
        return digest(value, skip, functions=True)
    except Exception:  # code of the value's own class
        return UNREAD


class _Walk:
    def __init__(self, skip: Collection[int], functions: bool) -> None:
        self.hash, self._functions = hashlib.sha256(), functions
        self._skip, self._seen, self._bytes = skip, dict[int, int](), 0
        self._kept: list[Any] = []

    def add(self, value: Any, depth: int) -> None:
        if depth > MOST_DEPTH or len(self._seen) > MOST_VALUES:
            raise TooLargeError(f"more than {MOST_VALUES} values, or nested deeper than {MOST_DEPTH}")
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | bytearray | np.generic):
            self._write(type(value).__name__, repr(value).encode("utf-8", "surrogatepass"))
        elif id(value) in self._skip or isinstance(value, _OPAQUE):
            self._write("opaque", type(value).__qualname__.encode())
        elif id(value) in self._seen:
            self._write("again", str(self._seen[id(value)]).encode())
        else:
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)  # so that no other object gets its identity meanwhile
            self._add_object(value, depth + 1)

    def _add_object(self, value: Any, depth: int) -> None:
        name, parts = type(value).__qualname__, list[Any]()
        if isinstance(value, Tensor):
            content = b"" if value.is_meta else integers(value).cpu().numpy().tobytes()
            return self._write(f"{value.dtype} {tuple(value.shape)}", content)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return self._write(f"{value.dtype} {value.shape}", np.ascontiguousarray(value).tobytes())
        if isinstance(value, set | frozenset):
            members = sorted(digest(one, self._skip, functions=self._functions) for one in value)
            return self._write("set", "".join(members).encode())
        if isinstance(value, torch.Generator):
            return self._write("generator", str(value.initial_seed()).encode())
        if isinstance(value, PurePath):
            return self._write(name, str(value).encode("utf-8", "surrogatepass"))
        if isinstance(value, Mapping):
            name, parts = "mapping", [part for item in list(value.items()) for part in item]
        elif isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
        elif isinstance(value, io.BytesIO | io.StringIO):
            parts = [value.tell(), value.getvalue()]
        elif isinstance(value, CellType):
            parts = [value.cell_contents] if value != CellType() else []
        elif callable(value) and hasattr(value, "__qualname__"):
            self._write("function", f"{getattr(value, '__module__', '')}.{value.__qualname__}".encode())
            name, parts = "enclosed", _enclosed(value) if self._functions else []
        elif hasattr(value, "__dict__") or _slots(value):
            kept = list(value) if isinstance(value, list | tuple) else []
            parts = [{**getattr(value, "__dict__", {}), **_slots(value)}, kept]
        elif hasattr(type(value), "__iter__") and hasattr(type(value), "__len__"):
            parts = list(value)
        self._write(name, str(len(parts)).encode())
        for one in parts:
            self.add(one, depth)
        return None

    def _write(self, kind: str, content: bytes) -> None:
        self._bytes += len(content)
        if self._bytes > MOST_BYTES:
            raise TooLargeError(f"more than {MOST_BYTES} bytes")
        self.hash.update(f"{kind} {len(content)} ".encode() + content)


def _enclosed(function: Any) -> list[Any]:
    if isinstance(function, MethodType | BuiltinFunctionType):
        return [getattr(function, "__func__", None), function.__self__]
    if isinstance(function, FunctionType):
        held = (function.__closure__, function.__defaults__, function.__kwdefaults__)
        return [*held, dict(vars(function))]
    return []


def _slots(value: Any) -> dict[str, Any]:
    found = {}
    for kind in type(value).__mro__:
        given = vars(kind).get("__slots__", ())
        for name in (given,) if isinstance(given, str) else given:
            place = f"_{kind.__name__.lstrip('_')}{name}" if name[:2] == "__" and name[-2:] != "__" else name
            if hasattr(value, place):
                found[place] = getattr(value, place)
    found.pop("__dict__", None)
    found.pop("__weakref__", None)
    return found
