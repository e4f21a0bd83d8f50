"""Immutable JSON values of specs, findings and evidence, and canonical JSON for digests and cache keys."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias, TypeVar

#: A JSON value: None, bool, int, float, str, a list or tuple of values, or a mapping from strings to values.
Json: TypeAlias = Any

_T = TypeVar("_T")


class FrozenMap(dict[str, Json]):
    """A dict without changes, hashable, equal to any dict with the same items.

    It is a dict, so that libraries take it for one: ``pandas.DataFrame(series.columns)`` has its columns.

    >>> m = freeze({"rate": 0.01, "sizes": [1, 2]})
    >>> m["sizes"]
    (1, 2)

    Raises:
        TypeError: It is changed. ``dict(m)`` is a copy that can be.
    """

    __slots__ = ("_hash", "_typed")

    def __init__(self, items: Mapping[str, Json] | Iterable[tuple[str, Json]] | None = None) -> None:
        """items: a mapping, or pairs, which ``dataclasses.asdict`` gives to a dict."""
        super().__init__({k: freeze(v) for k, v in dict(items or ()).items()})
        self._hash: int | None = None
        self._typed: dict[Callable[[FrozenMap], Any], Any] = {}

    def __hash__(self) -> int:  # type: ignore[override]
        if self._hash is None:
            self._hash = hash(frozenset(self.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise TypeError("a FrozenMap does not change: dict(m) is a copy that can be changed")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def typed(self, read: Callable[[FrozenMap], _T]) -> _T:
        """``read(self)``, an immutable value that is cached with the map but ignored by equality, hash and pickle."""
        if read not in self._typed:
            self._typed[read] = read(self)
        typed_value: _T = self._typed[read]
        return typed_value

    def copy(self) -> FrozenMap:
        """The map: it does not change."""
        return self

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> FrozenMap:
        return self

    def __reduce__(self) -> tuple[type[FrozenMap], tuple[dict[str, Json]]]:
        return type(self), (dict(self),)


def freeze(value: Json) -> Json:
    """Convert mappings to :class:`FrozenMap` and lists to tuples, recursively."""
    if isinstance(value, FrozenMap):
        return value
    if isinstance(value, Mapping):
        return FrozenMap(value)
    if isinstance(value, list | tuple):
        return tuple(map(freeze, value))
    return value


def deeper_than(value: Json, levels: int) -> bool:
    """Whether a plain JSON value is nested more than ``levels`` levels deep. Not recursive."""
    containers = [value]
    for _ in range(levels + 1):
        containers = [inner for inner in containers if isinstance(inner, dict | list)]
        if not containers:
            return False
        containers = [part for inner in containers for part in (inner.values() if isinstance(inner, dict) else inner)]
    return True


def thaw(value: Json) -> Json:
    """Convert a frozen value to plain dicts and lists for ``json.dumps``."""
    if isinstance(value, Mapping):
        return {k: thaw(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return list(map(thaw, value))
    return value


def without(block: Mapping[str, Json], keys: Collection[str]) -> FrozenMap:
    """The mapping without these keys."""
    return FrozenMap({key: value for key, value in block.items() if key not in keys})


def canonical_json(value: Json) -> str:
    """Write a JSON value with sorted keys, without spaces, in ASCII.

    Raises:
        ValueError: NaN or infinity; the message names the place.
        TypeError: Not a JSON value; the message names the place.
    """
    plain = thaw(value)
    try:
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(_unfit(plain, "") or str(error)) from None


def digest(value: Json) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def _unfit(value: Json, path: str) -> str:
    """Describe the first value that JSON cannot represent, or return an empty string."""
    if value is None or isinstance(value, bool | int | str):
        return ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{path or 'it'} is {value}, which JSON cannot hold"
    if isinstance(value, dict):
        members = ((f"{path}.{key}" if path else str(key), part) for key, part in value.items())
    elif isinstance(value, list):
        members = ((f"{path}[{i}]", part) for i, part in enumerate(value))
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        return f"{path or 'it'} is a {kind}; JSON holds numbers, texts, truth values, lists and maps of Python's own"
    return next((text for member_path, part in members if (text := _unfit(part, member_path))), "")
