"""Frozen dataclasses from JSON and back: one reader that checks types and ranges, one writer.

A field's annotation says what its JSON may be: ``bool``, ``str``, :data:`Count` and its like, another record, a tuple
of one of these, or a mapping from names to one. A field that may be None may be absent. Keys that no field has are left
alone, so that later versions can add some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from dpspec.contract import Json

#: Larger numbers are refused, so that a few thousand of them still have a finite sum.
LARGEST = 1e304


class Between:
    """The range of a number: ``least`` <= number <= ``most``."""

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most


Count: TypeAlias = Annotated[int, Between(0, 2**63 - 1)]
Positive: TypeAlias = Annotated[int, Between(1, 2**63 - 1)]
Whole: TypeAlias = Annotated[int, Between(-(2**63), 2**63 - 1)]
Real: TypeAlias = Annotated[float, Between(-LARGEST, LARGEST)]
Amount: TypeAlias = Annotated[float, Between(0.0, LARGEST)]
AboveZero: TypeAlias = Annotated[float, Between(5e-324, LARGEST)]
Share: TypeAlias = Annotated[float, Between(5e-324, 1.0)]

_Reader: TypeAlias = Callable[[Json, str], Any]


class Record:
    """A dataclass that is written as a mapping, without the fields that are None."""

    def problem(self) -> str | None:
        """Where fields contradict each other: the field's name and what it must be. None where they do not."""
        return None


class Row(Record):
    """A dataclass that is written as a list of its fields, in order."""


R = TypeVar("R", bound=Record)


#: Marks a field for a record, or None, whose own fields stand beside the others in the JSON.
INLINE = {"inline": True}


def read(kind: type[R], value: Json, where: str) -> R:
    """The record that ``value`` is the JSON of; ``where`` names it in the ``ValueError`` that is raised otherwise."""
    hint: Any = kind
    record: R = _reader(hint)(value, where)
    return record


def write(record: Record) -> Json:
    """The JSON of a record: keys in the order of its fields."""
    kind: Any = type(record)
    if isinstance(record, Row):
        return [_plain(getattr(record, one.name)) for one in _fields(kind)]
    found: dict[str, Json] = {}
    for one in _fields(kind):
        value = getattr(record, one.name)
        if value is not None:
            found |= write(value) if one.metadata.get("inline") else {one.name: _plain(value)}
    return found


def _plain(value: Any) -> Json:
    if isinstance(value, Record):
        return write(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value


@cache
def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


@cache
def _reader(hint: Any) -> _Reader:
    """What reads the values of one annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _number(inner[0], inner[1])
    if origin in (Union, UnionType):
        (kept,) = (one for one in inner if one is not NoneType)
        return _reader(kept)
    if origin is tuple:
        return _list(inner[0])
    if origin is not None:
        return _mapping(inner[1])
    if issubclass(hint, Row):
        return _row(hint)
    return _record(hint) if issubclass(hint, Record) else _of_type(hint)


def _refuse(where: str, rule: str, value: Json) -> ValueError:
    huge = isinstance(value, int) and value.bit_length() > 200  # too long to be spelled out
    return ValueError(f"{where} must be {rule}, got {'a huge number' if huge else _shortened(repr(value))}")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _number(kind: type, limits: Between) -> _Reader:
    allowed = (int,) if kind is int else (int, float)
    noun = "a whole number" if kind is int else "a number"

    def read_number(value: Json, where: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, allowed) or not limits.least <= value <= limits.most:
            raise _refuse(where, f"{noun} from {limits.least:.4g} to {limits.most:.4g}", value)
        return value

    return read_number


def _shown(key: str) -> str:
    """A name as it stands in messages: whoever wrote the JSON chose it."""
    return _shortened(key if key.isprintable() else repr(key))


def _of_type(kind: type) -> _Reader:
    def read_value(value: Json, where: str) -> Any:
        if type(value) is not kind:
            raise _refuse(where, f"of type {kind.__name__}", value)
        return value

    return read_value


def _list(hint: Any) -> _Reader:
    read_item = _reader(hint)

    def read_list(value: Json, where: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _refuse(where, "a list", value)
        return tuple(read_item(item, f"{where}[{i}]") for i, item in enumerate(value))

    return read_list


def _mapping(hint: Any) -> _Reader:
    read_item = _reader(hint)

    def read_mapping(value: Json, where: str) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _refuse(where, "a mapping from names", value)
        return {key: read_item(item, f"{where}.{_shown(key)}") for key, item in value.items()}

    return read_mapping


def _row(kind: Any) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = [(one.name, _reader(hints[one.name])) for one in _fields(kind)]
    names = ", ".join(name for name, _ in readers)

    def read_row(value: Json, where: str) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise _refuse(where, f"a list of {len(readers)}: {names}", value)
        parts = zip(readers, value, strict=True)
        return _checked(kind(*(reader(item, f"{where}[{i}]") for i, ((_, reader), item) in enumerate(parts))), where)

    return read_row


def _record(kind: Any) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    plain = [one for one in _fields(kind) if not one.metadata.get("inline")]
    required = [one.name for one in plain if one.default is MISSING]
    readers = {one.name: _reader(hints[one.name]) for one in plain}
    inlined = {one.name: _inlined(hints[one.name]) for one in _fields(kind) if one.metadata.get("inline")}

    def read_record(value: Json, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _refuse(where, "a mapping", value)
        absent = next((name for name in required if name not in value), None)
        if absent is not None:
            raise ValueError(f"{where}.{absent} is missing")
        found = {name: reader(value[name], f"{where}.{name}") for name, reader in readers.items() if name in value}
        found |= {name: reader(value, where) for name, (keys, reader) in inlined.items() if keys & set(value)}
        return _checked(kind(**found), where)

    return read_record


def _inlined(hint: Any) -> tuple[set[str], _Reader]:
    """The keys of a record that stands within another, and what reads it."""
    (kind,) = (one for one in get_args(hint) if one is not NoneType)
    return {one.name for one in _fields(kind)}, _reader(kind)


def _checked(record: Record, where: str) -> Record:
    problem = record.problem()
    if problem is not None:
        raise ValueError(f"{where}.{problem}")
    return record
