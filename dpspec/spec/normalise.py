"""Gives equal specs one form: schema defaults filled in, whole numbers as ints, real numbers as floats."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpspec.contract import Json, thaw
from dpspec.spec.blocks import Plain


@functools.cache
def validator_class() -> Any:
    """The validator of JSON Schema 2020-12, imported when first needed."""
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import Draft202012Validator, extend

    def pattern(validator: Any, wanted: str, value: Json, schema: Json) -> Iterator[ValidationError]:
        # By the standard ``$`` is the end of the text. Python's also stands before a last line break.
        if isinstance(value, str) and not re.search(re.sub(r"(?<!\\)\$$", r"\\Z", wanted), value):
            yield ValidationError(f"{value!r} does not match {wanted!r}")

    return extend(Draft202012Validator, {"pattern": pattern})  # type: ignore[no-untyped-call]


def accepts(schema: Plain, value: Json) -> bool:
    """Whether a value is valid by a schema."""
    valid: bool = validator_class()(schema).is_valid(value)
    return valid


def fill(schema: Json, value: Json) -> Json:
    """The value with the schema's defaults where keys are absent; conditions count once plain defaults are in."""
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
    """A valid value with every number in the type that its schema names: 1 for an integer, 1.0 for a number."""
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
    """The ``then`` or ``else`` that applies; None where there is none."""
    if "if" not in schema:
        return None
    return schema.get("then" if accepts(schema["if"], value) else "else")


def _number(kind: Json, value: Json) -> Json:
    kinds = (kind,) if isinstance(kind, str) else tuple(kind or ())
    if "number" in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if "integer" in kinds and "number" not in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
