"""JSON of frozen dataclasses, in both directions, for results and for the evidence of trials.

Type hints define the JSON. A dataclass becomes a mapping with all its fields, and other keys are refused. A
:class:`Record` omits None and ignores other keys, so that later versions can add fields. A :class:`Row` becomes a list.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from dpspec.contract import FrozenMap, Json, freeze
from dpspec.text import shortened

#: Largest number in a range, so that sums of a few thousand numbers are finite.
LARGEST = 1e304


class Between:
    """Range of a number: ``least`` <= number <= ``most``."""

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most


Count: TypeAlias = Annotated[int, Between(0, 2**63 - 1)]
Positive: TypeAlias = Annotated[int, Between(1, 2**63 - 1)]
Whole: TypeAlias = Annotated[int, Between(-(2**63), 2**63 - 1)]
Real: TypeAlias = Annotated[float, Between(-LARGEST, LARGEST)]
Amount: TypeAlias = Annotated[float, Between(0.0, LARGEST)]
AboveZero: TypeAlias = Annotated[float, Between(5e-324, LARGEST)]
Share: TypeAlias = Annotated[float, Between(5e-324, 1.0)]

#: Metadata of a field whose record's fields are keys of the enclosing mapping.
INLINE = {"inline": True}

_Reader: TypeAlias = Callable[[Json, str], Any]
_INFINITE = {"inf": math.inf, "-inf": -math.inf}


class Record:
    """A dataclass that is written without its None fields."""

    def problem(self) -> str | None:
        """Return how fields contradict each other, starting with the name of a field; None if they do not."""
        return None


class Row(Record):
    """A dataclass that is written as the list of its fields."""


T = TypeVar("T")


def read(kind: type[T], value: Json, where: str) -> T:
    """Read JSON as a value of a type or type hint, with ``ValueError`` at the place ``where`` if it is not one."""
    hint: Any = kind
    record: T = _reader(hint)(value, where)
    return record


def write(value: Any) -> Json:
    """Convert dataclasses, mappings, tuples and numbers except NaN; infinite ones become ``"inf"`` and ``"-inf"``."""
    if value is None or isinstance(value, bool | int | str):  # frequent types first
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("JSON cannot hold NaN")
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {key: write(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [write(part) for part in value]
    if not is_dataclass(type(value)):
        raise TypeError(f"JSON cannot hold a {type(value).__name__}")
    kind: Any = type(value)
    values = {declared.name: getattr(value, declared.name) for declared in _fields(kind)}
    if not isinstance(value, Record):
        return {name: write(part) for name, part in values.items()}
    if isinstance(value, Row):
        return [write(part) for part in values.values()]
    written: dict[str, Json] = {}
    for declared in _fields(kind):
        part = values[declared.name]
        if part is not None:
            written |= write(part) if declared.metadata.get("inline") else {declared.name: write(part)}
    return written


@cache
def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return the resolved type hints of a dataclass, with ranges."""
    return get_type_hints(kind, include_extras=True)


@cache
def _reader(hint: Any) -> _Reader:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, limits = inner
        allowed = (int,) if kind is int else (int, float)
        rule = f"{'an integer' if kind is int else 'a number'} from {limits.least:.4g} to {limits.most:.4g}"
        return _plain(
            lambda value: (
                isinstance(value, allowed) and not isinstance(value, bool) and limits.least <= value <= limits.most
            ),
            rule,
        )
    if origin in (Union, UnionType):
        return _union([_reader(member) for member in inner if member is not NoneType], none=NoneType in inner)
    if origin is Literal:
        return _plain(lambda value: value in inner, f"one of {', '.join(map(str, inner))}")
    if origin is tuple:
        return _list(_reader(inner[0])) if inner[1:] == (...,) else _several([_reader(member) for member in inner])
    if hint is FrozenMap:
        return lambda value, where: freeze(_require_mapping(value, where))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_reader(inner[1]))
    if hint is float:
        return _float
    if hint is Any:
        return lambda value, where: value
    if hint in _PLAIN:
        return _plain(*_PLAIN[hint])
    if isinstance(hint, type) and is_dataclass(hint):
        return _row(hint) if issubclass(hint, Row) else _fields_of_mapping(hint)
    raise TypeError(f"no way to read {hint!r}")


_PLAIN: dict[Any, tuple[Callable[[Json], bool], str]] = {
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), "an integer"),
    str: (lambda value: isinstance(value, str), "a string"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    NoneType: (lambda value: value is None, "null"),
}


