"""Conformance of a run, and what checks make of assumptions.

A constant that moves on a neighbour makes its assumption false; one that does not move proves nothing.
"""

import dataclasses
from typing import Any

import pytest
from support import audits, dependent, results
from support.specs import document

from dpspec.contract import Assumption, Check, Scope
from dpspec.contract.catalog import Catalog
from dpspec.contract.findings import CONSTANTS
from dpspec.contract.results import AuditResult, Result
from dpspec.engine.judging.judge import judge
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog
from dpspec.results.conformance_status import conformance_of, join_checks, missing
from dpspec.results.redact import redact, redact_audit
from dpspec.training.providers import NATIVE_CONSTANTS

PROMISED = [audits.check(1.0, "noise-scale"), audits.check(1.0, "sampling", observed="reported", note="rate, phase 1")]
FINE, BAD = [audits.check(0.3), audits.check(1e-5)], [audits.check(0.3), audits.check(0.0)]
ABSTAINS = [audits.check(1.0, detectable=None, remark="not tested")]


@pytest.mark.parametrize(
    ("made", "promised", "executed", "expect", "status", "expected"),
    [
        (FINE, [], False, "no-deviation-found", "no-deviation-found", True),
        (BAD, [], False, "no-deviation-found", "deviates", False),
        (BAD, [], False, "deviates", "deviates", True),
        (PROMISED, PROMISED, True, "no-deviation-found", "no-deviation-found", True),
        (PROMISED[:1], PROMISED, True, "no-deviation-found", "checks-missing", False),
        (PROMISED[:1], PROMISED, True, "checks-missing", "checks-missing", True),
        (PROMISED[:1], PROMISED, False, "no-deviation-found", "no-deviation-found", True),
        (BAD, PROMISED, True, "no-deviation-found", "deviates", False),
        ([], PROMISED, True, "no-deviation-found", "checks-missing", False),
        ([], PROMISED, False, "no-deviation-found", "not-run", True),
        (ABSTAINS, [], True, "no-deviation-found", "not-run", False),
        (ABSTAINS, [], False, "no-deviation-found", "not-run", True),
        ([], [], True, "not-run", "not-run", True),
        ([], [], False, "deviates", "not-run", False),
    ],
)
def test_status_and_expectation(made, promised, executed, expect, status, expected) -> None:
    found = conformance_of(expect, made, len(made), promised, executed=executed)
    assert (found.status, found.expected, found.expect) == (status, expected, expect)
    assert found.reason.endswith(".")


def test_a_check_keeps_one_promise_of_its_assumption_source_and_note() -> None:
    promise = audits.check(1.0, note="in each layer")
    kept = [dataclasses.replace(promise, p_value=0.3, test="another", remark=remark) for remark in ("", "x")]
    assert [missing([promise], [made]) for made in kept] == [(), ()]
    others = [
        dataclasses.replace(promise, note="in each layer, x"),
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


@pytest.mark.parametrize("bad", [-0.1, 1.5, float("nan")])
def test_what_is_no_p_value_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="noise-scale"):
        conformance_of("no-deviation-found", [audits.check(bad)], 1)


@pytest.mark.parametrize(
    ("status", "observed", "detectable", "after"),
    [
        ("reported", "measured", 0.02, "not-rejected"),
        ("unchecked", "measured", 0.02, "not-rejected"),
        ("unchecked", "measured", None, "unchecked"),
        ("declared", "reported", 0.02, "declared"),
        ("unchecked", "reported", 0.02, "reported"),
        ("false", "measured", 0.02, "false"),
    ],
)
def test_a_check_that_is_not_rejected_raises_what_was_only_said(status, observed, detectable, after):
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
    assert other.assumptions[0].test == "chi-square: rejected for the executed run"


@pytest.mark.parametrize(
    ("status", "after"), [("declared", "false"), ("by-construction", "false"), ("unchecked", "unchecked")]
)
def test_a_settled_status_is_kept_only_if_it_proves_nothing(status, after):
    settled = Assumption(name="noise-scale", status=status, settled=True)
    finding = audits.bound(1.0, scope=Scope(pipeline="executed"), assumptions=(settled,))
    (joined,) = join_checks([finding], [audits.check(1e-9)], 2)
    assert joined.assumptions[0].status == after


@pytest.mark.parametrize("p_value", [0.5, 1e-9])
def test_an_assumption_has_the_privacy_of_its_check_and_not_of_another_one_with_the_same_name(p_value: float) -> None:
    names = ("noise-scale", "sampling-rate")
    assumed = tuple(Assumption(name=name, status="declared") for name in names)
    checks = [
        audits.check(p_value, detectable=0.0123, privacy="data-dependent"),
        audits.check(p_value, detectable=0.0456, assumption="sampling-rate"),
    ]
    findings = join_checks([audits.bound(1.0, assumptions=assumed)], checks, 2)
    attack = audits.attack(10, 4, 3, assumptions=findings[0].assumptions)
    shown = redact_audit(results.audit(findings=findings, evidence=(attack,), checks=tuple(checks)), 2)
    assert [check.detectable for check in shown.checks] == [0.02, 0.0456]
    for outcome in (*shown.findings, *shown.evidence):
        assert [assumption.detectable for assumption in outcome.assumptions] == [0.02, 0.0456]
    assert redact_audit(shown, 2) == shown


