"""Validation of a result from a file, beyond types.

Files are untrusted: every value that later code uses as a name, index, count or statistic is checked here once and
refused with its place. Kinds and keys of plugins that are not installed pass; ``verify`` builds a spec from the
document and finds the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from dpspec.contract import Evidence, Finding, Json, Outcome, Series
from dpspec.engine.results.result import AuditResult, Result
from dpspec.errors import ResultError
from dpspec.text import shortened

#: The mappings of a spec, and the key of each that names its kind.
_BLOCKS = {"mechanism": "kind", "data": "kind", "model": "kind", "training": "backend", "threat_model": "", "audit": ""}

_TEXTS = frozenset({"adjacency", "unit", "access", "direction", "neighbours", "over", "refuted_by", "id", "kind"})
_COUNTS = frozenset({"record", "min_records"})
_NUMBERS = frozenset({"epsilon", "delta", "alpha", "mu", "kappa", "gamma", "fpr", "tpr", "value", "fraction"})


def of_document(document: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for key in ("name", "description", "system", "owner", "contact"):
        if key in document and not isinstance(document[key], str):
            yield key, f"must be a text, got {_quoted(document[key])}"
    for key, names in _BLOCKS.items():
        block = document.get(key)
        if block is None and (key not in document or key in ("model", "audit", "training", "threat_model")):
            continue
        if not isinstance(block, Mapping):
            yield key, f"must be a mapping, got {_quoted(block)}"
        elif names in block and not isinstance(block[names], str):
            yield f"{key}.{names}", f"must be a text, got {_quoted(block[names])}"
    threat = document.get("threat_model")
    if isinstance(threat, Mapping):
        yield from (("threat_model." + key, wrong) for key, wrong in _of_values(threat))
    claims = document.get("claims", ())
    if not isinstance(claims, tuple | list):
        yield "claims", f"must be a list, got {_quoted(claims)}"
        return
    for i, claim in enumerate(claims):
        if not isinstance(claim, Mapping):
            yield f"claims[{i}]", f"must be a mapping, got {_quoted(claim)}"
        else:
            yield from ((f"claims[{i}].{key}", wrong) for key, wrong in (*_of_values(claim), *_of_points(claim)))


def _of_values(block: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield invalid values of core's keys in a claim or a threat model; null means omitted."""
    for key, value in block.items():
        if value is None:
            continue
        if key in _TEXTS and not isinstance(value, str):
            yield key, f"must be a text, got {_quoted(value)}"
        elif key in _NUMBERS and not is_number(value):
            yield key, f"must be a number, got {_quoted(value)}"
        elif key in _COUNTS and not is_count(value, 0):
            yield key, f"must be a count, got {_quoted(value)}"
        elif key == "group_size":
            sizes = value if isinstance(value, tuple | list) else (value,)
            if not sizes or not all(is_count(size, 1) for size in sizes):
                yield key, f"must be a count or counts from 1, got {_quoted(value)}"
        elif key == "expect":
            expected = value if isinstance(value, tuple | list) else (value,)
            if not all(isinstance(each, str) for each in expected):
                yield key, f"must be verdicts, got {_quoted(value)}"


