"""Validate values against JSON Schemas with located diagnostics.

Also normalizes values, so that equal specs have equal digests: defaults filled in, integers as int, numbers as float.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpspec.contract import Diagnostic, Json, Path, thaw
from dpspec.language.validating.blocks import Plain
from dpspec.language.validating.schema_messages import TEXTS, Problem, default_message, missing_any


@functools.cache
def validator_class() -> Any:
    """Return the validator class of JSON Schema 2020-12, imported lazily."""
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import Draft202012Validator, extend

    def pattern(validator: Any, wanted: str, value: Json, schema: Json) -> Iterator[ValidationError]:
        # In JSON Schema, ``$`` matches only at the end; in Python also before a final line break.
        if isinstance(value, str) and not re.search(re.sub(r"(?<!\\)\$$", r"\\Z", wanted), value):
            yield ValidationError(f"{value!r} does not match {wanted!r}")

    return extend(Draft202012Validator, {"pattern": pattern})  # type: ignore[no-untyped-call]


def is_valid(schema: Plain, value: Json) -> bool:
    """Return True if a value is valid."""
    valid: bool = validator_class()(schema).is_valid(value)
    return valid


def fill(schema: Json, value: Json) -> Json:
    """Fill in the schema's defaults for missing keys. Conditions apply to the value with plain defaults."""
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [fill(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for key, inner in schema.get("properties", {}).items():
        if isinstance(inner, Mapping) and "default" in inner and key not in filled:
            filled[key] = thaw(inner["default"])
        if key in filled:
            filled[key] = fill(inner, filled[key])
    for part in schema.get("allOf", ()):
        filled = fill(part, filled)
    branch = _branch(schema, filled)
    return filled if branch is None else fill(branch, filled)


def cast(schema: Json, value: Json) -> Json:
    """Convert the numbers of a valid value to the types of its schema: 1 for an integer, 1.0 for a number."""
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, dict):
        result = dict(value)
        for key, inner in schema.get("properties", {}).items():
            if key in result:
                result[key] = cast(inner, result[key])
        rest = schema.get("additionalProperties")
        if isinstance(rest, Mapping):
            known = schema.get("properties", {})
            result = {k: v if k in known else cast(rest, v) for k, v in result.items()}
        value = result
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        value = [cast(schema["items"], item) for item in value]
    else:
        value = _number(schema.get("type"), value)
    for part in schema.get("allOf", ()):
        value = cast(part, value)
    branch = _branch(schema, value)
    return value if branch is None else cast(branch, value)


def _branch(schema: Mapping[str, Json], value: Json) -> Json:
    if "if" not in schema:
        return None
    return schema.get("then" if is_valid(schema["if"], value) else "else")


def _number(kind: Json, value: Json) -> Json:
    kinds = (kind,) if isinstance(kind, str) else tuple(kind or ())
    if "number" in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if "integer" in kinds and "number" not in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def problems(schema: Plain, value: Json, path: Path = ()) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each violation of a schema by the value at ``path``."""
    root = _explicit(schema)
    reported: set[Diagnostic] = set()
    for error in validator_class()(root).iter_errors(value):
        for diagnostic in _diagnose(error, root, path):
            if diagnostic not in reported:  # the library repeats the list of missing keys for each of them
                reported.add(diagnostic)
                yield diagnostic


def _explicit(schema: Plain) -> Plain:
    """Replace ``false`` for forbidden properties by ``{"not": {}}``, for which the library reports a path."""
    result: Plain = {}
    for keyword, inner in schema.items():
        if keyword in ("properties", "patternProperties"):
            result[keyword] = {k: _explicit(v) if isinstance(v, dict) else v or {"not": {}} for k, v in inner.items()}
        elif keyword in ("allOf", "anyOf"):
            result[keyword] = [_explicit(v) if isinstance(v, dict) else v for v in inner]
        elif keyword in ("then", "else", "items", "additionalProperties") and isinstance(inner, dict):
            result[keyword] = _explicit(inner)
        else:
            result[keyword] = inner
    return result


def _diagnose(error: Any, root: Plain, path: Path) -> Iterator[Diagnostic]:
    problem = Problem(
        keyword=error.validator,
        wanted=error.validator_value,
        value=error.instance,
        path=(*path, *error.absolute_path),
        schema=error.schema,
        root=root,
        schema_path=tuple(error.absolute_schema_path),
        branches=tuple(error.context or ()),
        whole=not error.absolute_path,
    )
    if problem.keyword == "anyOf":
        yield from _best_branch(problem, path)
    else:
        yield from TEXTS.get(problem.keyword, default_message)(problem)


def _best_branch(p: Problem, path: Path) -> Iterator[Diagnostic]:
    """Yield the diagnostics of the alternative that the value most likely intends."""
    if p.branches and all(error.validator == "required" for error in p.branches):
        yield from missing_any(p, [key for error in p.branches for key in error.validator_value])
        return
    branches: dict[int, list[Any]] = {}
    for error in p.branches:
        branches.setdefault(error.schema_path[0], []).append(error)
    best = min(branches.values(), key=lambda found: (any(_is_type_error(e) for e in found), len(found)), default=[])
    for error in best:
        yield from _diagnose(error, p.root, path)


def _is_type_error(error: Any) -> bool:
    return error.validator == "type" and not error.path
