"""A result survives the round trip; what makes no sense is refused with its place."""

import dataclasses
import json
import math
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import results
from support import results as factory

from dpspec import decimals
from dpspec.contract import FrozenMap
from dpspec.errors import ResultError
from dpspec.results import codec
from dpspec.results.codec import dump, load, result_schema


def test_a_result_survives_the_round_trip() -> None:
    result = factory.result(factory.audit(), factory.audit("other", cell=FrozenMap({"a": 1})))
    again = codec.load(codec.dump(result))
    assert again == result
    assert again.audits[0].findings[1].value == math.inf


def test_no_infinity_and_no_nan_in_the_text() -> None:
    text = codec.dump(factory.result())
    assert "Infinity" not in text
    json.loads(text, parse_constant=pytest.fail)
    broken = factory.result(factory.audit(seconds=math.nan))
    with pytest.raises(ValueError, match="NaN"):
        codec.dump(broken)


def test_a_result_follows_its_published_schema() -> None:
    schema = result_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(codec.dump(factory.result())), schema)
    wrong = json.loads(codec.dump(factory.result()))
    wrong["audits"][0]["verdicts"][0]["verdict"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


@given(st.text())
def test_any_text_is_a_result_or_a_result_error(text: str) -> None:
    with pytest.raises(ResultError):
        codec.load(text)


@pytest.mark.parametrize("text", ["NaN", "[" * 100_000, "9" * 5000])
def test_constants_and_depth_are_refused(text: str) -> None:
    with pytest.raises(ResultError):
        codec.load(text)


@pytest.mark.parametrize(("kind", "depth"), [("lists", codec.MAX_DEPTH + 1), ("maps", 900)])
def test_what_is_nested_too_deeply_is_refused_before_anything_walks_over_it(kind: str, depth: int) -> None:
    data = json.loads(codec.dump(factory.result()))
    inner: object = 1
    for _ in range(depth):
        inner = [inner] if kind == "lists" else {"a": inner}
    data["audits"][0]["document"]["data"] = {"x": inner}
    with pytest.raises(ResultError, match="nested deeper than 100 levels"):
        codec.load(json.dumps(data))


@pytest.mark.parametrize("sign", [1, -1])
def test_whole_numbers_beyond_every_float_are_refused(sign: int) -> None:
    data = json.loads(codec.dump(factory.result()))
    data["audits"][0]["document"]["data"] = {"records": sign * 10**308}
    with pytest.raises(ResultError, match="an integer of 309 digits"):
        codec.load(json.dumps(data))
    data["audits"][0]["document"]["data"] = {"records": sign * 10**298}
    assert codec.load(json.dumps(data)).audits[0].document["data"]["records"] == sign * 10**298


def test_the_exit_code_says_what_the_result_says() -> None:
    unexpected = factory.audit(verdicts=(factory.verdict(expected=False),))
    assert factory.result().exit_code == 0
    assert factory.result(unexpected).exit_code == 1
    assert factory.result(unexpected, dataclasses.replace(factory.audit(), planned_trials=2)).exit_code == 6


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dump(results.result()))
    return found


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("schema", "dpspec/result/v9", "dpspec/result/v2"),
        ("extra", 1, "unknown key 'extra'"),
        ("audits.0.verdicts.0.verdict", "fine", "must be one of"),
        ("audits.0.findings.0.source", "Abadi", "findings[0].source must be an index in sources, got 'Abadi'"),
        ("audits.0.findings.0.assumptions", [True], "findings[0].assumptions[0] must be an index in assumptions"),
        ("audits.0.evidence", [], "result.scopes[1] belongs to no finding and no evidence"),
        ("scopes.0.min_records", "x", "result.scopes[0].min_records must be an integer"),
        ("audits.0.findings.0.value", "many", "must be a number"),
        ("audits.0.planned_trials", 1.5, "must be an integer"),
        ("confidence", 1.5, "result.confidence must lie between 0 and 1, got 1.5"),
        ("audits.0.verdicts.0.upper_finding", 7, "verdicts[0].upper_finding must be the place of a finding, got 7"),
        ("audits.0.findings.0.at.delta", -1, "findings[0].at.delta must lie between 0 and 1, got '-1'"),
        ("audits.0.findings.0.at.group_size", "two", "findings[0].at.group_size must be a count, got 'two'"),
        ("audits.0.findings.0.at.where", [1], "findings[0].at.where must be a single value"),
        ("scopes.0.record", "", "audits[0].findings[0].scope.record must be 'all', an index or a short name, got ''"),
        ("scopes.0.record", "a\nb", "scope.record must be 'all', an index or"),
        ("audits.0.series.0.columns", {"a": [1], "b": [1, 2]}, "columns must be lists of equal length, got [1, 2]"),
        ("audits.0.series.0.columns", {}, "series[0].columns must be lists of equal length, got 'none'"),
        ("audits.0.series.0.columns", {"a": [[1]]}, "series[0].columns.a must hold single values"),
        ("audits.0.series.0.columns", {"group_size": ["x"]}, "series[0].columns.group_size must hold counts"),
        ("audits.0.series.0.units", {"a": 3}, "series[0].units must be texts"),
        ("audits.0.series.0.plot", {"x": "nowhere"}, "series[0].plot.x names no column: 'nowhere'"),
        ("audits.0.left_out", {"data-dependent": "many"}, "left_out.data-dependent must be a count, got 'many'"),
        ("schema", "dpspec/result/v1", "of dpspec 0.2 or older, which can read it: run its spec again"),
        ("audits.0.document", {"mechanism": "group"}, "document.mechanism 'group' is not of type 'object'"),
        ("audits.0.document", {"claims": {"a": 1}}, "document.claims {'a': 1} is not of type 'array'"),
        ("audits", [], "result.audits must hold one audit or more"),
        ("created", "2026, and every claim is proved", "result.created must be a date and a time"),
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