def _of_points(claim: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield an invalid curve of a claim; points of a threat model belong to its plugin."""
    if claim.get("points") is None:
        return
    points: Any = claim["points"] if isinstance(claim["points"], tuple | list) else (None,)
    for point in points:
        if not isinstance(point, Mapping) or next(_of_values(point), None) is not None:
            yield "points", f"must be points of a curve, got {_quoted(point)}"
            return


def is_number(value: Json) -> bool:
    if value in ("inf", "-inf"):  # as JSON has it
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Json, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


#: Conditions that are numbers, wherever they stand; others may be any scalar.
_NUMERIC = frozenset({"delta", "alpha", "kappa", "fpr", "mu", "fraction", "epsilon"})
_INTEGRAL = frozenset({"group_size", "step"})

#: Maximum length of the name of a record, such as "most exposed 1".
_LONGEST_NAME = 100

#: Keys of a series' plot with names of columns, and whether they take several.
_NAMES = {"x": False, "by": False, "kind": False, "y": True, "log": True, "band": True}
_COLUMNS = ("x", "by", "y", "band")


def require_sound(result: Result) -> None:
    for wrong in _wrong(result):
        raise ResultError(wrong)


def _wrong(result: Result) -> Iterator[str]:
    if not (0.0 < result.confidence < 1.0 or (result.parts and result.confidence == 0.0)):
        yield f"result.confidence must lie between 0 and 1, got {result.confidence}"
    if not result.audits:
        yield "result.audits must hold one audit or more"
    if not _is_time(result.created):
        yield f"result.created must be a date and a time, got {_quoted(result.created)}"
    for i, part in enumerate(result.parts):
        if not _is_time(part.created):
            yield f"result.parts[{i}].created must be a date and a time, got {_quoted(part.created)}"
        if not 0.0 < part.confidence < 1.0:
            yield f"result.parts[{i}].confidence must lie between 0 and 1, got {part.confidence}"
    if result.parts and sum(len(part.names) for part in result.parts) != len(result.audits):
        yield "result.parts must name every audit once"
    for i, audit in enumerate(result.audits):
        for place, wrong in _of_audit(audit):
            yield f"result.audits[{i}].{place} {wrong}"


def _of_audit(audit: AuditResult) -> Iterator[tuple[str, str]]:
    for i, verdict in enumerate(audit.verdicts):
        for name in ("upper_finding", "lower_finding"):
            index = getattr(verdict, name)
            if index is not None and not 0 <= index < len(audit.findings):
                yield f"verdicts[{i}].{name}", f"must be the place of a finding, got {index}"
    kinds: dict[str, Sequence[Outcome]] = {
        "findings": audit.findings,
        "series": audit.series,
        "evidence": audit.evidence,
    }
    for name, outcomes in kinds.items():
        for i, outcome in enumerate(outcomes):
            for key, wrong in flaws_of(outcome):
                yield f"{name}[{i}].{key}", wrong
    for i, power in enumerate(audit.power):
        for key, wrong in _of_conditions(power.at):
            yield f"power[{i}].at.{key}", wrong
    for i, evidence in enumerate(audit.evidence):
        for wrong in _of_evidence(evidence):
            yield f"evidence[{i}].statistics", f"make no sense: {wrong}"
    for key, wrong in of_document(audit.document):
        yield f"document.{key}", wrong
    if audit.settled_after is not None and not is_count(audit.settled_after, 1):
        yield "settled_after", f"must be a count, got {_quoted(audit.settled_after)}"
    if not 0 <= audit.stored_trials <= len(audit.trials):
        yield "stored_trials", f"must count some of {len(audit.trials)} trials, got {audit.stored_trials}"
    for key, number in audit.left_out.items():
        if not is_count(number, 0):
            yield f"left_out.{key}", f"must be a count, got {_quoted(number)}"
    for key, place in audit.places.items():
        if not isinstance(place, Mapping) or not all(is_count(place.get(name), 1) for name in ("line", "column")):
            yield f"places.{key}", "must hold a file, a line and a column"
        elif not isinstance(place.get("file"), str):
            yield f"places.{key}.file", f"must be a text, got {_quoted(place.get('file'))}"


def flaws_of(outcome: Outcome) -> Iterator[tuple[str, str]]:
    if isinstance(outcome, Finding | Evidence):
        for key, wrong in _of_conditions(outcome.at):
            yield f"at.{key}", wrong
    if isinstance(outcome, Finding):
        yield from _of_finding(outcome)
    if isinstance(outcome, Series):
        yield from _of_series(outcome)


def _of_finding(finding: Finding) -> Iterator[tuple[str, str]]:
    record = finding.scope.record
    if isinstance(record, str) and not (record.isprintable() and 0 < len(record) <= _LONGEST_NAME):
        yield "scope.record", f"must be 'all', an index or a short name, got {_quoted(record)}"


def _of_conditions(at: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for key, value in at.items():
        if key in _NUMERIC and not is_number(value):
            yield key, f"must be a number, got {_quoted(value)}"
        elif key == "delta" and not (isinstance(value, int | float) and 0.0 <= value <= 1.0):
            yield key, f"must lie between 0 and 1, got {_quoted(value)}"
        elif key in _INTEGRAL and not is_count(value, 0):
            yield key, f"must be a count, got {_quoted(value)}"
        elif not _is_scalar(value):
            yield key, f"must be a single value, got {_quoted(value)}"


def _of_series(series: Series) -> Iterator[tuple[str, str]]:
    lengths = set()
    for name, column in series.columns.items():
        if not isinstance(column, Sequence) or isinstance(column, str):
            yield f"columns.{name}", "must be a list"
            continue
        lengths.add(len(column))
        if name == "group_size" and not all(is_count(value, 0) for value in column):
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
        names = list(_names(value, several))
        if value is not None and not all(isinstance(name, str) for name in names):
            yield f"plot.{key}", f"must be a {'list of texts' if several else 'text'}, got {_quoted(value)}"
        elif key in _COLUMNS and (absent := [name for name in names if name and name not in series.columns]):
            yield f"plot.{key}", f"names no column: {_quoted(absent[0])}"


def _names(value: Json, several: bool) -> Iterable[Any]:
    if value is None:
        return ()
    return value if several and isinstance(value, tuple) else (value,)


def _of_evidence(evidence: Evidence) -> Iterator[str]:
    from dpspec.stats.attacks import evidence_tests

    try:
        evidence_tests.require_counts(evidence)
    except ValueError as error:
        yield str(error)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_scalar(value: Json) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _quoted(value: Json) -> str:
    return repr(shortened(str(value), 60))
