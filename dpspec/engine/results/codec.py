"""Results as JSON and back, both ways driven by the dataclasses' own type hints, and the JSON Schema that they make."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dpspec.contract import FrozenMap, Json, freeze
from dpspec.contract.frozen import deeper_than
from dpspec.engine.results.result import SCHEMA, Result
from dpspec.engine.results.result_validation import require_sound
from dpspec.errors import ResultError
from dpspec.text import json_text, shortened

#: A result larger than this is refused: trials embed at most 1 MiB each.
MAX_BYTES = 1 << 30

#: Values nested deeper are refused, so that nothing that walks over a result runs out of stack.
MAX_DEPTH = 100

#: Whole numbers of more digits are refused: they are no floats, and everything that compares or prints may need one.
MAX_DIGITS = 300

_INFINITE = {"inf": math.inf, "-inf": -math.inf}


def dump(result: Result, *, indent: int | None = 1) -> str:
    """Write a result as JSON text that :func:`load` reads back equal."""
    return json_text(json.dumps(encode(result), indent=indent, allow_nan=False, ensure_ascii=False)) + "\n"


def load(text: str) -> Result:
    """Read a result. Raises ``ResultError`` saying where the text is not one."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ResultError(f"not JSON: {error}") from None
    if deeper_than(data, MAX_DEPTH):
        raise ResultError(f"not a dpspec result: values are nested deeper than {MAX_DEPTH} levels")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ResultError(f"not a dpspec result: schema is {found!r}, expected {SCHEMA!r}")
    result: Result = decode(Result, data, "result")
    require_sound(result)
    return result


def reread(result: Result) -> Result:
    """The result as :func:`load` would read it: what is made of it can be made again of its JSON."""
    found: Result = decode(Result, encode(result), "result")
    return found


def encode(value: Any) -> Json:
    """Turn dataclasses, maps, tuples and numbers into plain JSON."""
    if value is None or isinstance(value, bool | int | str):  # most of what there is
        return value
    kind: Any = type(value)
    if (names := _names_of(kind)) is not None:
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {k: encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("a result cannot hold NaN")
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    raise TypeError(f"a result cannot hold a {type(value).__name__}")


def decode(hint: Any, data: Json, where: str) -> Any:
    """Read ``data`` as a value of type ``hint``; ``where`` names its place in error texts. Raises ``ResultError``."""
    if hint is float:  # these first: most of what there is
        number = _INFINITE.get(data, data) if isinstance(data, str) else data
        ok = isinstance(number, int | float) and not isinstance(number, bool)
        return float(_require(ok, number, where, "must be a number"))
    if hint is int:
        return _require(isinstance(data, int) and not isinstance(data, bool), data, where, "must be an integer")
    if hint in (str, bool):
        return _require(isinstance(data, hint), data, where, f"must be a {hint.__name__}")
    if hint is type(None):
        return _require(data is None, data, where, "must be null")
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, data, where)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(hint), data, where)
    if origin is Literal:
        return _require(data in get_args(hint), data, where, f"must be one of {', '.join(map(str, get_args(hint)))}")
    if origin is tuple:
        _require(isinstance(data, list), data, where, "must be a list")
        return tuple(decode(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if hint is FrozenMap:
        return freeze(_require(isinstance(data, dict), data, where, "must be a mapping"))
    raise TypeError(f"no way to read {hint!r}")


def _decode_union(members: tuple[Any, ...], data: Json, where: str) -> Any:
    if data is None and type(None) in members:
        return None
    error: ResultError | None = None
    for member in members:
        if member is type(None):
            continue
        try:
            return decode(member, data, where)
        except ResultError as e:
            error = error or e
    raise error or ResultError(f"{where}: unexpected value")


def _decode_dataclass(cls: Any, data: Json, where: str) -> Any:
    _require(isinstance(data, dict), data, where, "must be a mapping")
    hints = hints_of(cls)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ResultError(f"{where}: unknown key {unknown[0]!r}")
    values = {}
    for f in dataclasses.fields(cls):
        if f.name in data:
            values[f.name] = decode(hints[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ResultError(f"{where}: missing key {f.name!r}")
    return cls(**values)


@cache
def _names_of(cls: type) -> tuple[str, ...] | None:
    """The names of a dataclass' fields; None of another class."""
    return tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """The resolved type hints of a dataclass."""
    return get_type_hints(cls)


def _require(ok: bool, data: Any, where: str, text: str) -> Any:
    if not ok:
        raise ResultError(f"{where} {text}, got {shortened(str(data), 60)!r}")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One value for a key: which of several counts, others who read the file may decide otherwise."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ResultError(f"not a dpspec result: the key {shortened(twice, 60)!r} stands twice in one mapping")
    return found


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ResultError(f"not a dpspec result: it holds a whole number of {len(text.lstrip('-'))} digits")
    return int(text)


def _refuse_constant(text: str) -> float:
    raise ResultError(f"not a dpspec result: it holds {text}, which is not JSON")


def result_schema() -> dict[str, Json]:
    """JSON Schema 2020-12 of ``dpspec/result/v1``."""
    definitions: dict[str, Json] = {}
    root = _schema(Result, definitions)
    definitions["Result"]["properties"]["schema"] = {"const": SCHEMA}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "A dpspec result",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _schema(hint: Any, definitions: dict[str, Json]) -> dict[str, Json]:
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        name = hint.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(member, definitions) for member in get_args(hint)]}
    if origin is Literal:
        return {"enum": list(get_args(hint))}
    if origin is tuple:
        return {"type": "array", "items": _schema(get_args(hint)[0], definitions)}
    if hint is float:
        return {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}]}
    plain = {FrozenMap: "object", int: "integer", str: "string", bool: "boolean", type(None): "null"}
    return {"type": plain[hint]}


def _object(cls: Any, definitions: dict[str, Json]) -> dict[str, Json]:
    hints = hints_of(cls)
    return {
        "type": "object",
        "description": " ".join((cls.__doc__ or "").split()),
        "properties": {f.name: _schema(hints[f.name], definitions) for f in dataclasses.fields(cls)},
        "required": [f.name for f in dataclasses.fields(cls)],
        "additionalProperties": False,
    }
