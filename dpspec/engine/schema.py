"""The published JSON Schema of results, derived from the dataclasses that a result is made of."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin

from dpspec.contract import FrozenMap, Json
from dpspec.engine.codec import hints_of
from dpspec.engine.result import SCHEMA, Result


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
