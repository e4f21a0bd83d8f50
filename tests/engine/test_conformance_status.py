from __future__ import annotations

import dataclasses

import pytest
from support import audits

from dpspec.contract import Assumption, Scope
from dpspec.engine.judging.conformance_status import conformance_of, join_checks, missing
from dpspec.engine.judging.judge import judge


@pytest.mark.parametrize(
    ("p_values", "expect", "status", "expected"),
    [
        ([], "no-deviation-found", "not-run", True),
        ([], "deviates", "not-run", False),
        ([0.3, 1e-5], "no-deviation-found", "no-deviation-found", True),
        ([0.3, 1e-5], "deviates", "no-deviation-found", False),
        ([0.3, 0.0], "no-deviation-found", "deviates", False),
        ([0.3, 0.0], "deviates", "deviates", True),
    ],
)
def test_status_and_expectation(p_values: list[float], expect: str, status: str, expected: bool) -> None:
    found = conformance_of(expect, [audits.check(p) for p in p_values], len(p_values))
    assert (found.status, found.expected, found.expect) == (status, expected, expect)
    assert found.reason.endswith(".")


PROMISED = [audits.check(1.0, "noise-scale"), audits.check(1.0, "sampling", observed="reported", note="rate, phase 1")]


@pytest.mark.parametrize(
    ("made", "expect", "status", "expected"),
    [
        (PROMISED, "no-deviation-found", "no-deviation-found", True),
        (PROMISED, "not-run", "no-deviation-found", False),
        (PROMISED[:1], "no-deviation-found", "checks-missing", False),
        (PROMISED[:1], "deviates", "checks-missing", False),
        (PROMISED[:1], "checks-missing", "checks-missing", True),
        ([audits.check(0.0)], "no-deviation-found", "deviates", False),
        ([audits.check(0.0)], "deviates", "deviates", True),
        ([], "no-deviation-found", "checks-missing", False),
    ],
)
def test_a_promised_check_that_was_not_made_is_a_failure_of_its_own(made, expect, status, expected) -> None:
    found = conformance_of(expect, made, len(made), PROMISED, executed=True)
    assert (found.status, found.expected) == (status, expected)
    waiting = conformance_of(expect, made, len(made), PROMISED, executed=False)
    assert waiting.status in ("no-deviation-found", "deviates", "not-run")


def test_the_reason_names_what_is_missing() -> None:
    missed = conformance_of("no-deviation-found", PROMISED[:1], 1, PROMISED, executed=True)
    assert missed.reason.startswith("A check that the plan promised was not made: sampling (reported).")
    both = conformance_of("no-deviation-found", [audits.check(0.0, "steps")], 1, PROMISED, executed=True)
    assert "2 checks that the plan promised were not made: noise-scale (measured), sampling (reported)." in both.reason
    assert both.reason.startswith("The executed run deviates from its declaration: steps")


@pytest.mark.parametrize(
    ("expect", "executed", "expected"),
    [
        ("no-deviation-found", True, False),
        ("no-deviation-found", False, True),
        ("not-run", True, True),
        ("not-run", False, True),
        ("deviates", True, False),
    ],
)
@pytest.mark.parametrize("made", [[], [audits.check(1.0, detectable=None, note="not tested")]])
def test_a_run_that_nothing_was_held_against_is_expected_only_where_the_spec_says_so(
    made, expect, executed, expected
) -> None:
    found = conformance_of(expect, made, len(made), executed=executed)
    assert (found.status, found.expected) == ("not-run", expected)


def test_a_check_keeps_one_promise_of_its_assumption_source_and_note() -> None:
    promise = audits.check(1.0, note="in each layer")
    kept = [
        dataclasses.replace(promise, p_value=0.3, test="another", note=f"in each layer{more}") for more in ("", ", x")
    ]
    assert [missing([promise], [made]) for made in kept] == [(), ()]
    others = [
        dataclasses.replace(promise, note="in each layer that was looked at"),
        dataclasses.replace(promise, observed="reported"),
        dataclasses.replace(promise, assumption="sampling"),
    ]
    assert missing([promise], others) == (promise,)
    assert missing([promise, promise], kept[:1]) == (promise,)
    assert missing([promise, promise], kept) == ()


