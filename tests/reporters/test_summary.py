"""The summary of a result: verdict, audited mechanism, untested properties, the last line, and missing trials."""

import dataclasses
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from support import results as factory

from dpspec.contract import Assumption, FrozenMap
from dpspec.contract.results import AuditResult, Conformance, Remedy, Result, Verdict
from dpspec.reporters import ci, markdown, terminal
from dpspec.reporters import page as html
from dpspec.reporters.limits import limits
from dpspec.reporters.summary import answer, details, principal, remedies, tally, untested, verdict_sentence
from dpspec.results.redact import LEFT_OUT_REASON

DOCUMENT = {
    "dpspec": 1,
    "name": "demo",
    "system": "The clinic's model",
    "owner": "A. Person",
    "contact": "a@example.org",
    "mechanism": {"kind": "group", "noise_multiplier": 1.5, "sampling": {"scheme": "poisson", "rate": 0.1}},
    "data": {"kind": "digits"},
    "model": {"kind": "mlp", "hidden": [8]},
    "training": {"backend": "native"},
    "threat_model": {"adjacency": "add-remove", "access": "all-iterates", "group_size": [1, 4]},
    "audit": {"method": "one-run", "runs": 1, "expect": "no-deviation-found"},
}


def audit(name: str = "demo", **changes: object) -> AuditResult:
    return factory.audit(name, **{"document": FrozenMap(DOCUMENT), **changes})


def said(*audits: AuditResult) -> str:
    return answer(factory.result(*audits)).detail


def test_details_of_an_audit() -> None:
    found = dict(details(audit()))
    assert list(found) == [
        *("System", "Owner", "Contact", "Mechanism", "Data", "Model", "Training", "Adversary", "Attack")
    ]
    assert found["Mechanism"] == "group: noise multiplier 1.5, sampling (scheme poisson, rate 0.1)"
    assert found["Data"] == "digits; 10 records, 2 features, 2 classes"
    assert found["Adversary"] == "adding or removing records, seeing every iterate, groups of 1 and 4"
    assert found["Attack"] == "one-run: runs 1"
    bare = audit(document=FrozenMap({"dpspec": 1}), planned_trials=0)
    assert list(dict(details(bare))) == ["Mechanism", "Data", "Adversary"]
    for mechanism, text in (
        ({"kind": "group", "phases": [{"steps": n} for n in range(1000)]}, "..."),
        ({"kind": "selection", "cells": [{"a": 1}, {"a": 2}]}, "selection: cells (2)"),
    ):
        shown = dict(details(audit(document=FrozenMap({**DOCUMENT, "mechanism": mechanism}))))["Mechanism"]
        assert shown.endswith(text)
        assert len(shown) <= 400


def test_the_most_important_claim_is_first_and_never_the_accuracy() -> None:
    accuracy = factory.verdict("useful", kind="metric", verdict="open", expected=False)
    proved, open_ = factory.verdict("fine"), factory.verdict("weak", verdict="open", expected=False)
    found = factory.result(audit(verdicts=(accuracy, proved, open_)))
    assert verdict_sentence(found) == "1 of 2 privacy claims is neither proved nor refuted and 1 is proved."
    decisive = principal(found.audits)
    assert decisive is not None
    assert decisive[1].claim == "weak"
    result = factory.result(audit(verdicts=(accuracy, proved, factory.verdict("also"))))
    assert verdict_sentence(result) == "Both privacy claims are proved."
    assert verdict_sentence(factory.result(audit(verdicts=()))) == "No claim was made."


def test_every_predicate_has_its_own_number() -> None:
    proved, refuted = (factory.verdict("one", verdict=name, expect=(name,)) for name in ("proved", "refuted"))
    supported = factory.verdict("one", verdict="supported", expect=("supported",))
    found = factory.result(audit(verdicts=(refuted, *[supported] * 2, *[proved] * 3)))
    assert verdict_sentence(found) == (
        "1 of 6 privacy claims is refuted as expected, 2 are supported by evidence without a proof and 3 are proved."
    )


