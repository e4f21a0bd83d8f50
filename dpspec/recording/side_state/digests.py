"""A digest of a Python value and of everything that is reachable from it, within limits."""

from __future__ import annotations

import functools
import hashlib
import io
import logging
from collections.abc import Collection, Mapping
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Most values that one digest covers, how deep they may be nested, and the most bytes of arrays and strings.
MOST_VALUES, MOST_DEPTH, MOST_BYTES = 100_000, 50, 1 << 30

#: Objects that work on a training and are no part of its state.
_OPAQUE = (
    *(torch.optim.Optimizer, torch.utils.data.DataLoader, torch.device, torch.dtype, type),
    *(ModuleType, logging.Logger, logging.Handler),
)


#: Stands for a value that cannot be compared.
UNREAD = ""


class TooLargeError(ValueError):
    """A value exceeds the limits of a digest."""


def digest(value: Any, skip: Collection[int] = (), *, functions: bool = False) -> str:
    """SHA-256 of a value: numbers, strings, tensors, arrays, containers, and the attributes of other objects.

    Classes, optimizers and loaders count by their names alone, random generators by their seeds. Values that contain
    themselves are supported.

    Args:
        value: What to read. Nothing is written to it.
        skip: Identities (``id``) of objects that count by their types alone.
        functions: Whether functions count with their defaults and the variables that they enclose, and methods with the
            object that they are bound to; otherwise by their names alone.

    Raises:
        TooLargeError: If the value exceeds the limits.
    """
    walk = _Walk(skip, functions)
    walk.add(value, 0)
    return walk.hash.hexdigest()


def readable_digest(value: Any, skip: Collection[int] = ()) -> str:
    """The digest of a value with what its functions enclose; ``UNREAD`` if it is too large or its class fails."""
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
        if isinstance(value, Tensor):
            self._add_tensor(value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self._write(f"{value.dtype} {value.shape}", np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Mapping):
            self._add_all("mapping", [part for item in list(value.items()) for part in item], depth)
        elif isinstance(value, set | frozenset):
            self._write(
                "set", "".join(sorted(digest(one, self._skip, functions=self._functions) for one in value)).encode()
            )
        elif isinstance(value, functools.partial):
            self._add_all("partial", [value.func, value.args, value.keywords], depth)
        elif isinstance(value, torch.Generator):
            self._write("generator", str(value.initial_seed()).encode())
        elif isinstance(value, PurePath):
            self._write(type(value).__name__, str(value).encode("utf-8", "surrogatepass"))
        elif isinstance(value, io.BytesIO | io.StringIO):
            self._add_all("buffer", [value.tell(), value.getvalue()], depth)
        elif isinstance(value, CellType):
            self._add_all("cell", [value.cell_contents] if value != CellType() else [], depth)
        elif callable(value) and hasattr(value, "__qualname__"):
            self._write("function", f"{getattr(value, '__module__', '')}.{value.__qualname__}".encode())
            if self._functions:
                self._add_all("enclosed", _enclosed(value), depth)
        elif hasattr(value, "__dict__") or _slots(value):
            kept = list(value) if isinstance(value, list | tuple) else []
            self._add_all(type(value).__qualname__, [{**getattr(value, "__dict__", {}), **_slots(value)}, kept], depth)
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


def _enclosed(function: Any) -> list[Any]:
    """What a function or method holds: the object that it is bound to, its defaults, variables and attributes."""
    if isinstance(function, MethodType | BuiltinFunctionType):
        return [getattr(function, "__func__", None), function.__self__]
    if isinstance(function, FunctionType):
        held = (function.__closure__, function.__defaults__, function.__kwdefaults__)
        return [*held, dict(vars(function))]
    return []


def _slots(value: Any) -> dict[str, Any]:
    """The attributes that a class keeps in ``__slots__``, by their names."""
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