def test_the_sharpest_measured_check_speaks_for_an_assumption() -> None:
    finding = audits.bound(1.0, assumptions=(Assumption(name="noise-scale", status="declared"),))
    checks = [
        audits.check(0.5, detectable=0.3),
        audits.check(0.5, detectable=0.1),
        audits.check(0.5, detectable=0.01, observed="reported"),
    ]
    assert join_checks([finding], checks, 3)[0].assumptions[0].detectable == 0.1


DOCUMENT = document(
    mechanism={"clip_norm": 0.2, "steps": 10},
    training={"backend": "native", "learning_rate": 0.5},
    audit={"method": "one-run", "canary": {"space": "gradient", "kind": "orthogonal", "count": 16}, "seed": 1},
)


def catalog_with(trainer: type | None, constants: Assumption | str = NATIVE_CONSTANTS) -> Catalog:
    catalog = load_catalog()
    native = catalog.backends["native"]
    named = native.provider.trainer if trainer is None else f"support.dependent:{trainer.__name__}"
    provider = dataclasses.replace(native.provider, trainer=named, constants=constants)
    return dataclasses.replace(
        catalog, backends={**catalog.backends, "native": dataclasses.replace(native, provider=provider)}
    )


def ran(tmp_path: Any, catalog: Catalog) -> Result:
    return run([from_document(DOCUMENT, catalog)], catalog, store=Store(tmp_path / "store"))


def status(audit: AuditResult) -> set[str]:
    return {a.status for f in audit.findings if f.bound == "upper" for a in f.assumptions if a.name == CONSTANTS}


def made(audit: AuditResult) -> list[Check]:
    return [one for one in audit.checks if one.assumption == CONSTANTS]


@pytest.mark.family
@pytest.mark.parametrize("trainer", [dependent.Divisor, dependent.ClipNorm])
def test_a_backend_that_says_otherwise_is_not_believed(tmp_path: Any, trainer: type) -> None:
    result = ran(tmp_path, catalog_with(trainer))
    (audit,) = result.audits
    (verdict,) = audit.verdicts
    assert verdict.verdict == "open"
    assert "data-independent-hyperparameters is false: a record adds the same" in verdict.reason
    assert status(audit) == {"false"}
    assert audit.conformance.status == "deviates"
    assert [one for one in verify(result, catalog_with(trainer), directory=str(tmp_path)) if one.differs] == []
    shown = redact(result)
    assert shown.audits[0].verdicts[0].verdict == "open"
    assert [one for one in verify(shown, catalog_with(trainer), directory=str(tmp_path)) if one.differs] == []


@pytest.mark.parametrize(
    ("constants", "expected", "kept"), [(NATIVE_CONSTANTS, "proved", "by-construction"), ("", "supported", "unchecked")]
)
def test_what_is_not_rejected_proves_nothing(tmp_path: Any, constants: Any, expected: str, kept: str) -> None:
    (audit,) = ran(tmp_path, catalog_with(None, constants)).audits
    (check,) = made(audit)
    assert (check.p_value, check.observed) == (1.0, "measured")
    assert check.detectable is not None
    assert audit.verdicts[0].verdict == expected
    assert status(audit) == {kept}
    assert check not in audit.promised
    (reported,) = {a.test for f in audit.findings for a in f.assumptions if a.name == CONSTANTS and f.bound == "upper"}
    assert reported == check.test


@pytest.mark.parametrize("before", ["by-construction", "unchecked"])
@pytest.mark.parametrize("pipeline", ["declared", "executed"])
def test_the_status_of_an_assumption_moves_one_way_alone(before: Any, pipeline: str) -> None:
    held = Assumption(name=CONSTANTS, status=before)
    finding = dataclasses.replace(audits.bound(1.0), assumptions=(held,))
    finding = dataclasses.replace(finding, scope=dataclasses.replace(finding.scope, pipeline=pipeline))
    for p_value, after in ((1.0, before), (0.0, "false")):
        check = Check(assumption=CONSTANTS, test="step", p_value=p_value, observed="measured", detectable=0.001)
        (joined,) = join_checks([finding], [check], 1)
        assert joined.assumptions[0].status == after


def test_a_neighbour_is_no_run() -> None:
    kept = Check(assumption=CONSTANTS, test="step", p_value=1.0, observed="measured", detectable=0.001)
    assert conformance_of("not-run", [kept], 1, executed=True).status == "not-run"
    broken = dataclasses.replace(kept, p_value=0.0)
    assert conformance_of("not-run", [broken], 1, executed=True).status == "deviates"
