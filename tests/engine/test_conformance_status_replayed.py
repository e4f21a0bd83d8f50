"""A constant that moves on a neighbour makes its assumption false; one that does not move proves nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support import dependent

from dpspec.contract import Assumption, Check
from dpspec.contract.catalog import Catalog
from dpspec.engine.judging.conformance_status import CONSTANTS, conformance_of, join_checks
from dpspec.engine.redact import redact
from dpspec.engine.results.result import AuditResult, Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verification.verify import verify
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog
from dpspec.training.providers import NATIVE_CONSTANTS

DOCUMENT: dict[str, Any] = {
    "dpspec": 1,
    "name": "replayed",
    "mechanism": {
        "kind": "group",
        "noise_multiplier": 2.0,
        "clip_norm": 0.2,
        "sampling": {"scheme": "poisson", "rate": 0.15},
        "steps": 10,
    },
    "data": {"kind": "synthetic", "records": 200},
    "model": {"kind": "linear"},
    "training": {"backend": "native", "learning_rate": 0.5},
    "claims": [{"id": "one", "kind": "approx-dp", "epsilon": 4.0, "delta": 1e-5}],
    "audit": {"method": "one-run", "canary": {"space": "gradient", "kind": "orthogonal", "count": 16}, "seed": 1},
}


def catalog_with(trainer: type | None, constants: Assumption | str = NATIVE_CONSTANTS) -> Catalog:
    """All that is installed, with another trainer as the native backend."""
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


@pytest.mark.parametrize("trainer", [dependent.Divisor, dependent.Normalisation, dependent.ClipNorm])
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
    (told,) = {a.test for f in audit.findings for a in f.assumptions if a.name == CONSTANTS and f.bound == "upper"}
    assert told == check.test


@pytest.mark.parametrize("before", ["by-construction", "declared", "reported", "unchecked"])
@pytest.mark.parametrize("pipeline", ["declared", "executed"])
def test_the_status_of_an_assumption_moves_one_way_alone(before: Any, pipeline: str) -> None:
    from support import audits

    held = Assumption(name=CONSTANTS, status=before)
    finding = dataclasses.replace(audits.bound(1.0), assumptions=(held,))
    finding = dataclasses.replace(finding, scope=dataclasses.replace(finding.scope, pipeline=pipeline))
    for p_value, after in ((1.0, before), (0.0, "false")):
        check = Check(assumption=CONSTANTS, test="step", p_value=p_value, observed="measured", detectable=0.001)
        (joined,) = join_checks([finding], [check], 1)
        assert joined.assumptions[0].status == after


def test_a_neighbour_is_no_run() -> None:
    """Where nothing of the run was looked at, a step on other records does not make it conform."""
    kept = Check(assumption=CONSTANTS, test="step", p_value=1.0, observed="measured", detectable=0.001)
    assert conformance_of("not-run", [kept], 1, executed=True).status == "not-run"
    broken = dataclasses.replace(kept, p_value=0.0)
    assert conformance_of("not-run", [broken], 1, executed=True).status == "deviates"


def test_trials_without_it_are_not_looked_at(tmp_path: Any) -> None:
    """As version 0.1.0 made them: the same verdict, no check, and nothing is missing."""
    from dpspec.contract import FrozenMap, Trial, thaw
    from dpspec_group.mechanism import GroupAudit

    catalog = catalog_with(None)
    (audit,) = ran(tmp_path, catalog).audits
    kept: Any = thaw(audit.trials[0].evidence)
    assert kept["internal"].pop("replayed")["records"] == 32
    spec = from_document(DOCUMENT, catalog)
    outcomes = list(GroupAudit().conclude(spec, [Trial(index=0, evidence=FrozenMap(kept))]))
    assert not [one for one in outcomes if isinstance(one, Check) and one.assumption == CONSTANTS]
    checks = [one for one in outcomes if isinstance(one, Check)]
    found = conformance_of("no-deviation-found", checks, len(checks), audit.promised, executed=True)
    assert found.status == "no-deviation-found"