FINITE = st.floats(allow_nan=False, allow_infinity=False)
DIGITS = st.integers(1, 17)


@given(FINITE, DIGITS)
def test_an_upper_bound_never_shrinks(value, digits):
    assert float(decimals.upper(value, digits=digits)) >= value


@given(FINITE, DIGITS)
def test_a_lower_bound_never_grows(value, digits):
    assert float(decimals.lower(value, digits=digits)) <= value


@given(FINITE, FINITE)
def test_rounding_keeps_the_side_of_the_claim(value, claim):
    for text in (decimals.upper(value, against=claim), decimals.lower(value, against=claim)):
        assert (float(text) > claim) == (value > claim)
        assert (float(text) < claim) == (value < claim)


@given(st.floats(1e-6, 1e6))
def test_rounding_stays_close(value):
    for text in (decimals.upper(value), decimals.lower(value), decimals.nearest(value)):
        assert math.isclose(float(text), value, rel_tol=1e-3)


@given(FINITE)
def test_exact_reads_back(value):
    assert float(decimals.exact(value)) == value


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (2.95524591, "2.956", "2.955"),
        (-2.95524591, "-2.955", "-2.956"),
        (1.23456e-9, "1.235e-9", "1.234e-9"),
        (1234567.0, "1235000", "1234000"),
        (0.0, "0", "0"),
        (9.99999, "10", "9.999"),
        (math.inf, "infinity", "infinity"),
        (math.nan, "not a number", "not a number"),
    ],
)
def test_examples(value, up, down):
    assert (decimals.upper(value), decimals.lower(value)) == (up, down)


def test_digits_are_added_until_the_side_of_the_claim_shows():
    assert decimals.upper(2.99996, against=2.9999) == "3"
    assert decimals.upper(2.99986, against=2.9999) == "2.99986"
    assert decimals.lower(3.00001, against=3.0) == "3.00001"
    assert decimals.upper(0.10000000000000002, against=0.1) == "0.10000000000000002"
    assert decimals.upper(0.1000006, against=0.1) == "0.100001"


@given(st.floats(1e-6, 1e6), st.floats(-1e-2, 1e-2))
def test_rounding_next_to_the_claim_does_not_invent_a_distance(claim, relative):
    """0.10000000000000002 was shown as 0.1001."""
    value = claim * (1.0 + relative)
    distance = abs(Decimal(repr(value)) - Decimal(repr(claim)))
    for text in (decimals.upper(value, against=claim), decimals.lower(value, against=claim)):
        assert abs(Decimal(text) - Decimal(repr(claim))) <= 2 * distance


def test_a_percentage_has_the_digits_of_its_fraction() -> None:
    assert [decimals.percent(fraction) for fraction in (0.07, 0.29, 1e-7)] == ["7%", "29%", "1e-5%"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.7, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations(seconds, text):
    assert decimals.duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**31, "2.0 GiB")])
def test_sizes(count, text):
    assert decimals.size(count) == text
