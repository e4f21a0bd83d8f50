"""Whether a result that was read makes sense: what types alone do not say, and everything that reads it relies on.

A file of somebody else's may hold anything. What is looked up by name, counted, drawn or tested is checked once, where
the file is read, and refused with its place; the rest of dpspec need not mistrust it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dpspec.contract import Evidence, Finding, Json, Series
from dpspec.engine.result import AuditResult, Result
from dpspec.errors import ResultError

#: Conditions that are numbers, wherever they stand; others may be any scalar.
_NUMBERS = frozenset({"delta", "alpha", "kappa", "fpr", "mu", "fraction", "epsilon"})
_COUNTS = frozenset({"group_size", "step"})

#: How a series may say that it is drawn: one name, or several.
_NAMES = {"x": False, "by": False, "kind": False, "y": True, "log": True, "band": True}
_COLUMNS = ("x", "by", "y", "band")

#: The parts of a spec that are mappings.
_BLOCKS = ("mechanism", "data", "model", "training", "threat_model", "audit")


def require_sound(result: Result) -> None:
    """Raise ``ResultError`` with the first thing that makes no sense."""
    for wrong in _wrong(result):
        raise ResultError(wrong)


def _wrong(result: Result) -> Iterator[str]:
    if not (0.0 < result.confidence < 1.0 or (result.parts and result.confidence == 0.0)):
        yield f"result.confidence must lie between 0 and 1, got {result.confidence}"
    for i, part in enumerate(result.parts):
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
    conditions = {
        "findings": [finding.at for finding in audit.findings],
        "evidence": [evidence.at for evidence in audit.evidence],
        "power": [power.at for power in audit.power],
    }
    for name, items in conditions.items():
        for i, at in enumerate(items):
            for key, wrong in _of_conditions(at):
                yield f"{name}[{i}].at.{key}", wrong
    for i, finding in enumerate(audit.findings):
        for key, wrong in _of_finding(finding):
            yield f"findings[{i}].{key}", wrong
    for i, series in enumerate(audit.series):
        for key, wrong in _of_series(series):
            yield f"series[{i}].{key}", wrong
    for i, evidence in enumerate(audit.evidence):
        for wrong in _of_evidence(evidence):
            yield f"evidence[{i}].statistics", f"make no sense: {wrong}"
    for key in _BLOCKS:
        if not isinstance(audit.document.get(key, {}), Mapping):
            yield f"document.{key}", "must be a mapping"
    if audit.settled_after is not None and not _is_count(audit.settled_after, 1):
        yield "settled_after", f"must be a count, got {_shown(audit.settled_after)}"
    if not isinstance(audit.document.get("claims", ()), tuple):
        yield "document.claims", "must be a list"
    for key, number in audit.left_out.items():
        if not _is_count(number, 0):
            yield f"left_out.{key}", f"must be a count, got {_shown(number)}"
    for key, place in audit.places.items():
        if not isinstance(place, Mapping) or not all(_is_count(place.get(name), 1) for name in ("line", "column")):
            yield f"places.{key}", "must hold a file, a line and a column"


def _of_finding(finding: Finding) -> Iterator[tuple[str, str]]:
    record = finding.scope.record
    if isinstance(record, str) and record != "all":
        yield "scope.record", f"must be 'all' or an index, got {_shown(record)}"


def _of_conditions(at: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for key, value in at.items():
        if key in _NUMBERS and not _is_number(value):
            yield key, f"must be a number, got {_shown(value)}"
        elif key == "delta" and not (isinstance(value, int | float) and 0.0 <= value <= 1.0):
            yield key, f"must lie between 0 and 1, got {_shown(value)}"
        elif key in _COUNTS and not _is_count(value, 0):
            yield key, f"must be a count, got {_shown(value)}"
        elif not _is_scalar(value):
            yield key, f"must be a single value, got {_shown(value)}"


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
    for key, several in _NAMES.items():
        value = series.plot.get(key)
        names = list(_names(value, several))
        if value is not None and not all(isinstance(name, str) for name in names):
            yield f"plot.{key}", f"must be a {'list of texts' if several else 'text'}, got {_shown(value)}"
        elif key in _COLUMNS and (absent := [name for name in names if name and name not in series.columns]):
            yield f"plot.{key}", f"names no column: {_shown(absent[0])}"


def _names(value: Json, several: bool) -> Iterable[Any]:
    if value is None:
        return ()
    return value if several and isinstance(value, tuple) else (value,)


def _of_evidence(evidence: Evidence) -> Iterator[str]:
    from dpspec.stats import nulls

    try:
        nulls.require_counts(evidence)
    except ValueError as error:
        yield str(error)


def _is_number(value: Json) -> bool:
    if value in ("inf", "-inf"):  # as JSON has it
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Json, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _is_scalar(value: Json) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _shown(value: Json) -> str:
    return repr(str(value)[:60])