CONTROLS = FrozenMap({**DOCUMENT, "claims": [{"id": name, "control": True} for name in ("low", "high")]})


def control(**changes: object) -> Verdict:
    return factory.verdict("low", verdict="refuted", expect=("refuted",), **changes)


def beyond(refuted_by: str | None = None, **changes: object) -> AuditResult:
    """An audit whose control is below a certified lower end of 2.4."""
    lower = dataclasses.replace(factory.audit().findings[0], bound="lower", rigor="certified", value=2.4, lower=None)
    how: dict[str, object] = {"refuted_by": refuted_by} if refuted_by else {"control": True}
    claim = {"id": "low", "kind": "approx-dp", **how}
    document = FrozenMap({**DOCUMENT, "claims": [claim]})
    verdict = control(claimed=1.0, lower=2.4, lower_finding=0)
    return audit(**{"verdicts": (verdict,), "findings": (lower,), "document": document, **changes})


MISSED = factory.verdict("high", verdict="open", expect=("refuted",), expected=False)
CONTRADICTED = dataclasses.replace(beyond().verdicts[0], verdict="contradicted")
HIDDEN = control(left_out=True, reason=LEFT_OUT_REASON, lower=None, lower_finding=None)
BY_THEORY = "1 of 1 negative control was refuted, by a certified bound, which does not test the attack."
DETECTED = "1 of 1 negative control was refuted: the audit detects such violations."


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (audit(verdicts=(control(),), document=CONTROLS), DETECTED),
        (
            audit(verdicts=(MISSED,), document=CONTROLS),
            "0 of 1 negative control were refuted: the audit does not detect such violations.",
        ),
        (
            audit(verdicts=(MISSED,), planned_trials=0, trials=(), document=CONTROLS),
            "1 negative control not tested, because no attack was",
        ),
        (beyond(), BY_THEORY),
        (beyond("attack"), DETECTED),
        (beyond(verdicts=(CONTRADICTED,)), DETECTED),
        (beyond(verdicts=(HIDDEN,)), BY_THEORY),
    ],
)
def test_controls_are_evidence_for_the_attack_only_if_it_refuted_them(one: AuditResult, sentence: str) -> None:
    assert sentence in said(one)


def test_the_executed_run_has_a_sentence() -> None:
    fine = audit(conformance=factory.conformance("no-deviation-found"))
    assert said(fine).endswith("1 conformance test of the executed run found no deviation above its detection limit.")
    deviating = audit(conformance=factory.conformance("deviates", expected=False))
    assert said(deviating).startswith("The executed run deviates from its declaration: no bound applies to")
    assert verdict_sentence(factory.result(deviating)) == "The executed run deviates from its declaration: demo."
    intended = said(audit(conformance=factory.conformance("deviates")))
    assert intended.startswith("The executed run deviates from its declaration, as this control intends: no bound")
    assert "found no deviation" not in intended
    assert "No training code was run: results apply to the specification." in said(audit(planned_trials=0, trials=()))
    assert said(audit()).endswith("The conformance of the executed run was not tested.")


