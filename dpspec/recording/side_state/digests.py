"""A digest of a Python value and of everything that is reachable from it, within limits."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Most values that one digest covers, how deep they may be nested, and the most bytes of arrays and strings.
MOST_VALUES, MOST_DEPTH, MOST_BYTES = 100_000, 50, 1 << 30

#: Objects that work on a training and are no part of its state.
_OPAQUE = (torch.optim.Optimizer, torch.Generator, torch.utils.data.DataLoader, torch.device, torch.dtype, type)


class TooLargeError(ValueError):
    """A value exceeds the limits of a digest."""


def digest(value: Any, skip: Collection[int] = ()) -> str:
    """SHA-256 of a value: numbers, strings, tensors, arrays, containers, and the attributes of other objects.

    Functions, classes and optimizers count by their names alone. Values that contain themselves are supported.

    Args:
        value: What to read. Nothing is written to it.
        skip: Identities (``id``) of objects that count by their types alone.

    Raises:
        TooLargeError: If the value exceeds the limits.
    """
    walk = _Walk(skip)
    walk.add(value, 0)
    return walk.hash.hexdigest()


class _Walk:
    def __init__(self, skip: Collection[int]) -> None:
        self.hash = hashlib.sha256()
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
        if isinstance(value, Tensor):
            self._add_tensor(value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self._write(f"{value.dtype} {value.shape}", np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Mapping):
            self._add_all("mapping", [part for item in list(value.items()) for part in item], depth)
        elif isinstance(value, set | frozenset):
            self._write("set", "".join(sorted(digest(one, self._skip) for one in value)).encode())
        elif isinstance(value, functools.partial):
            self._add_all("partial", [value.func, value.args, value.keywords], depth)
        elif callable(value) and hasattr(value, "__qualname__"):
            self._write("function", f"{getattr(value, '__module__', '')}.{value.__qualname__}".encode())
        elif hasattr(value, "__dict__"):
            kept = list(value) if isinstance(value, list | tuple) else []
            self._add_all(type(value).__qualname__, [dict(vars(value)), kept], depth)
        elif hasattr(type(value), "__iter__") and hasattr(type(value), "__len__"):
            self._add_all(type(value).__qualname__, list(value), depth)
        else:
            self._write("object", type(value).__qualname__.encode())

    def _add_all(self, name: str, values: list[Any], depth: int) -> None:
        self._write(name, str(len(values)).encode())
        for one in values:
            self.add(one, depth)

    def _add_tensor(self, value: Tensor) -> None:
        if value.is_meta:
            self._write("meta", str(tuple(value.shape)).encode())
            return
        plain = value.detach().int_repr() if value.is_quantized else value.detach()
        plain = (plain if plain.layout == torch.strided else plain.to_dense()).resolve_conj().resolve_neg()
        content = plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        self._write(f"{value.dtype} {tuple(value.shape)}", content)

    def _write(self, kind: str, content: bytes) -> None:
        self._bytes += len(content)
        if self._bytes > MOST_BYTES:
            raise TooLargeError(f"more than {MOST_BYTES} bytes")
        self.hash.update(f"{kind} {len(content)} ".encode() + content)