def _refusal(where: str, rule: str, value: Json) -> ValueError:
    huge = isinstance(value, int) and value.bit_length() > 200  # too long to be spelled out
    return ValueError(f"{where} must be {rule}, got {'a huge number' if huge else shortened(repr(value), 60)}")


def _plain(allows: Callable[[Json], bool], rule: str) -> _Reader:
    def read_value(value: Json, where: str) -> Any:
        if not allows(value):
            raise _refusal(where, rule, value)
        return value

    return read_value


def _float(value: Json, where: str) -> float:
    number = _INFINITE.get(value, value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _refusal(where, "a number", value)
    try:
        return float(number)
    except OverflowError:
        raise _refusal(where, "a number of at most 1.8e308", value) from None


def _union(readers: list[_Reader], *, none: bool) -> _Reader:
    """Read by the first reader that accepts the value, and report the error of the first one."""

    def read_union(value: Json, where: str) -> Any:
        if none and value is None:
            return None
        errors = []
        for reader in readers:
            try:
                return reader(value, where)
            except ValueError as error:
                errors.append(error)
        raise errors[0]

    return read_union


def _list(read_item: _Reader) -> _Reader:
    def read_list(value: Json, where: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _refusal(where, "a list", value)
        return tuple(read_item(item, f"{where}[{i}]") for i, item in enumerate(value))

    return read_list


def _several(readers: list[_Reader]) -> _Reader:
    def read_several(value: Json, where: str) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise _refusal(where, f"a list of {len(readers)}", value)
        items = zip(readers, value, strict=True)
        return tuple(reader(item, f"{where}[{i}]") for i, (reader, item) in enumerate(items))

    return read_several


def _require_mapping(value: Json, where: str) -> Mapping[str, Json]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _refusal(where, "a mapping", value)
    return value


def _mapping(read_item: _Reader) -> _Reader:
    def read_mapping(value: Json, where: str) -> Any:
        return {key: read_item(item, f"{where}.{_shown(key)}") for key, item in _require_mapping(value, where).items()}

    return read_mapping


def _shown(key: str) -> str:
    """Return an untrusted key in printable form."""
    return shortened(key if key.isprintable() else repr(key), 60)


def _row(kind: Any) -> _Reader:
    readers = [(declared.name, _reader(hints_of(kind)[declared.name])) for declared in _fields(kind)]
    names = ", ".join(name for name, _ in readers)

    def read_row(value: Json, where: str) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise _refusal(where, f"a list of {len(readers)}: {names}", value)
        items = zip(readers, value, strict=True)
        return _checked(kind(*(reader(item, f"{where}[{i}]") for i, ((_, reader), item) in enumerate(items))), where)

    return read_row


def _fields_of_mapping(kind: Any) -> _Reader:
    hints, strict = hints_of(kind), not issubclass(kind, Record)
    plain = [declared for declared in _fields(kind) if not declared.metadata.get("inline")]
    required = [
        declared.name for declared in plain if declared.default is MISSING and declared.default_factory is MISSING
    ]
    readers = {
        declared.name: _reader(hints[declared.name] if strict else _present(hints[declared.name])) for declared in plain
    }
    inner = {
        declared.name: _present(hints[declared.name]) for declared in _fields(kind) if declared.metadata.get("inline")
    }
    inlined = {name: ({declared.name for declared in _fields(part)}, _reader(part)) for name, part in inner.items()}

    def read_fields(value: Json, where: str) -> Any:
        if isinstance(value, kind):  # a value of a table that is already read
            return value
        _require_mapping(value, where)
        if strict and (unknown := sorted(set(value) - set(readers))):
            raise ValueError(f"{where}: unknown key {_shown(unknown[0])!r}")
        absent = next((name for name in required if name not in value), None)
        if absent is not None:
            raise ValueError(f"{where}.{absent} is missing")
        values = {name: reader(value[name], f"{where}.{name}") for name, reader in readers.items() if name in value}
        values |= {name: reader(value, where) for name, (keys, reader) in inlined.items() if keys & set(value)}
        return kind(**values) if strict else _checked(kind(**values), where)

    return read_fields


def _present(hint: Any) -> Any:
    """Return an optional field's hint without None: records omit the field."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    (present,) = (member for member in get_args(hint) if member is not NoneType)
    return present


def _checked(record: Any, where: str) -> Any:
    problem = record.problem()
    if problem is not None:
        raise ValueError(f"{where}.{problem}")
    return record
