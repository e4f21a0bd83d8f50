"""The figure of detection limits: rejected and untested assumptions first, then the largest limits."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import results as factory

from dpspec.contract import Assumption, Check
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import phrases
from dpspec.reporters.bars import detection_figure, detection_limits
from dpspec.reporters.page import render


def check(name: str, detectable: float | None, p_value: float = 0.5) -> Check:
    return Check(assumption=name, test="t", p_value=p_value, observed="measured", detectable=detectable)


def audit(*checks: Check, status: str = "no-deviation-found", assumptions: tuple[Assumption, ...] = ()) -> AuditResult:
    finding = factory.audit().findings[0]
    return factory.audit(
        checks=checks,
        findings=(type(finding)(**{**finding.__dict__, "assumptions": assumptions}),),
        conformance=factory.conformance(status),
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
    found = detection_limits(one, len(one.checks))
    assert [row.name for row in found] == ["clipping", "released", "batches", "update", "noise-scale", "steps"]
    assert [row.text for row in found] == [
        "REJECTED: deviation found",
        "not tested, declared by the spec",
        "no detection limit: the tests cannot fail",
        "87%",
        "0.5% to 25%",
        "any",
    ]
    figure = detection_figure(one, len(one.checks))
    assert figure is not None
    assert figure.rows[4] == ("noise-scale", "0.5%", "25%", "2 of 2")


def test_what_was_assumed_and_tested_elsewhere_is_not_said_to_be_untested():
    assumed = (Assumption(name="library-accuracy", status="not-rejected", test="compared with mpmath"),)
    assert [row.name for row in detection_limits(audit(check("steps", 0.0), assumptions=assumed), 1)] == ["steps"]


def test_without_a_test_there_is_no_figure():
    assert detection_figure(audit(status="not-run"), 0) is None


@given(low=st.floats(1e-6, 1e4), factor=st.floats(1.0, 1e4))
def test_the_parts_of_a_bar_end_at_the_detection_limits(low: float, factor: float):
    """Oracle: places on a logarithmic axis from 0.01% at least to 10,000% at most."""
    figure = detection_figure(audit(check("a", low), check("a", low * factor)), 2)
    assert figure is not None
    (bar,) = figure.bars
    ends = math.log10(max(1e-4, min(0.01, low))), math.log10(min(100.0, max(1.0, low * factor)))

    def place(size: float) -> float:
        return 100.0 * min(1.0, max(0.0, (math.log10(size) - ends[0]) / (ends[1] - ends[0])))

    assert (bar.low, bar.high) == pytest.approx((place(low), place(low * factor)), abs=1e-6)
    assert all(0.0 <= at <= 100.0 for at, _ in figure.ticks)


def test_foreign_names_are_escaped_on_the_page():
    hostile = "</text><script>alert(1)</script>\x1b[31m\u202e"
    page = render(factory.result(audit(check(hostile, 0.1)))).split("application/json")[0]
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


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
    assert [(check.assumption, bad) for check, bad in phrases.ranked(checks, 2)] == [("b", True), ("a", False)]
