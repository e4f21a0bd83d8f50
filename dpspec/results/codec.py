"""The JSON text of results, its JSON Schema, and validation beyond types.

Files are untrusted: every value that later code uses as a name, index, count or statistic is checked here once and
refused with its place. Kinds and keys of plugins that are not installed pass; ``verify`` builds a spec from the
document and finds the rest.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Union, get_args, get_origin

from dpspec.contract import Assumption, Evidence, Finding, FrozenMap, Json, Outcome, Scope, Series, thaw
from dpspec.contract.frozen import deeper_than
from dpspec.contract.results import SCHEMA, AuditResult, Result, accepted_cautions
from dpspec.contract.spec import COLLECTION
from dpspec.errors import ResultError
from dpspec.json_records import hints_of, read, write
from dpspec.results.regressions import in_words
from dpspec.results.status import problems
from dpspec.text import json_text, shortened

#: Maximum size of a result. Each trial embeds at most 1 MiB.
MAX_BYTES = 1 << 30

#: Maximum nesting of values, so that recursive functions do not exhaust the stack.
MAX_DEPTH = 100

#: Maximum number of digits of an integer, so that it converts to a float.
MAX_DIGITS = 300

#: Tables of a result's JSON: findings and evidence contain indices, so that each distinct value is written once.
_TABLES: dict[str, Any] = {
    "scopes": tuple[Scope, ...],
    "sources": tuple[str, ...],
    "assumptions": tuple[Assumption, ...],
}

#: Fields of findings and evidence that contain an index; ``assumptions`` contains a list of indices.
_INDICES = {"scope": "scopes", "source": "sources"}


def dump(result: Result) -> str:
    """Write a result as JSON text that :func:`load` reads back equal."""
    data = write(result)
    tables: dict[str, dict[Any, int]] = {name: {} for name in _TABLES}
    for audit, content in zip(result.audits, data["audits"], strict=True):
        outcomes: tuple[Finding | Evidence, ...] = (*audit.findings, *audit.evidence)
        for outcome, fields in zip(outcomes, (*content["findings"], *content["evidence"]), strict=True):
            for field, name in _INDICES.items():
                fields[field] = tables[name].setdefault(getattr(outcome, field), len(tables[name]))
            assumptions = tables["assumptions"]
            fields["assumptions"] = [assumptions.setdefault(a, len(assumptions)) for a in outcome.assumptions]
    data |= {name: write(tuple(table)) for name, table in tables.items()}
    data = {"schema": data["schema"], **outcome_of(result), **data}
    return json_text(json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)) + "\n"


#: Keys of a result's JSON that follow from its audits, for programs that read no more: :func:`load` ignores them.
_OUTCOME: dict[str, Json] = {
    "passed": {"type": "boolean", "description": "Whether the exit code is 0."},
    "exit_code": {"type": "integer", "description": "The exit code of the command that wrote the result."},
    "problems": {
        "type": "array",
        "description": "Regressions from an earlier result, unexpected claims and conformances, open cautions, missing "
        "trials, specs with errors. With an earlier result, the unexpected ones have `decides: false`.",
        "items": {"type": "object"},
    },
    "accepted": {
        "type": "array",
        "description": "Cautions that the user accepts.",
        "items": {"type": "object"},
    },
}


def outcome_of(result: Result) -> dict[str, Json]:
    """The keys ``passed``, ``exit_code``, ``problems`` and ``accepted`` of a result's JSON."""
    failures: list[Json] = [
        {
            "audit": regression.audit,
            "kind": "regression",
            "name": regression.claim,
            "status": regression.name,
            "text": in_words(regression),
        }
        for regression in result.regressions or ()
    ]
    accepted: list[Json] = []
    aside = {} if result.regressions is None else {"decides": False}  # the comparison with the earlier result does
    for audit in result.audits:
        failures += [
            {"audit": audit.name, "kind": problem.kind, "name": problem.name, "status": problem.status, **aside}
            for problem in problems(audit)
        ]
        accepted += [
            {"audit": audit.name, "name": rule.name, "reason": rule.accepted} for rule in accepted_cautions(audit)
        ]
    failures += [
        {"audit": "", "kind": "spec", "name": spec.file, "status": "plugin" if spec.plugin else "invalid"}
        for spec in result.unjudged
    ]
    exit_code = int(result.exit_code)
    return {"passed": exit_code == 0, "exit_code": exit_code, "problems": failures, "accepted": accepted}


