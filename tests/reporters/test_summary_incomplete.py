"""While trials are missing, what they may still decide is told apart from what came out wrong."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from support import results as factory

from dpspec.engine.results.result import Conformance, Result
from dpspec.reporters import ci, markdown, terminal
from dpspec.reporters import page as html
from dpspec.reporters.limits import limits
from dpspec.reporters.summary import tally


def incomplete(**changes: Any) -> Result:
    waiting = factory.verdict(
        "later", verdict="open", expect=("refuted",), expected=False, reason="Nothing decides it."
    )
    wrong = factory.verdict("wrong", verdict="refuted", expected=False)
    deviating = Conformance(status="not-run", expect="deviates", expected=False, reason="No check was made.")
    values = {"verdicts": (waiting, wrong), "trials": (), "planned_trials": 4, "conformance": deviating, **changes}
    return factory.result(factory.audit(**values))


def test_the_tally_counts_what_is_not_decided_by_itself() -> None:
    assert tally(incomplete()) == (
        "FAILED 1 of 2 claims: demo.wrong; not yet decided: demo.later; INCOMPLETE, trials are missing"
    )
    waiting = incomplete(verdicts=incomplete().audits[0].verdicts[:1])
    assert tally(waiting) == ("1 audit, 1 claim; not yet decided: demo.later; INCOMPLETE, trials are missing")
    complete = incomplete(planned_trials=0)
    assert tally(complete) == "FAILED 2 of 2 claims: demo.later, demo.wrong; demo was not tested"


@pytest.mark.parametrize("render", [terminal.render, html.render, markdown.render])
def test_reports_for_people_say_that_trials_are_missing(render: Any) -> None:
    text = " ".join(render(incomplete()).split())
    assert "NOT YET DECIDED, trials are missing (expected refuted)" in text
    assert "NOT AS EXPECTED (expected proved)" in text
    assert "NOT YET TESTED, trials are missing (expected deviates)" in text
    assert "NOT YET" not in render(incomplete(planned_trials=0))


def test_machine_formats_warn_of_it_and_fail_on_the_rest() -> None:
    lines = ci.render_github(incomplete()).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::warning", "::error", "::warning", "::notice"]
    (suite,) = ET.fromstring(ci.render_junit(incomplete())).findall("testsuite")
    kinds = {case.get("name"): [child.tag for child in case] for case in suite.findall("testcase")}
    assert kinds == {
        "later": ["skipped", "system-out"],
        "wrong": ["failure", "system-out"],
        "conformance": ["skipped"],
        "trials": ["error"],
    }
    found = json.loads(ci.render_sarif(incomplete()))["runs"][0]["results"]
    assert [(one["ruleId"], one["level"]) for one in found] == [
        ("dpspec/open", "warning"),
        ("dpspec/refuted", "error"),
        ("dpspec/incomplete", "warning"),
    ]


def test_the_limits_say_who_may_decide() -> None:
    assert "Open in demo: later. The missing trials may decide it." in limits(incomplete())
    assert "Open in demo: later. Neither proved nor refuted." in limits(incomplete(planned_trials=0))
