"""The JSON text of results, and its JSON Schema."""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any, Literal, Union, get_args, get_origin

from dpspec.contract import FrozenMap, Json
from dpspec.contract.diagnostics import rename_in_result
from dpspec.contract.frozen import deeper_than
from dpspec.engine.results.result import SCHEMA, SCHEMA_1, Result
from dpspec.engine.results.result_validation import require_sound
from dpspec.errors import ResultError
from dpspec.json_records import hints_of, read, write
from dpspec.text import json_text, shortened

#: Maximum size of a result. Each trial embeds at most 1 MiB.
MAX_BYTES = 1 << 30

#: Maximum nesting of values, so that recursive functions do not exhaust the stack.
MAX_DEPTH = 100

#: Maximum number of digits of an integer, so that it converts to a float.
MAX_DIGITS = 300


def dump(result: Result, *, indent: int | None = 1) -> str:
    """Write a result as JSON text that :func:`load` reads back equal."""
    return json_text(json.dumps(write(result), indent=indent, allow_nan=False, ensure_ascii=False)) + "\n"


def load(text: str) -> Result:
    """Read a result of version 2 or 1. Raises ``ResultError`` with the place of an invalid value."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ResultError(f"not JSON: {error}") from None
    if deeper_than(data, MAX_DEPTH):
        raise ResultError(f"not a dpspec result: values are nested deeper than {MAX_DEPTH} levels")
    if isinstance(data, dict) and data.get("schema") == SCHEMA_1:
        data = {**rename_in_result(data), "schema": SCHEMA}
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ResultError(f"not a dpspec result: schema is {found!r}, expected {SCHEMA!r}")
    result = _read(data)
    require_sound(result)
    return result


def reread(result: Result) -> Result:
    return _read(write(result))


def _read(data: Json) -> Result:
    try:
        return read(Result, data, "result")
    except ValueError as error:
        raise ResultError(str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse repeated keys, because programs differ in which value they use."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ResultError(f"not a dpspec result: the key {shortened(twice, 60)!r} stands twice in one mapping")
    return found


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ResultError(f"not a dpspec result: it holds an integer of {len(text.lstrip('-'))} digits")
    return int(text)


def _refuse_constant(text: str) -> float:
    raise ResultError(f"not a dpspec result: it holds {text}, which is not JSON")


def result_schema() -> dict[str, Json]:
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
            hints, fields = hints_of(hint), dataclasses.fields(hint)  # type: ignore[arg-type]
            definitions[name] = {
                "type": "object",
                "description": " ".join((hint.__doc__ or "").split()),
                "properties": {f.name: _schema(hints[f.name], definitions) for f in fields},
                "required": [f.name for f in fields],
                "additionalProperties": False,
            }
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
