"""Holds a value against a JSON Schema and tells every objection in our words, at its place.

And gives equal specs one form: schema defaults filled in, whole numbers as ints, real numbers as floats.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpspec.contract import Diagnostic, Json, Path, thaw
from dpspec.language.validating.blocks import Plain
from dpspec.language.validating.schema_messages import TEXTS, Problem, missing_one, otherwise


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


def problems(schema: Plain, value: Json, path: Path = ()) -> Iterator[Diagnostic]:
    """Everything that a schema objects to in a value that stands at ``path``, in our words."""
    root = _explicit(schema)
    told: set[Diagnostic] = set()
    for error in validator_class()(root).iter_errors(value):
        for diagnostic in _tell(error, root, path):
            if diagnostic not in told:  # the library objects once per missing key, each time naming them all
                told.add(diagnostic)
                yield diagnostic


def _explicit(schema: Plain) -> Plain:
    """The same schema with forbidden properties spelt ``{"not": {}}``: for ``false`` the library tells no path."""
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


def _tell(error: Any, root: Plain, path: Path) -> Iterator[Diagnostic]:
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
        yield from TEXTS.get(problem.keyword, otherwise)(problem)


def _best_branch(p: Problem, path: Path) -> Iterator[Diagnostic]:
    """Of several alternatives that all fail, the one that the value was most likely meant to be."""
    if p.branches and all(error.validator == "required" for error in p.branches):
        yield from missing_one(p, [key for error in p.branches for key in error.validator_value])
        return
    branches: dict[int, list[Any]] = {}
    for error in p.branches:
        branches.setdefault(error.schema_path[0], []).append(error)
    best = min(branches.values(), key=lambda found: (any(_of_type(e) for e in found), len(found)), default=[])
    for error in best:
        yield from _tell(error, p.root, path)


def _of_type(error: Any) -> bool:
    return error.validator == "type" and not error.path
