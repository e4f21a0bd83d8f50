import copy
import dataclasses
from typing import Any

import pytest
from support import results as factory

from dpspec.contract import FrozenMap
from dpspec.contract.executed import ExecutedSection, FiredRule
from dpspec.contract.results import Conformance, Result
from dpspec.results.diff import diff, regressions


def test_other_initial_weights_are_a_change_although_the_spec_says_the_same() -> None:
    (audit,) = factory.result().audits
    one, two = (
        dataclasses.replace(audit, facts=dataclasses.replace(audit.facts, initial_weights=64 * digit)) for digit in "ab"
    )
    (change,) = diff(factory.result(one), factory.result(two))
    assert (change.what, change.trend) == ("initial weights", "other")
    assert (change.before, change.after) == (f"digest {12 * 'a'}", f"digest {12 * 'b'}")
    assert diff(factory.result(one), factory.result(one)) == ()
    (gone,) = diff(factory.result(one), factory.result(audit))
    assert gone.after == "absent"


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ({"at_least": 0.7}, "better"),
        ({"at_most": 0.9}, "worse"),
        ({"at_least": 0.7, "at_most": 0.9}, "other"),
        ({}, "other"),
    ],
    ids=str,
)
def test_a_metric_is_better_in_the_direction_that_is_claimed(said: dict[str, float], raised: str) -> None:
    document = {"claims": [{"id": "one", "kind": "metric", "name": "accuracy", **said, "expect": ["supported"]}]}

    def of(upper: float, lower: float) -> Result:
        found = factory.verdict(
            kind="metric", quantity="accuracy", claimed=0.7, verdict="supported", upper=upper, lower=lower
        )
        return factory.result(factory.audit(document=FrozenMap(document), verdicts=(found,)))

    low, high = of(0.8, 0.72), of(0.9, 0.82)
    assert [(c.what, c.trend) for c in diff(low, high)] == [("upper", raised), ("lower", raised)]
    lowered = {"better": "worse", "worse": "better", "other": "other"}[raised]
    assert [(c.what, c.trend) for c in diff(high, low)] == [("upper", lowered), ("lower", lowered)]


def judged(**changes: Any) -> Result:
    return factory.result(factory.audit(verdicts=(factory.verdict(**changes),)))


@pytest.mark.parametrize(("relative", "count"), [(1e-8, 0), (0.9e-6, 0), (1e-5, 2), (-1e-5, 2)])
def test_ends_that_another_version_rounds_differently_are_equal(relative: float, count: int) -> None:
    before = judged(upper=3.0, lower=2.9)
    after = judged(upper=3.0 * (1 + relative), lower=2.9 * (1 + relative))
    assert len(diff(before, after)) == count
    assert len(regressions(before, after)) == (count if relative > 0 else 0)


PROVED, FAILED = factory.result(), judged(verdict="refuted", expected=False)
DEVIATING = factory.result(factory.audit(conformance=factory.conformance(expected=False)))
TWO = factory.result(
    factory.audit(verdicts=(factory.verdict(), factory.verdict("two", verdict="open", expected=False)))
)
CONTROL, HELD = judged(verdict="refuted", expect=("refuted",)), judged(expect=("refuted",), expected=False)


MOVED = ("demo", "one", "2.5", "2.9")


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (PROVED, FAILED, [("demo", "one", "proved", "refuted")]),
        (FAILED, FAILED, []),  # it is known
        (PROVED, judged(upper=2.9), [("demo", "one", "2.5", "2.9")]),
        (PROVED, judged(upper=2.4), []),
        (PROVED, TWO, [("demo", "two", "absent", "open, not as expected")]),
        (CONTROL, HELD, [("demo", "one", "refuted", "proved")]),
        (HELD, CONTROL, []),
        (judged(verdict="open", expect=("refuted",), expected=False), CONTROL, []),  # bounds alone refute no control
        (judged(verdict="open", expect=("open",)), judged(verdict="open", expect=("open",), upper=2.9), [MOVED]),
        (PROVED, DEVIATING, [("demo", "", "not-run", "deviates")]),
        (
            factory.result(factory.audit("other")),
            DEVIATING,
            [("other", "", "present", "absent"), ("demo", "", "absent", "deviates, not as expected")],
        ),
    ],
)
def test_what_fails_a_baseline(before: Result, after: Result, found: list[tuple[str, str, str, str]]) -> None:
    assert [(c.audit, c.claim, c.before, c.after) for c in regressions(before, after)] == found


