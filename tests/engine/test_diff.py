from __future__ import annotations

from support import results as factory

from dpspec.engine.diff import diff
from dpspec.engine.result import Conformance


def test_equal_results_have_no_changes() -> None:
    assert diff(factory.result(), factory.result()) == ()


def test_a_verdict_that_falls_is_worse_and_one_that_rises_is_better() -> None:
    proved = factory.result()
    open_ = factory.result(factory.audit(verdicts=(factory.verdict(verdict="open", upper=3.5),)))
    changes = {c.what: c for c in diff(proved, open_)}
    assert changes["verdict"].trend == "worse"
    assert (changes["verdict"].before, changes["verdict"].after) == ("proved", "open")
    assert changes["upper"].trend == "worse"
    assert {c.trend for c in diff(open_, proved)} == {"better"}


def test_claims_and_audits_that_come_and_go() -> None:
    two = factory.result(factory.audit(verdicts=(factory.verdict(), factory.verdict("two"))), factory.audit("other"))
    changes = diff(factory.result(), two)
    assert [(c.audit, c.claim, c.what, c.after) for c in changes] == [
        ("demo", "two", "claim", "present"),
        ("other", "", "audit", "present"),
    ]
    assert all(c.after == "absent" for c in diff(two, factory.result()))


def test_conformance_that_breaks_is_worse() -> None:
    broken = Conformance(status="deviates", expect="conforms-within", expected=False, reason="")
    changes = diff(factory.result(), factory.result(factory.audit(conformance=broken)))
    assert [(c.what, c.trend) for c in changes] == [("conformance", "worse")]


def test_rounding_is_no_change() -> None:
    nudged = factory.result(factory.audit(verdicts=(factory.verdict(upper=2.5 * (1 + 1e-12)),)))
    assert diff(factory.result(), nudged) == ()


def test_another_claim_makes_a_verdict_neither_better_nor_worse() -> None:
    refuted = factory.result(factory.audit(verdicts=(factory.verdict(verdict="refuted", claimed=1.0),)))
    loosened = factory.result(factory.audit(verdicts=(factory.verdict(verdict="proved", claimed=9.0),)))
    changes = {c.what: c.trend for c in diff(refuted, loosened)}
    assert changes["verdict"] == changes["claimed"] == "other"