def stated_outcome(text: str) -> dict[str, Json]:
    """Those keys as a result's JSON states them; empty for a result of an earlier version."""
    data = json.loads(text)
    return {key: data[key] for key in _OUTCOME if key in data} if isinstance(data, dict) else {}


def load(text: str) -> Result:
    """Read a result of version 2. Raises ``ResultError`` with the place of an invalid value."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ResultError(f"not JSON: {error}") from None
    if deeper_than(data, MAX_DEPTH):
        raise ResultError(f"not a dpspec result: values are nested deeper than {MAX_DEPTH} levels")
    if isinstance(data, dict) and data.get("schema") == "dpspec/result/v1":
        raise ResultError("the result is of dpspec 0.2 or older, which can read it: run its spec again")
    if not isinstance(data, dict):
        raise ResultError("not a dpspec result: not a JSON object, as --report json=PATH of run and check writes")
    if data.get("schema") != SCHEMA:
        raise ResultError(f"not a dpspec result: schema is {data.get('schema')!r}, expected {SCHEMA!r}")
    for key in _OUTCOME:
        data.pop(key, None)
    audits = data.get("audits")
    for audit in audits if isinstance(audits, list) else ():
        section = audit.get("recording") if isinstance(audit, dict) else None
        if isinstance(section, dict) and "ended" in section:
            raise ResultError("the result is of a recording that an early 0.3 checked: run `dpspec check` again")
    unused = _look_up(data)
    result: Result = _read(data)
    for path, wrong in (*_of_result(result), *unused):
        raise ResultError(f"result.{path} {wrong}")
    return result


def _look_up(data: dict[str, Json]) -> list[tuple[str, str]]:
    """Replace the indices of findings and evidence by the values of the tables, and return the unused values."""
    for name in _TABLES:
        if name not in data:
            raise ResultError(f"result.{name} is missing")
    tables = {name: _read(data.pop(name), kind, f"result.{name}") for name, kind in _TABLES.items()}
    used: dict[str, set[int]] = defaultdict(set)

    def value_at(name: str, index: Json, path: str) -> Any:
        if not _is_count(index) or index >= len(tables[name]):
            raise ResultError(f"{path} must be an index in {name}, got {_quoted(index)}")
        used[name].add(index)
        return tables[name][index]

    for path, fields in _outcomes_of(data):
        for field, name in _INDICES.items():
            if field in fields:
                fields[field] = value_at(name, fields[field], f"{path}.{field}")
        if isinstance(indices := fields.get("assumptions"), list):
            where = f"{path}.assumptions"
            fields["assumptions"] = [value_at("assumptions", j, f"{where}[{i}]") for i, j in enumerate(indices)]
    return [
        (f"{name}[{i}]", "belongs to no finding and no evidence")
        for name, table in tables.items()
        for i in range(len(table))
        if i not in used[name]
    ]


def _outcomes_of(data: dict[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    """The findings and evidence in a result's JSON with their places, except values of other types."""
    audits = data.get("audits")
    for i, audit in enumerate(audits if isinstance(audits, list) else ()):
        for part in ("findings", "evidence"):
            outcomes = audit.get(part) if isinstance(audit, dict) else None
            for j, fields in enumerate(outcomes if isinstance(outcomes, list) else ()):
                if isinstance(fields, dict):
                    yield f"result.audits[{i}].{part}[{j}]", fields


def reread(result: Result) -> Result:
    copy: Result = _read(write(result))
    return copy