def test_all_checks_of_the_invocation_share_the_level() -> None:
    one = audits.unjudged(audits.spec(), audits.check(6e-7))
    others = audits.unjudged(audits.spec(), audits.check(0.5))
    assert judge([one])[0].conformance.status == "deviates"
    assert [j.conformance.status for j in judge([one, others])] == ["no-deviation-found", "no-deviation-found"]


def test_the_reason_names_what_would_have_been_seen() -> None:
    checks = [audits.check(0.5, "noise-scale", detectable=d) for d in (0.0123, 0.004)]
    checks += [audits.check(0.5, "sampling", detectable=0.2), audits.check(0.5, "steps", detectable=None)]
    reason = conformance_of("no-deviation-found", checks, 4).reason
    assert reason == (
        "No check is rejected. A deviation of this size would have been seen: noise-scale 0.4% to 1.3%, sampling 20%. "
        "The checks of steps are not rejected, but no deviation could have failed them."
    )


def test_the_reason_names_what_deviates_worst_first() -> None:
    checks = [
        audits.check(1e-9, "sampling"),
        audits.check(0.0, "noise-scale", measured=0.1),
        audits.check(0.5, "steps"),
    ]
    reason = conformance_of("no-deviation-found", checks, 3).reason
    assert reason == (
        "The executed run deviates from its declaration: noise-scale (chi-square, p = 0; declared 1, measured 0.1); "
        "sampling (chi-square, p = 1e-9; declared 1, measured 0.9)."
    )


@pytest.mark.parametrize("bad", [-0.1, 1.5, float("nan")])
def test_what_is_no_p_value_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="noise-scale"):
        conformance_of("no-deviation-found", [audits.check(bad)], 1)


@pytest.mark.parametrize(
    ("status", "observed", "detectable", "after"),
    [
        ("declared", "measured", 0.02, "not-rejected"),
        ("reported", "measured", 0.02, "not-rejected"),
        ("unchecked", "measured", 0.02, "not-rejected"),
        ("unchecked", "measured", None, "unchecked"),
        ("declared", "reported", 0.02, "declared"),
        ("unchecked", "reported", 0.02, "reported"),
        ("by-construction", "measured", 0.02, "by-construction"),
        ("false", "measured", 0.02, "false"),
    ],
)
def test_a_check_that_is_not_rejected_raises_what_was_only_said(
    status: str, observed: str, detectable: float | None, after: str
) -> None:
    finding = audits.bound(1.0, assumptions=(Assumption(name="noise-scale", status=status),))  # type: ignore[arg-type]
    check = audits.check(0.3, observed=observed, detectable=detectable)
    (joined,) = join_checks([finding], [check], 4)
    (assumption,) = joined.assumptions
    assert assumption.status == after
    if status != "false":
        assert (assumption.test, assumption.level, assumption.detectable) == ("chi-square", 2.5e-7, detectable)


def test_a_rejected_check_falsifies_the_executed_pipeline_only() -> None:
    executed = audits.bound(
        1.0, scope=Scope(pipeline="executed"), assumptions=(Assumption(name="noise-scale", status="declared"),)
    )
    declared = dataclasses.replace(executed, scope=Scope(pipeline="declared"))
    checks = [audits.check(0.9), audits.check(1e-9)]
    one, other = join_checks([executed, declared], checks, 2)
    assert one.assumptions[0].status == "false"
    assert other.assumptions[0].status == "declared"
    assert other.assumptions[0].test == "chi-square: rejected for the executed run, p = 1e-9"


def test_the_sharpest_measured_check_speaks_for_an_assumption() -> None:
    finding = audits.bound(1.0, assumptions=(Assumption(name="noise-scale", status="declared"),))
    checks = [
        audits.check(0.5, detectable=0.3),
        audits.check(0.5, detectable=0.1),
        audits.check(0.5, detectable=0.01, observed="reported"),
    ]
    assert join_checks([finding], checks, 3)[0].assumptions[0].detectable == 0.1