def test_a_weaker_verdict_is_worse_and_a_moved_bound_is_reported() -> None:
    assert diff(PROVED, PROVED) == diff(PROVED, judged(upper=2.5 * (1 + 1e-12))) == ()  # rounding is no change
    fallen = judged(verdict="open", upper=3.5)
    changes = {c.what: c for c in diff(PROVED, fallen)}
    assert (changes["verdict"].before, changes["verdict"].after) == ("proved", "open")
    assert changes["verdict"].trend == changes["upper"].trend == "worse"
    assert {c.trend for c in diff(fallen, PROVED)} == {"better"}
    assert [change.what for change in diff(PROVED, judged(upper=2.9))] == ["upper"]


def test_another_claim_makes_a_verdict_neither_better_nor_worse() -> None:
    refuted, loosened = judged(verdict="refuted", claimed=1.0), judged(verdict="proved", claimed=9.0)
    changes = {c.what: c.trend for c in diff(refuted, loosened)}
    assert changes["verdict"] == changes["claimed"] == "other"


DOCUMENT = {
    "dpspec": 1,
    "mechanism": {"kind": "group", "noise_multiplier": 1.0},
    "data": {"kind": "declared", "records": 100},
    "threat_model": {
        "adjacency": "add-remove",
        "unit": "record",
        "access": "all-iterates",
        "direction": "both",
        "group_size": [1, 8],
        "adversary": "gradient",
    },
    "claims": [
        {"id": "one", "kind": "approx-dp", "epsilon": 3.0, "delta": 1e-5, "group_size": 1, "expect": ["proved"]}
    ],
    "audit": {"method": "one-run", "confidence": 0.95, "expect": "no-deviation-found", "runs": 1},
}


def stated(*, block: str = "", **changes: Any) -> Result:
    document = copy.deepcopy(DOCUMENT)
    document["claims"][0] |= changes if not block else {}
    document.get(block, {}).update(changes)
    expect = tuple(document["claims"][0]["expect"])
    conformance = Conformance(
        status="no-deviation-found", expect=document["audit"]["expect"], expected=True, reason="measured"
    )
    audit = factory.audit(
        document=FrozenMap(document), conformance=conformance, verdicts=(factory.verdict(expect=expect),)
    )
    return factory.result(audit)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"delta": 1e-3}, "claim.delta"),
        ({"kind": "pure-dp"}, "claim.kind"),
        ({"direction": "add"}, "claim.direction"),
        ({"group_size": 8}, "claim.group_size"),
        ({"record": 3}, "claim.record"),
        ({"min_records": 50}, "claim.min_records"),
        ({"block": "threat_model", "unit": "person"}, "claim.threat_model.unit"),
        ({"block": "threat_model", "access": "final-model"}, "claim.access"),
        ({"block": "audit", "confidence": 0.5}, "audit.confidence"),
        ({"block": "audit", "expect": "deviates"}, "audit.expect"),
        ({"expect": ["open", "proved"]}, "expect"),
    ],
)
def test_a_changed_claim_is_reported_and_fails_the_baseline(changes: dict[str, Any], what: str) -> None:
    after = stated(**changes)
    found = diff(stated(), after)
    assert [(change.what, change.of_claim) for change in found] == [(what, True)]
    assert [change.what for change in regressions(stated(), after)] == [what]
    assert regressions(stated(), after, allow_changed_claims=True) == ()


@pytest.mark.parametrize(
    ("claim", "facts", "limits", "what"),
    [
        ({"over": "this"}, {"digest": "0" * 64}, {}, "claim.rows"),
        ({"record": 3}, {"digest": "0" * 64}, {}, "claim.rows"),
        ({"kind": "per-instance-dp", "fraction": 0.9}, {"digest": "0" * 64}, {}, "claim.rows"),
        ({"over": "collection"}, {}, {"max_ball": 2}, "claim.collection.limits.max_ball"),
        ({"over": "collection"}, {"records": 20}, {}, "claim.collection.records"),
    ],
)
def test_a_claim_about_other_data_sets_is_another_claim(claim, facts, limits, what):
    def of(limits: dict[str, Any], facts: dict[str, Any], **claim: Any) -> Result:
        (audit,) = stated(**claim).audits
        collection = {"collection": {"max_ball": 24, **limits}}
        mechanism = FrozenMap({**audit.document["mechanism"], **collection})
        document = FrozenMap({**audit.document, "mechanism": mechanism})
        return factory.result(
            dataclasses.replace(audit, document=document, facts=dataclasses.replace(audit.facts, **facts))
        )

    was, now = of({}, {}, **claim), of(limits, facts, **claim)
    assert what in [change.what for change in diff(was, now) if change.of_claim]
    assert what in [change.what for change in regressions(was, now)]
    assert regressions(was, now, allow_changed_claims=True) == ()
    of_all = diff(of({}, {}), of(limits, facts))
    assert of_all
    assert not any(change.of_claim for change in of_all)


