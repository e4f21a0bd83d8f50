"""Validate values against JSON Schemas with located diagnostics.

Also normalizes values, so that equal specs have equal digests: defaults filled in, integers as int, numbers as float.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpspec.contract import Diagnostic, Json, Path, format_path, thaw
from dpspec.language.blocks import Plain
from dpspec.language.yaml_source import NOT_FINITE, read_scalar
from dpspec.text import choice, clipped, closest, did_you_mean, joined, listed, number, quoted, shown, visible

_MOST_KEYS = 50

#: Keywords with one schema, without conditions.
_SUBSCHEMAS = ("then", "else", "items", "additionalProperties")


_TYPE_NAMES = {
    "number": "a number",
    "integer": "an integer",
    "string": "a string",
    "boolean": "true or false",
    "object": "a map",
    "array": "a list",
    "null": "null",
}

_RANGES = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "above",
    "exclusiveMaximum": "below",
    "multipleOf": "a multiple of",
}

_LENGTHS = {
    "minLength": "at least {} character",
    "maxLength": "at most {} character",
    "minItems": "at least {} item",
    "maxItems": "at most {} item",
    "minProperties": "at least {} entry",
    "maxProperties": "at most {} entry",
}


@dataclass(frozen=True)
class _Problem:
    """A violation at ``path``; ``root`` is the schema of the block."""

    error: Any
    root: Plain
    path: Path

    @property
    def name(self) -> str:
        """The last key in the path, with the list positions after it."""
        keys = [i for i, part in enumerate(self.path) if isinstance(part, str)]
        return visible(format_path(self.path[keys[-1] :])) if keys else format_path(self.path)

    @property
    def place(self) -> str:
        return visible(format_path(self.path))

    @property
    def about(self) -> str | None:
        schema = self.error.schema
        text = schema.get("description") if isinstance(schema, dict) else None
        return f"{self.name}: {text}" if text else None

    def tell(self, code: str, message: str, help: str | None = None, path: Path | None = None) -> Diagnostic:
        return Diagnostic(code=code, message=message, path=self.path if path is None else path, help=help)


def _diagnose(error: Any, root: Plain, start: Path) -> Iterator[Diagnostic]:
    p = _Problem(error, root, (*start, *error.absolute_path))
    keyword, required, value = error.validator, error.validator_value, error.instance
    if keyword == "anyOf":
        yield from _best_branch(p, start)
    elif keyword == "additionalProperties":
        yield from _unknown_keys(p)
    elif keyword == "required":
        yield from _missing_keys(p)
    elif keyword == "type":
        yield _wrong_type(p)
    elif keyword in ("enum", "const"):
        allowed = required if keyword == "enum" else [required]
        texts = [a for a in allowed if isinstance(a, str)]
        message, hint = f"{shown(value)} is not a choice for {p.name}", f"valid: {listed(allowed)}"
        if texts and isinstance(value, str):
            suggestion = closest(value, texts)
            message = f"{quoted(value)} is not a choice for {p.name}{did_you_mean(suggestion)}"
            hint = "; ".join(filter(None, [hint, "" if suggestion else p.about]))
        yield p.tell("bad-choice", message, hint)
    elif keyword in _RANGES:
        message = f"{p.name} must be {_RANGES[keyword]} {number(required)}, got {shown(value)}"
        share = (
            f"{shown(value)}% is {value / 100:.15g}" if keyword == "maximum" and required == 1 < value <= 100 else ""
        )
        yield p.tell("out-of-range", message, ". ".join(filter(None, (share, p.about))))
    elif keyword in _LENGTHS:
        counted = _LENGTHS[keyword].format(required)
        counted = counted if required == 1 else f"{counted}s".replace("entrys", "entries")
        yield p.tell("bad-length", f"{p.name} must have {counted}, got {len(value)}")
    elif keyword == "uniqueItems":
        i, item = next((i, item) for i, item in enumerate(value) if item in value[:i])
        yield p.tell("bad-length", f"{p.name} lists {choice(item)} twice", path=(*p.path, i))
    elif keyword == "pattern":
        yield p.tell("bad-format", f"{quoted(value)} is not a valid {p.name}", p.about)
    elif keyword == "not" and required == {}:
        condition, change = _condition(p)
        message = f"{quoted(p.name)} is not allowed {condition}"
        hint = f"remove {visible(p.name)}{change}"
        hint += f"; {_CONVERSIONS[p.name]}" if p.name in _CONVERSIONS else ""
        yield Diagnostic(code="conflicting-key", message=message, path=p.path, help=hint, at_key=True)
    else:
        yield p.tell("not-allowed", f"{p.name} cannot be {shown(value)}", p.about)


def _unknown_keys(p: _Problem) -> Iterator[Diagnostic]:
    valid = _valid_keys(p.error.schema)
    for key, suggestion in _unknown_with_suggestions(p.error.schema, p.error.instance):
        message = f"unknown key {quoted(key)} in {p.place}" + did_you_mean(suggestion)
        hint = f"valid keys: {listed(sorted(valid))}" if valid else "no keys are allowed here"
        if suggestion == _OTHER_NAMES.get(key) and key in _CONVERSIONS:
            hint = _CONVERSIONS[key]
        if key == "<<":
            hint = "the spec language does not support YAML's merge key; use extends, or repeat the keys"
        yield Diagnostic(code="unknown-key", message=message, path=(*p.path, key), help=hint, at_key=True)


#: Keys of papers and of other libraries, and how their values convert.
_OTHER_NAMES = {
    "sigma": "noise_multiplier",
    "epochs": "steps",
    "batch_size": "rate",
    "sample_rate": "rate",
    "q": "rate",
    "lr": "learning_rate",
    "max_grad_norm": "clip_norm",
    "l2_norm_clip": "clip_norm",
}
_CONVERSIONS = {"epochs": "steps = epochs / rate", "batch_size": "rate = batch size / records"}


def _valid_keys(schema: Json) -> list[str]:
    return [key for key, inner in schema.get("properties", {}).items() if inner != {"not": {}}]


def _unknown_with_suggestions(schema: Json, value: Json) -> Iterator[tuple[str, str | None]]:
    required = schema.get("required", ())
    # Prefer keys that are required and missing; keys that are present come last.
    candidates = sorted(_valid_keys(schema), key=lambda key: (key in value, key not in required))
    patterns = [re.compile(pattern) for pattern in schema.get("patternProperties", ())]
    properties = schema.get("properties", {})
    unknown = (key for key in value if key not in properties and not any(r.search(key) for r in patterns))
    for key in itertools.islice(unknown, _MOST_KEYS):
        equivalent = _OTHER_NAMES.get(key)
        yield key, equivalent if equivalent in candidates else closest(key, candidates)


def _missing_keys(p: _Problem) -> Iterator[Diagnostic]:
    schema = p.error.schema if p.error.absolute_path else p.root  # the block describes keys that a condition requires
    strict = schema.get("additionalProperties") is False
    outside = p.root  # the schema of the same keys without conditions
    for step in p.error.absolute_path:
        outside = outside.get("items", {}) if isinstance(step, int) else outside.get("properties", {}).get(step, {})
    misspelt = (
        {suggestion for _, suggestion in _unknown_with_suggestions(schema, p.error.instance)} if strict else set()
    )
    for key in p.error.validator_value:
        if key in p.error.instance or key in misspelt:  # a misspelt key is reported once, as unknown
            continue
        about = _description(schema, key) or _description(outside, key)
        message = f"missing key {quoted(key)} in {p.place}"
        yield Diagnostic(code="missing-key", message=message, path=p.path, help=about, at_key=True)


def _description(schema: Json, key: str) -> str | None:
    schema_of_key = schema.get("properties", {}).get(key) if isinstance(schema, dict) else None
    text = schema_of_key.get("description") if isinstance(schema_of_key, dict) else None
    return f"{key}: {text}" if text else None


def _wrong_type(p: _Problem) -> Diagnostic:
    value, required = p.error.instance, p.error.validator_value
    kinds = [required] if isinstance(required, str) else list(required)
    numeric = "number" in kinds or "integer" in kinds
    if numeric and isinstance(value, str) and NOT_FINITE.fullmatch(value):
        return p.tell("bad-number", f"{p.name} must be a finite number, got {clipped(value)}")
    hint = None
    if value is None:
        hint = "give it a value, or remove the key"
    elif isinstance(value, str) and numeric and _is_number(value):
        hint = "write it without quotes"
    elif isinstance(value, str) and numeric and (spelling := _spelling(value.strip())):
        hint = f"specs contain no arithmetic, no decimal comma and no separators of thousands: write {spelling}"
    elif "string" in kinds and isinstance(value, bool | int | float):
        hint = "write it in quotes"
    elif "array" in kinds and isinstance(value, dict) and value and p.path[0] == "matrix":
        hint = f"write the path of an axis as one key: {p.name}.{visible(next(iter(value)))}: [...]"
    elif isinstance(value, str) and value and p.path in _WITH_KIND:
        hint = f"write {p.name}: {{kind: {clipped(value)}}}"
    elif "array" in kinds:
        key = "" if " " in p.name else f"{p.name}: "
        hint = f"write {key}[{'{...}' if isinstance(value, dict) else shown(value)}]"
    types = " or ".join(_TYPE_NAMES[k] for k in kinds)
    return p.tell("wrong-type", f"{p.name} must be {types}, got {shown(value)}", hint or p.about)


#: The blocks that select a provider by ``kind``.
_WITH_KIND: tuple[Path, ...] = (
    ("mechanism",),
    ("data",),
    ("model",),
    ("audit", "canary"),
    ("training", "optimizer"),
    ("training", "schedule"),
)

#: Spellings of numbers that people write: quotients, powers of ten, percentages, separators of thousands and commas.
_RATIO = re.compile(r"(\d{1,15})\s*/\s*(\d{1,15})")
_POWER = re.compile(r"10\s*(?:\^|\*\*)\s*([+-]?\d{1,3})")
_PERCENTAGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*%")
_THOUSANDS = re.compile(r"\d{1,3}(?:[_,' ]\d{3})+")
_COMMA = re.compile(r"(\d{1,9}),(\d{1,2})")


def _spelling(text: str) -> str:
    """Return a number of another notation as a spec writes it; empty if the text is not a number."""
    if (ratio := _RATIO.fullmatch(text)) and int(ratio[2]):
        return shown(int(ratio[1]) / int(ratio[2]))
    if power := _POWER.fullmatch(text):
        return f"1e{int(power[1])}"
    if comma := _COMMA.fullmatch(text):
        return f"{comma[1]}.{comma[2]}"
    if percentage := _PERCENTAGE.fullmatch(text):
        return f"{float(percentage[1]) / 100:.15g}"
    return re.sub(r"\D", "", text) if _THOUSANDS.fullmatch(text) else ""


def _is_number(text: str) -> bool:
    try:
        value = read_scalar(text.strip())
    except ValueError:
        return False
    return isinstance(value, int | float) and not isinstance(value, bool)


def _condition(p: _Problem) -> tuple[str, str]:
    """``with scheme poisson``, ``with 'phases'``, ``without 'epsilon'``; and how to change that."""
    schema: Any = p.root
    test: Plain | None = None
    holds = True
    for step in p.error.absolute_schema_path:
        if step in ("then", "else") and isinstance(schema, dict) and "if" in schema:
            test, holds = schema["if"], step == "then"
        schema = schema[step]
    test = test or {}
    values = [
        f"{key} {listed([schema['const']] if 'const' in schema else schema.get('enum', []))}"
        for key, schema in test.get("properties", {}).items()
    ]
    named = values or [quoted(key) for key in test.get("required", ())]
    if not named:
        return "here", ""
    if holds:
        keys = joined(list(test.get("properties", {})), "or")
        return f"with {' and '.join(named)}", f", or change {keys}" if values else f" or {joined(named, 'or')}"
    return f"without {' and '.join(named)}", f", or write {joined(named)}"


@functools.cache
def validator_class() -> Any:
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import Draft202012Validator, extend

    def pattern(validator: Any, expression: str, value: Json, schema: Json) -> Iterator[ValidationError]:
        # In JSON Schema, ``$`` matches only at the end; in Python also before a final line break.
        if isinstance(value, str) and not re.search(re.sub(r"(?<!\\)\$$", r"\\Z", expression), value):
            yield ValidationError(f"{value!r} does not match {expression!r}")

    return extend(Draft202012Validator, {"pattern": pattern})  # type: ignore[no-untyped-call]


def is_valid(schema: Plain, value: Json) -> bool:
    valid: bool = validator_class()(schema).is_valid(value)
    return valid


def fill(schema: Json, value: Json) -> Json:
    """Fill in defaults. Conditions apply to the value with plain defaults."""
    return _resolved(schema, value, casting=False)


def cast(schema: Json, value: Json) -> Json:
    """Convert the numbers of a valid value: 1 for an integer, 1.0 for a number, 0.25 for a fraction 1/4."""
    return _resolved(schema, value, casting=True)


#: Keywords of defaults and of types. A condition on other keywords changes no value.
_RESOLVED = {"properties", "additionalProperties", "items", "type", "format", "allOf", "if"}


def _resolved(schema: Json, value: Json, *, casting: bool) -> Json:
    if not isinstance(schema, Mapping):
        return value
    resolved = functools.partial(_resolved, casting=casting)
    properties, further_schema = schema.get("properties", {}), schema.get("additionalProperties")
    if isinstance(value, dict):
        value = dict(value)
        for key, inner in properties.items():
            if not casting and isinstance(inner, Mapping) and "default" in inner and key not in value:
                value[key] = thaw(inner["default"])
            if key in value:
                value[key] = resolved(inner, value[key])
        if casting and isinstance(further_schema, Mapping):
            value = {key: item if key in properties else resolved(further_schema, item) for key, item in value.items()}
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        value = [resolved(schema["items"], item) for item in value]
    elif casting:
        kind = schema.get("type")
        kinds = (kind,) if isinstance(kind, str) else tuple(kind or ())
        if "number" in kinds and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        elif schema.get("format") == "fraction" and isinstance(value, str):
            value = 1.0 / int(value.removeprefix("1/"))
        elif "integer" in kinds and "number" not in kinds and isinstance(value, float) and value.is_integer():
            value = int(value)
    for part in schema.get("allOf", ()):
        value = resolved(part, value)
    if "if" in schema and any(_RESOLVED & set(schema.get(branch, ())) for branch in ("then", "else")):
        value = resolved(schema.get("then" if is_valid(schema["if"], value) else "else"), value)
    return value


def problems(schema: Plain, value: Json, path: Path = ()) -> Iterator[Diagnostic]:
    root = _explicit(schema)
    reported: set[Diagnostic] = set()
    for error in validator_class()(root).iter_errors(value):
        for diagnostic in _diagnose(error, root, path):
            if diagnostic not in reported:  # the library repeats the list of missing keys for each key
                reported.add(diagnostic)
                yield diagnostic


def _explicit(schema: Json) -> Json:
    """The library reports a path for ``{"not": {}}``, and none for ``false``."""
    if not isinstance(schema, dict):
        return schema
    result: Plain = {}
    for keyword, inner in schema.items():
        if keyword in ("properties", "patternProperties"):
            result[keyword] = {key: {"not": {}} if part is False else _explicit(part) for key, part in inner.items()}
        elif keyword in ("allOf", "anyOf"):
            result[keyword] = list(map(_explicit, inner))
        else:
            result[keyword] = _explicit(inner) if keyword in _SUBSCHEMAS else inner
    return result


def _best_branch(p: _Problem, start: Path) -> Iterator[Diagnostic]:
    """The alternative that the value most likely intends."""
    errors = list(p.error.context or ())
    if errors and all(error.validator == "required" for error in errors):
        keys = [key for error in errors for key in error.validator_value]
        if not {suggestion for _, suggestion in _unknown_with_suggestions(p.error.schema, p.error.instance)} & set(
            keys
        ):
            message = f"{p.place} needs one of {listed(keys)}"
            yield Diagnostic(code="missing-key", message=message, path=p.path, at_key=True)
        return
    branches: dict[int, list[Any]] = {}
    for error in errors:
        branches.setdefault(error.schema_path[0], []).append(error)
    ranked = sorted(branches.values(), key=lambda b: (any(e.validator == "type" and not e.path for e in b), len(b)))
    for error in ranked[0] if ranked else ():
        yield from _diagnose(error, p.root, start)
