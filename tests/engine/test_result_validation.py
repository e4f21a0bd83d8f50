"""A result that was read makes sense, or is refused with the place where it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import results

from dpspec.engine.results.codec import dump, load
from dpspec.errors import ResultError


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dump(results.result()))
    return found


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("confidence", 1.5, "result.confidence must lie between 0 and 1, got 1.5"),
        ("audits.0.verdicts.0.upper_finding", 7, "verdicts[0].upper_finding must be the place of a finding, got 7"),
        ("audits.0.verdicts.0.lower_finding", -1, "lower_finding must be the place of a finding, got -1"),
        ("audits.0.findings.0.at.delta", {"a": 1}, "findings[0].at.delta must be a number"),
        ("audits.0.findings.0.at.delta", True, "findings[0].at.delta must be a number, got 'True'"),
        ("audits.0.findings.0.at.delta", -1, "findings[0].at.delta must lie between 0 and 1, got '-1'"),
        ("audits.0.findings.0.at.delta", 1.5, "findings[0].at.delta must lie between 0 and 1, got '1.5'"),
        ("audits.0.findings.0.at.delta", "inf", "findings[0].at.delta must lie between 0 and 1, got 'inf'"),
        ("audits.0.findings.0.at.group_size", "two", "findings[0].at.group_size must be a count, got 'two'"),
        ("audits.0.findings.0.at.where", [1], "findings[0].at.where must be a single value"),
        ("audits.0.findings.0.scope.record", "", "scope.record must be 'all', an index or a short name, got ''"),
        ("audits.0.findings.0.scope.record", "a\nb", "scope.record must be 'all', an index or"),
        ("audits.0.findings.0.scope.record", "a" * 101, "findings[0].scope.record must be 'all', an index or a short"),
        ("audits.0.series.0.columns", {"a": [1], "b": [1, 2]}, "columns must be lists of equal length, got [1, 2]"),
        ("audits.0.series.0.columns", {}, "series[0].columns must be lists of equal length, got 'none'"),
        ("audits.0.series.0.columns", {"a": 3}, "series[0].columns.a must be a list"),
        ("audits.0.series.0.columns", {"a": [[1]]}, "series[0].columns.a must hold single values"),
        ("audits.0.series.0.columns", {"group_size": ["x"]}, "series[0].columns.group_size must hold counts"),
        ("audits.0.series.0.units", {"a": 3}, "series[0].units must be texts"),
        ("audits.0.series.0.plot", {"x": "nowhere"}, "series[0].plot.x names no column: 'nowhere'"),
        ("audits.0.series.0.plot", {"y": [3]}, "series[0].plot.y must be a list of texts"),
        ("audits.0.left_out", {"data-dependent": "many"}, "left_out.data-dependent must be a count, got 'many'"),
        ("audits.0.settled_after", 16, "settled_after must be null, without many-run-sequential evidence"),
        ("audits.0.document", {"mechanism": "group"}, "document.mechanism 'group' is not of type 'object'"),
        ("audits.0.document", {"claims": {"a": 1}}, "document.claims {'a': 1} is not of type 'array'"),
        ("audits", [], "result.audits must hold one audit or more"),
        ("created", "2026, and every claim is proved", "result.created must be a date and a time"),
        ("confidence", 10**400, "it holds an integer of 401 digits"),
        ("audits.0.places", {"one": [1, 2]}, "places.one must hold a file, a line and a column"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(place: str, value: Any, says: str) -> None:
    found = document()
    *path, last = (int(part) if part.isdigit() else part for part in place.split("."))
    holder: Any = found
    for part in path:
        holder = holder[part]
    holder[last] = value
    with pytest.raises(ResultError) as refused:
        load(json.dumps(found))
    assert says.replace("'none'", "none") in str(refused.value)


def test_infinities_are_numbers() -> None:
    found = document()
    found["audits"][0]["findings"][0]["value"] = 1e999
    assert load(dump(load(json.dumps(found).replace("Infinity", "1e999")))).audits[0].findings[0].value == float("inf")
