"""Checks a schema fragment of a plugin by hand, at the price of one walk: jsonschema is too slow to import at start.

A fragment becomes part of one big schema that editors read too. Hence the keywords that JSON Schema 2020-12 and
draft-07 share, no references, no ``oneOf`` (it blames the wrong branch), and a description for every property.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dpspec.contract import Json

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_DEEPEST = 32


@dataclass(frozen=True)
class Flaw:
    """One thing wrong with a fragment. A ``fatal`` one makes the plugin unusable; the others are for its author."""

    path: str
    message: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def flaws(fragment: Json, path: str = "") -> Iterator[Flaw]:
    """Everything wrong with one fragment, which must be the schema of a mapping with ``properties``."""
    path = path or "schema"
    if not isinstance(fragment, Mapping):
        yield Flaw(path, f"must be a mapping, not a {type(fragment).__name__}")
    elif fragment.get("type") != "object" or not isinstance(fragment.get("properties"), Mapping):
        yield Flaw(path, "must have type 'object' and a mapping 'properties'")
    else:
        yield from _walk(fragment, path, described=True, depth=0)


def _walk(schema: Json, path: str, *, described: bool, depth: int) -> Iterator[Flaw]:
    """``described``: whether properties found here are new ones; those inside if/then/not refine others."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield Flaw(path, f"must be a schema, not a {type(schema).__name__}")
        return
    if depth > _DEEPEST:
        yield Flaw(path, f"nests deeper than {_DEEPEST} levels")
        return
    for keyword, value in schema.items():
        where = f"{path}.{keyword}"
        if keyword == "oneOf":
            yield Flaw(where, "oneOf gives misleading messages; use if/then, enum or anyOf")
        elif keyword in _ONE:
            yield from _walk(value, where, described=described and keyword not in _REFINING, depth=depth + 1)
        elif keyword in _MANY:
            if not isinstance(value, list | tuple) or not value:
                yield Flaw(where, "must be a list of schemas")
                continue
            for i, part in enumerate(value):
                yield from _walk(part, f"{where}[{i}]", described=False, depth=depth + 1)
        elif keyword in _BY_NAME:
            yield from _named(value, where, described=described, depth=depth)
        elif keyword not in _PLAIN:
            yield Flaw(where, "is not a keyword that JSON Schema 2020-12 and draft-07 share, or is a reference")
        elif not _PLAIN[keyword](value):
            yield Flaw(where, f"has an unusable value {value!r}")
    if described and "properties" in schema and schema.get("additionalProperties") is None:
        yield Flaw(path, "lets misspelt keys pass; set additionalProperties: false", fatal=False)


def _named(value: Json, path: str, *, described: bool, depth: int) -> Iterator[Flaw]:
    if not isinstance(value, Mapping):
        yield Flaw(path, "must be a mapping from names to schemas")
        return
    for name, part in value.items():
        where = f"{path}.{name}"
        if not isinstance(name, str):
            yield Flaw(where, "must be named by text")
            continue
        yield from _walk(part, where, described=described, depth=depth + 1)
        if described and isinstance(part, Mapping) and not part.get("description"):
            yield Flaw(where, "has no description", fatal=False)


def _is_json(value: Json, depth: int = 0) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if value is None or isinstance(value, bool | int | str):
        return True
    if depth > _DEEPEST:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_json(v, depth + 1) for k, v in value.items())
    return isinstance(value, list | tuple) and all(_is_json(v, depth + 1) for v in value)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_list(value: Json) -> bool:
    return isinstance(value, list | tuple) and _is_json(value)


def _is_type(value: Json) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list | tuple) and bool(names) and all(isinstance(n, str) and n in _TYPES for n in names)


def _is_pattern(value: Json) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError):
        return False
    return True


#: Keywords whose value is one schema, a list of schemas, or a mapping from names to schemas.
_ONE = frozenset({"items", "contains", "additionalProperties", "propertyNames", "if", "then", "else", "not"})
_MANY = frozenset({"allOf", "anyOf"})
_BY_NAME = frozenset({"properties", "patternProperties"})
_REFINING = frozenset({"if", "then", "else", "not", "contains", "propertyNames"})

#: All other keywords, with what their value must be.
_PLAIN: dict[str, Callable[[Json], bool]] = {
    "type": _is_type,
    "enum": lambda v: _is_list(v) and len(v) > 0,
    "const": _is_json,
    "default": _is_json,
    "examples": _is_list,
    "title": _is_text,
    "description": _is_text,
    "$comment": _is_text,
    "format": _is_text,
    "pattern": _is_pattern,
    "multipleOf": lambda v: _is_number(v) and v > 0,
    "required": lambda v: _is_list(v) and all(isinstance(k, str) for k in v),
    "uniqueItems": lambda v: isinstance(v, bool),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
}