@pytest.mark.parametrize(
    ("verdicts", "tone", "headline"),
    [
        ((factory.verdict("one"),), "good", "The privacy claim is proved"),
        (
            (factory.verdict("one", verdict="refuted", expected=False, lower=4.2929, upper=4.2936),),
            "bad",
            "The claim is not met: claimed epsilon 3, at least 4.292",
        ),
        (
            (factory.verdict("one"), factory.verdict("two", verdict="open", expected=False, lower=None, upper=3.2)),
            "bad",
            "The claim two is not proved: claimed epsilon 3, at most 3.2 (proved formula)",
        ),
        (
            tuple(factory.verdict(name, verdict="open", expected=False) for name in "ab"),
            "bad",
            "2 of 2 claims failed: demo.a and demo.b",
        ),
        ((factory.verdict("one"), MISSED), "bad", "The control high was not refuted: the audit does not detect"),
        (
            (factory.verdict("one", verdict="open", expect=("open",)),),
            "open",
            "The privacy claim is neither proved nor",
        ),
        ((factory.verdict("one", verdict="contradicted", expected=False),), "bad", "An attack contradicts a proof"),
        ((), "open", "Nothing is claimed: epsilon <= 2.5 at delta 1e-6"),
    ],
)
def test_the_answer_is_one_sentence_with_its_number(verdicts: tuple[Verdict, ...], tone: str, headline: str) -> None:
    found = answer(factory.result(audit(verdicts=verdicts, document=CONTROLS)))
    assert found.tone == tone
    assert found.headline.startswith(headline)
    assert not found.headline.endswith(".")


def test_the_answer_says_what_is_missing() -> None:
    missing = audit(conformance=factory.conformance("checks-missing", expected=False))
    assert answer(factory.result(missing)).headline == "Planned checks of the executed run are missing: demo"
    waiting = answer(factory.result(audit(planned_trials=9)))
    assert (waiting.tone, waiting.headline) == ("open", "Not finished: 8 of 9 trials are missing")


def test_remedies_are_values_with_the_present_ones() -> None:
    failed = factory.verdict("one", verdict="refuted", expected=False, provable=4.2936)
    changes = (
        Remedy(place="mechanism.noise_multiplier", now=0.8, value=0.935),
        Remedy(place="mechanism.steps", now=None, value=895.0),
    )
    assert list(remedies(audit(verdicts=(failed,), remedies=changes))) == [
        "mechanism.noise_multiplier: 0.935 (now 0.8)",
        "mechanism.steps: 895",
        "claim epsilon 4.3 instead, which the present values prove",
    ]
    assert list(remedies(audit())) == []
    other = factory.verdict("two", verdict="open", expected=False, provable=0.8, quantity="mu", kind="gdp")
    assert "instead" not in "".join(remedies(audit(verdicts=(failed, other)))), "the claim of mu fails as before"


def test_assumptions_have_descriptions_and_names() -> None:
    unchecked = Assumption(
        name="independent-noise", status="unchecked", text="every step draws fresh noise; no test exists"
    )
    false = Assumption(name="sampling", status="false", text="batches are drawn by chance")
    stated = Assumption(name="released", status="declared", text="only the output is released")
    tested = Assumption(name="clipping", status="declared", text="each record is clipped", test="largest norm")
    finding = dataclasses.replace(factory.audit().findings[0], assumptions=(unchecked, false, stated, tested))
    text = " ".join(untested([audit(findings=(finding,), planned_trials=1)]))
    assert "False assumption of some numbers: batches are drawn by chance (sampling)." in text
    assert "Unchecked assumption: every step draws fresh noise (independent-noise)." in text
    assert "Declared by the spec, not tested: only the output is released (released)." in text
    assert "clipping" not in text
    assert "Never release a model that this audit trained" in text
    assert "Proved claims cover a model of the same pipeline, trained without canaries" in text
    assert "Never release" not in " ".join(untested([audit(findings=(finding,), planned_trials=0)]))


def fine(name: str = "app", **changes: object) -> AuditResult:
    values: dict[str, object] = {
        "verdicts": (factory.verdict("one"),),
        "conformance": factory.conformance("no-deviation-found"),
    }
    return factory.audit(name, **{**values, **changes})


def deviating(name: str = "app") -> AuditResult:
    worst = dataclasses.replace(factory.audit().checks[0], p_value=0.0, declared=1.0, measured=0.1)
    return fine(
        name, conformance=factory.conformance("deviates", expected=False), checks=(*factory.audit().checks, worst)
    )


