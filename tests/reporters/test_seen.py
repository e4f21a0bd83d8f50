"""The figure of what tests would have seen: ranked, with what none of them could see as loud as what they did."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import results as factory

from dpspec.contract import Assumption, Check
from dpspec.engine.results.result import AuditResult, Conformance
from dpspec.reporters.html import seen
from dpspec.reporters.html.page import render
from dpspec.reporters.view import sentences

#: Of the bars in the drawing's units: from the left edge to the right one.
LEFT, RIGHT = 6.0, 412.0


def check(name: str, detectable: float | None, p_value: float = 0.5) -> Check:
    return Check(assumption=name, test="t", p_value=p_value, observed="measured", detectable=detectable)


def audit(*checks: Check, status: str = "no-deviation-found", assumptions: tuple[Assumption, ...] = ()) -> AuditResult:
    finding = factory.audit().findings[0]
    return factory.audit(
        checks=checks,
        findings=(type(finding)(**{**finding.__dict__, "assumptions": assumptions}),),
        conformance=Conformance(status=status, expect="no-deviation-found", expected=True, reason="Why."),  # type: ignore[arg-type]
    )


def test_rejected_then_unseen_then_the_bluntest_first():
    assumed = Assumption(name="released", status="declared"), Assumption(name="radius", status="by-construction")
    one = audit(
        check("steps", 0.0),
        check("noise-scale", 0.005),
        check("noise-scale", 0.25),
        check("update", 0.87),
        check("batches", None),
        check("clipping", 0.1, p_value=0.0),
        assumptions=assumed,
    )
    found = seen.rows(one, len(one.checks))
    assert [row.name for row in found] == ["clipping", "released", "batches", "update", "noise-scale", "steps"]
    assert [row.text for row in found] == [
        "REJECTED: deviation found",
        "not tested, declared by the spec",
        "no detection limit: the tests cannot fail",
        "87%",
        "0.5% to 25%",
        "any",
    ]
    figure = seen.figure(one, len(one.checks), "f")
    assert figure is not None
    assert figure.rows[4] == ("noise-scale", "0.5%", "25%", "2 of 2")


def test_what_was_assumed_and_tested_elsewhere_is_not_said_to_be_untested():
    assumed = (Assumption(name="library-accuracy", status="not-rejected", test="compared with mpmath"),)
    assert [row.name for row in seen.rows(audit(check("steps", 0.0), assumptions=assumed), 1)] == ["steps"]


def test_without_a_test_there_is_no_figure():
    assert seen.figure(audit(status="not-run"), 0, "f") is None


@given(low=st.floats(1e-6, 1e4), factor=st.floats(1.0, 1e4))
def test_a_bar_is_hatched_to_the_least_size_that_is_seen_and_full_from_the_largest(low: float, factor: float):
    """Oracle: places on a logarithmic axis from 0.01% at least to 10,000% at most, to a hundredth of a unit."""
    figure = seen.figure(audit(check("a", low), check("a", low * factor)), 2, "f")
    assert figure is not None
    bars = [bar for bar in ET.fromstring(figure.svg).iter() if bar.tag.endswith("rect") and "height" in bar.attrib]
    pieces = {bar.attrib["fill"]: bar for bar in bars if bar.attrib["height"] == "9" and "x" in bar.attrib}
    ends = math.log10(max(1e-4, min(0.01, low))), math.log10(min(100.0, max(1.0, low * factor)))

    def place(size: float) -> float:
        share = (math.log10(size) - ends[0]) / (ends[1] - ends[0])
        return LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, share))

    hatched = pieces.get("url(#f-unseen)")
    width = 0.0 if hatched is None else float(hatched.attrib["width"])
    assert abs(LEFT + width - place(low)) < 0.02
    total = sum(float(bar.attrib["width"]) for bar in bars if bar.attrib["height"] == "9" and "x" in bar.attrib)
    assert abs(total - (RIGHT - LEFT)) < 0.05


def test_nothing_that_others_wrote_becomes_markup():
    hostile = "</text><script>alert(1)</script>\x1b[31m\u202e"
    figure = seen.figure(audit(check(hostile, 0.1)), 1, "f")
    assert figure is not None
    assert "<script" not in figure.svg
    assert "\x1b" not in figure.svg
    assert "\u202e" not in figure.svg
    ET.fromstring(figure.svg)


def test_the_page_ranks_what_would_have_been_seen_and_puts_rejected_tests_first():
    fine = render(factory.result(audit(check("steps", 0.0), check("update", 0.5))))
    assert "Smallest detectable deviation" in fine
    assert "2 tests, none rejected. The figure shows the smallest deviation that each kind of test detects." in fine
    broken = render(factory.result(audit(check("steps", 0.0), check("update", 0.5, p_value=0.0), status="deviates")))
    rows = re.findall(
        r"<tr( class=\"rejected\")?><td>(.*?)</td>", broken.partition("Tests of conformance</caption>")[2]
    )
    assert rows[0] == (' class="rejected"', '<span class="verdict deviates">rejected</span> update')
    assert rows[1] == ("", "steps")


@pytest.mark.parametrize("value", [-1.0, float("-inf"), 2.0, float("nan")])
def test_what_is_no_p_value_is_shown_as_rejected(value: float) -> None:
    checks = [
        Check(assumption=name, test="exact", p_value=p, observed="reported") for name, p in (("a", 1.0), ("b", value))
    ]
    assert [(check.assumption, bad) for check, bad in sentences.ranked(checks, 2)] == [("b", True), ("a", False)]