def _read(data: Json, kind: Any = Result, where: str = "result") -> Any:
    try:
        return read(kind, data, where)
    except ValueError as error:
        raise ResultError(str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse repeated keys, because programs differ in which value they use."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ResultError(f"not a dpspec result: the key {shortened(twice, 60)!r} stands twice in one mapping")
    return mapping


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ResultError(f"not a dpspec result: it holds an integer of {len(text.lstrip('-'))} digits")
    return int(text)


def _refuse_constant(text: str) -> float:
    raise ResultError(f"not a dpspec result: it holds {text}, which is not JSON")


def result_schema() -> dict[str, Json]:
    definitions: dict[str, Json] = {}
    root = _schema(Result, definitions)
    definitions["Result"]["properties"] |= {name: _schema(kind, definitions) for name, kind in _TABLES.items()}
    definitions["Result"]["properties"]["schema"] = {"const": SCHEMA}
    definitions["Result"]["properties"] |= _OUTCOME
    definitions["Result"]["required"] += _TABLES
    index = {"type": "integer", "minimum": 0}
    indices: dict[str, Json] = {field: {**index, "description": f"index in {name}"} for field, name in _INDICES.items()}
    indices["assumptions"] = {"type": "array", "items": {**index, "description": "index in assumptions"}}
    for kind in ("Finding", "Evidence"):
        definitions[kind]["properties"] |= indices
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


def _is_number(value: Json) -> bool:
    """JSON writes infinity as a text."""
    finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value in ("inf", "-inf") or finite


def _is_count(value: Json, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


_TEXT: Json = {"type": ["string", "null"]}
_COUNT: Json = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**63 - 1}
_MOST = sys.float_info.max
_NUMBER: Json = {
    "anyOf": [{"type": ["number", "null"], "minimum": -_MOST, "maximum": _MOST}, {"enum": ["inf", "-inf"]}]
}

#: Core's keys of a claim or a threat model; null means omitted.
_KEYS: dict[str, Json] = {
    **dict.fromkeys(("adjacency", "unit", "access", "direction", "neighbours", "over", "refuted_by"), _TEXT),
    **dict.fromkeys(("id", "kind"), _TEXT),
    "control": {"type": ["boolean", "null"]},
    **dict.fromkeys(
        ("epsilon", "delta", "alpha", "mu", "rho", "kappa", "gamma", "fpr", "tpr", "value", "fraction"), _NUMBER
    ),
    **dict.fromkeys(("record", "min_records"), _COUNT),
    "group_size": {
        "type": ["integer", "array", "null"],
        "minimum": 1,
        "maximum": 2**63 - 1,
        "minItems": 1,
        "items": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
    },
    "expect": {"type": ["string", "array", "null"], "items": {"type": "string"}},
}

_STRING: Json = {"type": "string"}
_BLOCK: Json = {"type": "object", "properties": {"kind": _STRING}}
_TEXTS: Json = {"type": ["object", "null"], "additionalProperties": _STRING}
_POINTS: Json = {"type": ["array", "null"], "items": {"type": "object", "properties": _KEYS}}

#: A spec's document in a result, for Draft 4, in which 1.0 is not an integer. Other keys and kinds may be a plugin's.
_DOCUMENT: Json = {
    "properties": {
        **dict.fromkeys(("name", "description", "system", "owner", "contact"), _STRING),
        "deployment": _TEXTS,
        "mechanism": _BLOCK,
        "data": {**_BLOCK, "properties": {**_BLOCK["properties"], COLLECTION: _TEXTS}},
        "model": {**_BLOCK, "type": ["object", "null"]},
        "training": {"type": ["object", "null"], "properties": {"backend": _STRING}},
        "audit": {"type": ["object", "null"]},
        "threat_model": {"type": ["object", "null"], "properties": _KEYS},
        "claims": {"type": "array", "items": {"type": "object", "properties": {**_KEYS, "points": _POINTS}}},
    },
}


#: Conditions that are numbers, wherever they stand; others may be any scalar.
_NUMERIC = frozenset({"delta", "alpha", "kappa", "fpr", "mu", "rho", "fraction", "epsilon"})
_INTEGRAL = frozenset({"group_size", "step"})

#: Maximum length of the name of a record, such as "most exposed 1".
_LONGEST_NAME = 100

#: Keys of a series' plot with names of columns, and whether they take several.
_NAMES = {"x": False, "by": False, "kind": False, "y": True, "log": True}
_COLUMNS = ("x", "by", "y")


def _of_result(result: Result) -> Iterator[tuple[str, str]]:
    if not 0.0 < result.confidence < 1.0:
        yield "confidence", f"must lie between 0 and 1, got {result.confidence}"
    if not result.audits:
        yield "audits", "must hold one audit or more"
    try:
        datetime.fromisoformat(result.created)
    except ValueError:
        yield "created", _must_be("a date and a time", result.created)
    for i, audit in enumerate(result.audits):
        yield from ((f"audits[{i}].{path}", wrong) for path, wrong in _of_audit(audit))


def _of_audit(audit: AuditResult) -> Iterator[tuple[str, str]]:
    from jsonschema import Draft4Validator

    for i, verdict in enumerate(audit.verdicts):
        for name in ("upper_finding", "lower_finding"):
            index = getattr(verdict, name)
            if index is not None and not 0 <= index < len(audit.findings):
                yield f"verdicts[{i}].{name}", f"must be the place of a finding, got {index}"
    for name in ("findings", "series", "evidence"):
        for i, outcome in enumerate(getattr(audit, name)):
            for key, wrong in flaws_of(outcome):
                yield f"{name}[{i}].{key}", wrong
    for i, power in enumerate(audit.power):
        for key, wrong in _of_conditions(power.at):
            yield f"power[{i}].at.{key}", wrong
    for i, evidence in enumerate(audit.evidence):
        from dpspec.stats.attacks import evidence_tests

        try:
            evidence_tests.require_counts(evidence)
        except ValueError as error:
            yield f"evidence[{i}].statistics", f"make no sense: {error}"
    for flaw in Draft4Validator(_DOCUMENT).iter_errors(thaw(audit.document)):
        yield f"document.{flaw.json_path.removeprefix('$.')}", shortened(flaw.message, 200)
    if not 0 <= audit.stored_trials <= len(audit.trials):
        yield "stored_trials", f"must count some of {len(audit.trials)} trials, got {audit.stored_trials}"
    for key, number in audit.left_out.items():
        if not _is_count(number, 0):
            yield f"left_out.{key}", _must_be("a count", number)
    for key, position in audit.places.items():
        if not isinstance(position, Mapping) or not all(
            _is_count(position.get(name), 1) for name in ("line", "column")
        ):
            yield f"places.{key}", "must hold a file, a line and a column"
        elif not isinstance(position.get("file"), str):
            yield f"places.{key}.file", _must_be("a text", position.get("file"))


def flaws_of(outcome: Outcome) -> Iterator[tuple[str, str]]:
    if isinstance(outcome, Finding | Evidence):
        for key, wrong in _of_conditions(outcome.at):
            yield f"at.{key}", wrong
    if isinstance(outcome, Finding):
        record = outcome.scope.record
        if isinstance(record, str) and not (record.isprintable() and 0 < len(record) <= _LONGEST_NAME):
            yield "scope.record", _must_be("'all', an index or a short name", record)
    if isinstance(outcome, Series):
        yield from _of_series(outcome)


def _of_conditions(conditions: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for key, value in conditions.items():
        if key in _NUMERIC and not _is_number(value):
            yield key, _must_be("a number", value)
        elif key == "delta" and not (isinstance(value, int | float) and 0.0 <= value <= 1.0):
            yield key, f"must lie between 0 and 1, got {_quoted(value)}"
        elif key in _INTEGRAL and not _is_count(value, 0):
            yield key, _must_be("a count", value)
        elif not _is_scalar(value):
            yield key, _must_be("a single value", value)


def _of_series(series: Series) -> Iterator[tuple[str, str]]:
    lengths = set()
    for name, column in series.columns.items():
        if not isinstance(column, Sequence) or isinstance(column, str):
            yield f"columns.{name}", "must be a list"
            continue
        lengths.add(len(column))
        if name == "group_size" and not all(_is_count(value, 0) for value in column):
            yield f"columns.{name}", "must hold counts"
        if not all(_is_scalar(value) for value in column):
            yield f"columns.{name}", "must hold single values"
    if len(lengths) != 1:
        yield "columns", f"must be lists of equal length, got {sorted(lengths) or 'none'}"
    if not all(isinstance(unit, str) for unit in series.units.values()):
        yield "units", "must be texts"
    for column, way in series.bounds.items():
        if column not in series.columns or way not in ("upper", "lower"):
            yield f"bounds.{column}", f"must name a column and say upper or lower, got {_quoted(way)}"
    for key, several in _NAMES.items():
        value = series.plot.get(key)
        names: list[Any] = [] if value is None else [value]
        if several and isinstance(value, tuple):
            names = list(value)
        if value is not None and not all(isinstance(name, str) for name in names):
            yield f"plot.{key}", f"must be a {'list of texts' if several else 'text'}, got {_quoted(value)}"
        elif key in _COLUMNS and (absent := [name for name in names if name and name not in series.columns]):
            yield f"plot.{key}", f"names no column: {_quoted(absent[0])}"


def _is_scalar(value: Json) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _must_be(expected: str, value: Json) -> str:
    return f"must be {expected}, got {_quoted(value)}"


def _quoted(value: Json) -> str:
    return repr(shortened(str(value), 60))
