from __future__ import annotations

from support import results as factory

from dpspec.engine.diff import diff, regressions
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


REFUTED = factory.audit(verdicts=(factory.verdict(verdict="refuted", expected=False),))


def test_what_got_worse_fails_against_a_baseline() -> None:
    (change,) = regressions(factory.result(), factory.result(REFUTED))
    assert (change.audit, change.claim, change.before, change.after) == ("demo", "one", "proved", "refuted")


def test_a_failure_that_is_known_is_no_regression() -> None:
    assert regressions(factory.result(REFUTED), factory.result(REFUTED)) == ()


def test_a_bound_that_moves_within_its_verdict_is_no_regression() -> None:
    looser = factory.result(factory.audit(verdicts=(factory.verdict(upper=2.9),)))
    assert [change.what for change in diff(factory.result(), looser)] == ["upper"]
    assert regressions(factory.result(), looser) == ()


def test_a_new_claim_has_to_come_out_as_expected() -> None:
    two = (factory.verdict(), factory.verdict("two", verdict="open", expected=False))
    (change,) = regressions(factory.result(), factory.result(factory.audit(verdicts=two)))
    assert (change.claim, change.before, change.after) == ("two", "absent", "open, not as expected")


def test_a_control_that_no_longer_fails_is_a_regression() -> None:
    control = factory.result(factory.audit(verdicts=(factory.verdict(verdict="refuted", expect=("refuted",)),)))
    held = factory.result(factory.audit(verdicts=(factory.verdict(expect=("refuted",), expected=False),)))
    (change,) = regressions(control, held)
    assert (change.before, change.after) == ("as expected", "proved, not as expected")


def test_conformance_that_breaks_is_a_regression_once() -> None:
    broken = Conformance(status="deviates", expect="conforms-within", expected=False, reason="")
    after = factory.result(factory.audit(conformance=broken))
    (change,) = regressions(factory.result(), after)
    assert change.what == "conformance"
    assert regressions(after, after) == ()
    (new,) = regressions(factory.result(factory.audit("other")), after)
    assert new.after == "deviates, not as expected"
