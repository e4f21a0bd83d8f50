"""Reports of a command without a result: each is read back by a parser that did not write it."""

import dataclasses
import json
from xml.etree import ElementTree as ET

from support.schemas import sarif_errors

from dpspec.contract import Diagnostic
from dpspec.errors import ExitCode, Span
from dpspec.reporters.failures import FORMATS, Failure

LOCATED = Diagnostic(
    code="unknown-key",
    message="unknown key 'clams'",
    path=("clams",),
    help="did you mean 'claims'?",
    span=Span("specs/a b.yaml", 4, 3, 4, 8),
)
ELSEWHERE = Diagnostic(code="plugin-broken", message="a plugin | fails\n::error::x", path=("mechanism", "kind"))
REMARK = Diagnostic(code="unused", message="not used", severity="warning", span=Span("specs/a b.yaml", 9, 1, 9, 2))
INVALID = Failure(exit_code=ExitCode.INVALID_SPEC, message="invalid", diagnostics=(LOCATED, ELSEWHERE, REMARK))
OVERRIDDEN = dataclasses.replace(LOCATED, span=Span("--set", 1, 1, 1, 6))
USAGE = Failure(exit_code=ExitCode.USAGE, message="cannot use the store x: 100% full")


def test_github_annotates_the_line_and_ends_with_an_error() -> None:
    lines = FORMATS["github"](INVALID).splitlines()
    assert lines[0].startswith("::error title=error[unknown-key],file=specs/a b.yaml,line=4,col=3::unknown key 'clams'")
    assert [line.split(" ")[0] for line in lines] == ["::error", "::error", "::warning", "::error"]
    assert lines[-1] == "::error title=dpspec::no verdict (exit 3): 2 errors in the specs"
    assert FORMATS["github"](USAGE).splitlines() == [
        "::error title=dpspec::no verdict (exit 2): cannot use the store x: 100%25 full"
    ]


def test_a_value_of_set_has_no_place_in_a_file() -> None:
    failure = dataclasses.replace(INVALID, diagnostics=(OVERRIDDEN,))
    assert FORMATS["github"](failure).startswith("::error title=error[unknown-key]::unknown key 'clams'")
    (run_,) = json.loads(FORMATS["sarif"](failure))["runs"]
    assert run_["results"] == []
    assert len(run_["invocations"][0]["toolExecutionNotifications"]) == 2
    assert '<testcase name="--set:1:1"' in FORMATS["junit"](failure)


def test_junit_has_an_error_for_each_diagnostic() -> None:
    (suite,) = ET.fromstring(FORMATS["junit"](INVALID)).findall("testsuite")
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("2", "2", "0")
    assert [case.get("name") for case in suite.iter("testcase")] == ["specs/a b.yaml:4:3", "mechanism.kind"]
    (suite,) = ET.fromstring(FORMATS["junit"](USAGE)).findall("testsuite")
    error = suite.find("testcase/error")
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("usage", USAGE.message)


def test_sarif_has_results_with_a_line_and_notifications_without() -> None:
    for failure in (INVALID, USAGE):
        document = json.loads(FORMATS["sarif"](failure))
        assert sarif_errors(document) == []
    (run_,) = json.loads(FORMATS["sarif"](INVALID))["runs"]
    (invocation,) = run_["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 3)
    places = [result["locations"][0]["physicalLocation"] for result in run_["results"]]
    assert [place["region"]["startLine"] for place in places] == [4, 9]
    assert places[0]["artifactLocation"]["uri"] == "specs/a%20b.yaml"
    assert len(invocation["toolExecutionNotifications"]) == 2
    rules = [rule["id"] for rule in run_["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run_["results"])


def test_markdown_lists_the_diagnostics() -> None:
    text = FORMATS["markdown"](INVALID)
    assert text.startswith("# dpspec\n\n**no verdict (exit 3): 2 errors in the specs**\n")
    assert len([line for line in text.splitlines() if line.startswith("- **")]) == 3
    assert "\n::error" not in text
