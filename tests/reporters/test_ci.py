"""JUnit, SARIF, GitHub annotations and CSV: each parsed back by something that did not write it."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from support import results as factory
from support.schemas import sarif_errors

from dpspec.contract import FrozenMap
from dpspec.contract.results import Regression, Result
from dpspec.reporters import ci
from dpspec.reporters import data_files as csv_format

PLACES = FrozenMap(
    {
        "": {"file": "specs/demo.yaml", "line": 1, "column": 1},
        "one": {"file": "specs/demo.yaml", "line": 17, "column": 5},
    }
)


def broken(**changes: Any) -> Result:
    refuted = factory.verdict(verdict="refuted", expected=False, reason="the attack rejects it", upper=math.inf)
    deviates = factory.conformance(expected=False, reason="half the noise")
    audit = factory.audit(verdicts=(refuted,), conformance=deviates, places=PLACES, trials=(), **changes)
    return factory.result(audit)


def test_junit_has_a_failure_for_everything_unexpected() -> None:
    root = ET.fromstring(ci.render_junit(broken()))
    (suite,) = root.findall("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "2", "1")
    failures = {case.get("name"): case.find("failure") for case in suite.findall("testcase")}
    assert failures["one"] is not None
    assert failures["one"].get("type") == "refuted" or "refuted" in (failures["one"].get("message") or "")
    assert failures["conformance"] is not None


def test_junit_passes_a_control_that_fails_as_it_should() -> None:
    control = factory.verdict(verdict="refuted", expect=("refuted",), expected=True)
    root = ET.fromstring(ci.render_junit(factory.result(factory.audit(verdicts=(control,)))))
    (suite,) = root.findall("testsuite")
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "1")


def test_sarif_points_at_the_claim() -> None:
    document = json.loads(ci.render_sarif(broken()))
    assert sarif_errors(document) == []
    (run_,) = document["runs"]
    rules = [rule["id"] for rule in run_["tool"]["driver"]["rules"]]
    found = {item["ruleId"]: item for item in run_["results"]}
    assert set(found) == {"dpspec/refuted", "dpspec/deviates", "dpspec/incomplete"}
    assert all(rules[item["ruleIndex"]] == name for name, item in found.items())
    place = found["dpspec/refuted"]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "specs/demo.yaml"
    assert place["region"] == {"startLine": 17, "startColumn": 5}


def test_github_annotates_the_line() -> None:
    lines = ci.render_github(broken()).splitlines()
    assert lines[0].startswith("::error title=demo%2C claim one%3A refuted,file=specs/demo.yaml,line=17,col=5::")
    assert [line.split(" ", 1)[0] for line in lines] == ["::error", "::error", "::warning", "::error"]
    passed = ci.render_github(factory.result()).splitlines()
    assert [line.split(" ", 1)[0] for line in passed] == ["::notice"]


def test_a_regression_is_at_the_line_of_its_claim() -> None:
    numbers = ("epsilon 2.12516 -> 2.28271",)
    worse = Regression(
        audit="app", claim="one", name="upper", changes=numbers, because=("mechanism.noise_multiplier 1.2 -> 1.15",)
    )
    places = FrozenMap({"one": {"file": "specs/app.yaml", "line": 7, "column": 3}})
    audit = factory.audit("app", verdicts=(factory.verdict("one"),), places=places)
    result = factory.result(audit, regressions=(worse, Regression(audit="gone", claim="", name="audit")))
    message = "app / one: epsilon 2.12516 -> 2.28271, because mechanism.noise_multiplier 1.2 -> 1.15"
    at_claim, elsewhere = (line for line in ci.render_github(result).splitlines() if "%3A regression" in line)
    assert at_claim == f"::error title=app%3A regression,file=specs/app.yaml,line=7,col=3::{message}"
    assert elsewhere.startswith("::error title=gone%3A regression::gone: audit")
    found = [r for r in json.loads(ci.render_sarif(result))["runs"][0]["results"] if r["ruleId"] == "dpspec/regression"]
    lines = [item["locations"][0]["physicalLocation"]["region"]["startLine"] for item in found]
    assert lines == [7, 1]
    assert found[0]["message"]["text"] == message
    assert message in ci.render_junit(result).replace("&gt;", ">")
    rows = list(csv.DictReader(io.StringIO(csv_format.render_csv(result))))
    assert next(row["reason"] for row in rows if row["kind"] == "regression") == message


def test_places_are_from_the_root_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub" / "specs").mkdir(parents=True)
    (tmp_path / "sub" / "specs" / "demo.yaml").touch()
    monkeypatch.chdir(tmp_path / "sub")
    for workspace, file in (("", "specs/demo.yaml"), (tmp_path, "sub/specs/demo.yaml"), ("/etc", "specs/demo.yaml")):
        monkeypatch.setenv("GITHUB_WORKSPACE", str(workspace))
        assert f",file={file},line=17" in ci.render_github(broken()).splitlines()[0]
        place = json.loads(ci.render_sarif(broken()))["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == file
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert ci.in_workspace("specs/none.yaml") == "specs/none.yaml"  # a result of another machine
    assert ci.in_workspace("nul\0.yaml") == "nul\0.yaml"


def test_csv_reads_back() -> None:
    row, *others = csv.DictReader(io.StringIO(csv_format.render_csv(broken())))
    assert [(other["kind"], other["verdict"]) for other in others] == [
        ("conformance", "deviates"),
        ("trials", "incomplete"),
    ]
    assert (row["claim"], row["verdict"], row["as_expected"], row["line"]) == ("one", "refuted", "no", "17")
    assert float(row["upper"]) == math.inf
    assert float(row["lower"]) == 0.4


def test_a_large_delta_is_an_open_caution_at_its_claim() -> None:
    claims = FrozenMap({"claims": [{"id": "one", "delta": 0.2}, {"id": "two", "delta": 1e-9}]})
    verdicts = (factory.verdict("one"), factory.verdict("two"))
    result = factory.result(factory.audit(verdicts=verdicts, document=claims, places=PLACES))
    first, second, caution = csv.DictReader(io.StringIO(csv_format.render_csv(result)))
    assert first["caution"].startswith("delta = 0.2 of claim one of demo is not below 1 / 10 records")
    assert second["caution"] == ""
    assert (caution["kind"], caution["verdict"], caution["as_expected"]) == ("caution", "large-delta", "no")
    error = ci.render_github(result).splitlines()[0]
    assert error.startswith("::error title=demo%3A caution large-delta,file=specs/demo.yaml,line=17,col=5::caution")
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        *((f"{start}HYPERLINK(1)", f"'{start}HYPERLINK(1)") for start in "=+-@\uff1d\uff0b\uff0d\uff20"),
        ("a;=cmd", "a;'=cmd"),  # a spreadsheet may split the line at other separators
        ("a; @x|+1", "a; '@x|'+1"),
        ("a=b", "a=b"),
    ],
)
def test_no_cell_is_a_formula(name: str, cell: str) -> None:
    (row,) = csv.DictReader(io.StringIO(csv_format.render_csv(factory.result(factory.audit(name)))))
    assert row["audit"] == cell