def test_the_last_line_names_failures_and_counts_the_others() -> None:
    assert tally(factory.result(fine(), fine("b"))) == "2 audits, 2 claims: all as expected"
    wrong = tuple(factory.verdict(f"c{number}", verdict="open", expected=False) for number in range(8))
    text = tally(factory.result(fine(verdicts=wrong), deviating("b")))
    assert text == (
        "FAILED 8 of 9 claims: app.c0, app.c1, app.c2, app.c3, app.c4, app.c5 and 2 more; "
        "b deviates (noise-scale, 0.1 measured, 1 declared)"
    )
    assert tally(factory.result(deviating())) == "FAILED app deviates (noise-scale, 0.1 measured, 1 declared)"
    made = fine("control", conformance=factory.conformance("deviates"))
    assert tally(factory.result(made)) == "1 audit, 1 claim: as expected; control deviates on purpose"
    assert len(tally(factory.result(fine("x" * 500, verdicts=wrong)))) < 600


def test_claims_of_one_matrix_are_counted_by_claim() -> None:
    def one(noise: float, expected: bool) -> AuditResult:
        verdict = factory.verdict("main", verdict="proved" if expected else "open", expected=expected)
        return fine(f"sweep[{noise}]", cell=FrozenMap({"mechanism.noise": noise}), verdicts=(verdict,))

    wrong = factory.result(one(1.0, False), one(2.0, False), one(3.0, True))
    assert tally(wrong) == "FAILED 2 of 3 claims: main in 2 of 3 cells"
    single = (one(1.0, False), one(2.0, True))
    assert tally(factory.result(*single)) == "FAILED 1 of 2 claims: main (noise=1)"
    assert tally(factory.result(*single, fine("other"))) == "FAILED 1 of 3 claims: sweep (noise=1).main"


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
        "FAILED 1 of 2 claims: demo.wrong; not yet decided: demo.later; INCOMPLETE, 4 of 4 trials are missing"
    )
    waiting = incomplete(verdicts=incomplete().audits[0].verdicts[:1])
    assert tally(waiting) == ("1 audit, 1 claim; not yet decided: demo.later; INCOMPLETE, 4 of 4 trials are missing")
    complete = incomplete(planned_trials=0)
    assert tally(complete) == "FAILED 2 of 2 claims: demo.later and demo.wrong; demo was not tested"


@pytest.mark.parametrize("render", [terminal.render, html.render, markdown.render])
def test_reports_for_people_say_that_trials_are_missing(render: Any) -> None:
    text = " ".join(render(incomplete()).split())
    assert "NOT YET DECIDED, trials are missing (expected refuted)" in text
    assert "NOT AS EXPECTED (expected proved)" in text
    assert "NOT YET TESTED, trials are missing (expected deviates)" in text
    assert "NOT YET" not in render(incomplete(planned_trials=0))


def test_machine_formats_warn_of_it_and_fail_on_the_rest() -> None:
    lines = ci.render_github(incomplete()).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::warning", "::error", "::warning", "::error"]
    (suite,) = ET.fromstring(ci.render_junit(incomplete())).findall("testsuite")
    kinds = {case.get("name"): case[0].tag for case in suite.findall("testcase")}
    assert kinds == {"later": "skipped", "wrong": "failure", "conformance": "skipped", "trials": "error"}


def test_the_limits_say_who_may_decide() -> None:
    sentence = "Open in demo: later. The missing trials may decide it."
    assert sentence in limits(incomplete())
    assert sentence not in limits(incomplete(planned_trials=0))


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ({"test": 0.2, "seed": 3}, "split (20% of the records for tests, seed 3)"),
        ({"test": 20}, "split (20 records for tests)"),
        ({"test": (4, 9)}, "split (2 listed records for tests)"),
    ],
)
def test_held_out_records_have_a_unit(split: dict[str, object], text: str) -> None:
    audit = factory.audit(document=FrozenMap({"data": {"kind": "digits", "split": split}}))
    assert f"digits: {text}; " in dict(details(audit))["Data"]