def test_a_claim_or_an_audit_that_is_gone_fails_the_baseline() -> None:
    two = factory.result(factory.audit(verdicts=(factory.verdict(), factory.verdict("two"))), factory.audit("other"))
    found = regressions(two, factory.result())
    assert [(c.audit, c.claim, c.what, c.after) for c in found] == [
        ("demo", "two", "claim", "absent"),
        ("other", "", "audit", "absent"),
    ]
    assert regressions(two, factory.result(), allow_changed_claims=True) == ()
    assert regressions(factory.result(), two) == ()
    assert [c.after for c in diff(factory.result(), two)] == ["present", "present"]


def test_a_known_failure_is_not_known_of_another_claim() -> None:
    def failed(result: Result) -> Result:
        (audit,) = result.audits
        return factory.result(dataclasses.replace(audit, verdicts=(factory.verdict(verdict="open", expected=False),)))

    assert regressions(failed(stated()), failed(stated())) == ()
    (change,) = regressions(failed(stated()), failed(stated(delta=1e-3)), allow_changed_claims=True)
    assert change.after == "open, not as expected"


def test_a_stronger_expectation_is_reported_and_fails_nothing() -> None:
    before, after = stated(expect=["open", "proved"]), stated()
    assert [(c.what, c.trend, c.of_claim) for c in diff(before, after)] == [("expect", "other", False)]
    assert regressions(before, after) == ()


def test_changed_audit_options_are_reported_and_fail_nothing() -> None:
    found = diff(stated(), stated(block="mechanism", noise_multiplier=0.5))
    assert [(c.what, c.before, c.after, c.trend) for c in found] == [
        ("mechanism.noise_multiplier", "1.0", "0.5", "other")
    ]
    assert diff(stated(), stated(block="data", records=10))[0].what == "data.records"
    assert diff(stated(), stated(block="audit", runs=2))[0].what == "audit.runs"
    assert regressions(stated(), stated(block="mechanism", noise_multiplier=0.5)) == ()


def test_a_confidence_that_is_raised_is_named_for_what_it_does() -> None:
    lower, higher = (stated(block="audit", confidence=value) for value in (0.95, 0.999))
    (change,) = diff(lower, higher)
    assert (change.what, change.before, change.after) == (
        "audit.confidence",
        "0.95",
        "0.999, at which attacks refute less",
    )
    assert (change.trend, change.of_claim) == ("other", False)
    assert regressions(lower, higher) == ()
    (change,) = diff(higher, lower)
    assert (change.after, change.trend, change.of_claim) == ("0.95", "worse", True)


def test_keys_that_the_version_before_did_not_know_are_no_change() -> None:
    assert diff(stated(), stated(block="threat_model", min_records=0, neighbours="all")) == ()
    assert diff(stated(), stated(min_records=0)) == ()


def test_conformance_that_is_no_longer_tested_is_worse() -> None:
    statuses = ("no-deviation-found", "not-run")
    ran, idle = (factory.result(factory.audit(conformance=factory.conformance(status))) for status in statuses)
    assert [(c.what, c.trend) for c in regressions(ran, idle)] == [("conformance", "worse")]
    assert [c.trend for c in diff(idle, ran)] == ["other"]


@pytest.mark.parametrize("document", [{}, {"claims": 3}, {"claims": [3, {"id": "one"}], "threat_model": "x"}])
def test_documents_that_are_none_are_compared_as_they_are(document: dict[str, Any]) -> None:
    odd = factory.result(factory.audit(document=FrozenMap(document)))
    assert diff(odd, odd) == ()
    assert diff(odd, factory.result()) is not None


def test_a_caution_that_opens_is_worse_and_one_that_is_accepted_or_resolved_is_better() -> None:
    rule = FiredRule(name="guessable-seed", text="seed 0", why="It can be tried.", fix="Use the system's.")

    def recorded(*rules: FiredRule) -> Result:
        return factory.result(factory.audit(recording=ExecutedSection(rules=rules)))

    none, open_, accepted = recorded(), recorded(rule), recorded(dataclasses.replace(rule, accepted="secret"))
    (change,) = regressions(none, open_)
    assert (change.what, change.before, change.after) == ("caution guessable-seed", "absent", "open")
    assert [c.after for c in regressions(accepted, open_)] == ["open"]
    assert regressions(open_, accepted) == regressions(open_, none) == regressions(open_, open_) == ()
