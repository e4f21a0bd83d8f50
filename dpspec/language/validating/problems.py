"""Validate values against JSON Schemas with located diagnostics.

Also normalizes values, so that equal specs have equal digests: defaults filled in, integers as int, numbers as float.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpspec.contract import Diagnostic, Json, Path, format_path, thaw
from dpspec.language.reading.yaml_source import is_not_finite, read_scalar
from dpspec.language.validating.blocks import Plain
from dpspec.text import choice, clipped, closest, did_you_mean, listed, number, quoted, shown, visible

#: Maximum number of unknown keys reported per map.
_MOST_KEYS = 50


@dataclass(frozen=True)
class Problem:
    """One violation.

    Attributes:
        keyword: The schema keyword.
        wanted: The keyword's value.
        value: The invalid value.
        path: The value's path in the document.
        schema: The innermost schema with the keyword.
        root: The schema of the block.
        schema_path: The path from ``root`` to the keyword.
        branches: The errors of each alternative of ``anyOf``.
        whole: True if the value is the complete block.
    """

    keyword: str | None
    wanted: Any
    value: Json
    path: Path
    schema: Json
    root: Plain
    schema_path: tuple[str | int, ...]
    branches: Sequence[Any] = ()
    whole: bool = False

    @property
    def name(self) -> str:
        """The last key in the path, with the list positions after it."""
        keys = [i for i, part in enumerate(self.path) if isinstance(part, str)]
        return visible(format_path(self.path[keys[-1] :])) if keys else format_path(self.path)

    @property
    def place(self) -> str:
        """The formatted path."""
        return visible(format_path(self.path))

    def tell(self, code: str, message: str, help: str | None = None, path: Path | None = None) -> Diagnostic:
        """Return a diagnostic at the value, or at ``path``."""
        return Diagnostic(code=code, message=message, path=self.path if path is None else path, help=help)


def _unknown_keys(p: Problem) -> Iterator[Diagnostic]:
    valid = _valid_keys(p.schema)
    for key, near in _unknown_with_suggestions(p.schema, p.value):
        message = f"unknown key {quoted(key)} in {p.place}" + did_you_mean(near)
        hint = f"valid keys: {listed(sorted(valid))}" if valid else "no keys are allowed here"
        if key == "<<":
            hint = "the spec language does not support YAML's merge key; use extends, or repeat the keys"
        yield Diagnostic(code="unknown-key", message=message, path=(*p.path, key), help=hint, at_key=True)


def _valid_keys(schema: Json) -> list[str]:
    return [key for key, inner in schema.get("properties", {}).items() if inner != {"not": {}}]


def _unknown_with_suggestions(schema: Json, value: Json) -> Iterator[tuple[str, str | None]]:
    """Yield the unknown keys of a map, each with its nearest valid key."""
    required = schema.get("required", ())
    # Prefer keys that are required and missing; keys that are present come last.
    likely = sorted(_valid_keys(schema), key=lambda key: (key in value, key not in required))
    patterns = [re.compile(pattern) for pattern in schema.get("patternProperties", ())]
    properties = schema.get("properties", {})
    unknown = (key for key in value if key not in properties and not any(r.search(key) for r in patterns))
    for key in itertools.islice(unknown, _MOST_KEYS):
        yield key, closest(key, likely)


def _missing_keys(p: Problem) -> Iterator[Diagnostic]:
    schema = p.root if p.whole else p.schema  # the block describes keys that a condition requires
    strict = schema.get("additionalProperties") is False
    misspelt = {near for _, near in _unknown_with_suggestions(schema, p.value)} if strict else set()
    for key in p.wanted:
        if key in p.value or key in misspelt:  # a misspelt key is reported once, as unknown
            continue
        about = _description(schema, key) or _description(p.root, key)
        message = f"missing key {quoted(key)} in {p.place}"
        yield Diagnostic(code="missing-key", message=message, path=p.path, help=about, at_key=True)


def missing_any(p: Problem, keys: Sequence[str]) -> Iterator[Diagnostic]:
    """Report that one of several keys is missing, unless a misspelling of one is reported."""
    if not {near for _, near in _unknown_with_suggestions(p.schema, p.value)} & set(keys):
        message = f"{p.place} needs one of {listed(keys)}"
        yield Diagnostic(code="missing-key", message=message, path=p.path, at_key=True)


def _description(schema: Json, key: str) -> str | None:
    found = schema.get("properties", {}).get(key) if isinstance(schema, dict) else None
    text = found.get("description") if isinstance(found, dict) else None
    return f"{key}: {text}" if text else None


_TYPE_NAMES = {
    "number": "a number",
    "integer": "an integer",
    "string": "a string",
    "boolean": "true or false",
    "object": "a map",
    "array": "a list",
    "null": "null",
}


def _wrong_type(p: Problem) -> Iterator[Diagnostic]:
    kinds = [p.wanted] if isinstance(p.wanted, str) else list(p.wanted)
    wanted = " or ".join(_TYPE_NAMES[k] for k in kinds)
    numeric = "number" in kinds or "integer" in kinds
    if numeric and isinstance(p.value, str) and is_not_finite(p.value):
        yield p.tell("bad-number", f"{p.name} must be a finite number, got {clipped(p.value)}")
        return
    yield p.tell("wrong-type", f"{p.name} must be {wanted}, got {shown(p.value)}", _type_help(p.value, kinds, numeric))


def _type_help(value: Json, kinds: list[str], numeric: bool) -> str | None:
    if value is None:
        return "give it a value, or remove the key"
    if isinstance(value, str) and numeric:
        if _is_number(value):
            return "write it without quotes"
        if _is_number(value.replace("_", "").replace(",", "")):
            return f"write it as {clipped(value.replace('_', '').replace(',', ''))}"
    if isinstance(value, str) and "boolean" in kinds and value.lower() in ("yes", "no", "on", "off", "true", "false"):
        return f"write {'true' if value.lower() in ('yes', 'on', 'true') else 'false'}"
    if "string" in kinds and isinstance(value, bool | int | float):
        return "write it in quotes"
    if "array" in kinds:
        return "write it in brackets: [{...}]" if isinstance(value, dict) else "write it in brackets: [...]"
    return None


def _is_number(text: str) -> bool:
    try:
        value = read_scalar(text.strip())
    except ValueError:
        return False
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bad_choice(p: Problem) -> Iterator[Diagnostic]:
    allowed = p.wanted if p.keyword == "enum" else [p.wanted]
    texts = [a for a in allowed if isinstance(a, str)]
    if texts and isinstance(p.value, str):
        near = closest(p.value, texts)
        message = f"{quoted(p.value)} is not a choice for {p.name}" + (
            f"; did you mean {quoted(near)}?" if near else ""
        )
    else:
        message = f"{shown(p.value)} is not a choice for {p.name}"
    yield p.tell("bad-choice", message, f"valid: {listed(allowed)}")


def _out_of_range(words: str) -> Callable[[Problem], Iterator[Diagnostic]]:
    def tell(p: Problem) -> Iterator[Diagnostic]:
        yield p.tell("out-of-range", f"{p.name} must be {words} {number(p.wanted)}, got {shown(p.value)}")

    return tell


def _length(words: str, thing: str) -> Callable[[Problem], Iterator[Diagnostic]]:
    def tell(p: Problem) -> Iterator[Diagnostic]:
        things = thing if p.wanted == 1 else "entries" if thing == "entry" else f"{thing}s"
        yield p.tell("bad-length", f"{p.name} must have {words} {p.wanted} {things}, got {len(p.value)}")

    return tell


def _repeats(p: Problem) -> Iterator[Diagnostic]:
    for i, item in enumerate(p.value):
        if item in p.value[:i]:
            yield p.tell("bad-length", f"{p.name} lists {choice(item)} twice", path=(*p.path, i))
            return


def _pattern(p: Problem) -> Iterator[Diagnostic]:
    about = p.schema.get("description")
    yield p.tell("bad-format", f"{quoted(p.value)} is not a valid {p.name}", f"{p.name}: {about}" if about else None)


def _conflict(p: Problem) -> Iterator[Diagnostic]:
    """Report a property that a condition forbids."""
    if p.wanted != {}:
        yield from default_message(p)
        return
    yield Diagnostic(
        code="conflicting-key",
        message=f"{quoted(p.name)} is not allowed {_condition(p)}",
        path=p.path,
        help="remove it, or change the key that excludes it",
        at_key=True,
    )


def _condition(p: Problem) -> str:
    """Describe the condition that applies: ``with scheme poisson``, ``with 'phases'``, ``without 'epsilon'``."""
    schema: Any = p.root
    test: Plain | None = None
    holds = True
    for step in p.schema_path:
        if step in ("then", "else") and isinstance(schema, dict) and "if" in schema:
            test, holds = schema["if"], step == "then"
        schema = schema[step]
    if test is None:
        return "here"
    values = [f"{key} {_compared(schema)}" for key, schema in test.get("properties", {}).items()]
    if holds and values:
        return f"with {' and '.join(values)}"
    keys = " and ".join(values or [quoted(key) for key in test.get("required", ())])
    return f"{'with' if holds else 'without'} {keys}" if keys else "here"


def _compared(schema: Plain) -> str:
    return listed([schema["const"]] if "const" in schema else schema.get("enum", []))


def default_message(p: Problem) -> Iterator[Diagnostic]:
    """Report a violation of a keyword without a message in :data:`TEXTS`."""
    about = p.schema.get("description") if isinstance(p.schema, dict) else None
    yield p.tell("not-allowed", f"{p.name} cannot be {shown(p.value)}", f"{p.name}: {about}" if about else None)


#: The message function of each keyword.
TEXTS: dict[str | None, Callable[[Problem], Iterator[Diagnostic]]] = {
    "not": _conflict,
    "additionalProperties": _unknown_keys,
    "required": _missing_keys,
    "type": _wrong_type,
    "enum": _bad_choice,
    "const": _bad_choice,
    "minimum": _out_of_range("at least"),
    "maximum": _out_of_range("at most"),
    "exclusiveMinimum": _out_of_range("above"),
    "exclusiveMaximum": _out_of_range("below"),
    "multipleOf": _out_of_range("a multiple of"),
    "minLength": _length("at least", "character"),
    "maxLength": _length("at most", "character"),
    "minItems": _length("at least", "item"),
    "maxItems": _length("at most", "item"),
    "minProperties": _length("at least", "entry"),
    "maxProperties": _length("at most", "entry"),
    "uniqueItems": _repeats,
    "pattern": _pattern,
}


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
            if diagnostic not in reported:  # the library repeats the list of missing keys for each key
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
