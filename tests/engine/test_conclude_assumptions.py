"""What a backend says of its constants stands in every proof: false, nothing is proved; unsaid, nobody checked it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.specs import document

from dpspec.contract import Assumption, Finding, Spec
from dpspec.contract.catalog import Catalog, Offered
from dpspec.engine.calibration import calibrate_spec
from dpspec.engine.preparing.prepare import CONSTANTS as NAME
from dpspec.engine.preparing.prepare import constants_of
from dpspec.engine.results.result import AuditResult
from dpspec.engine.running.conclude import with_assumptions
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import UsageError
from dpspec.language.load import from_document, load_specs
from dpspec.registry.loader import load_catalog
from dpspec.training.providers import BACKENDS, opacus_constants

ROOT = Path(__file__).parents[2]

DOCUMENT = document(training={"backend": "native"})


def saying(constants: Assumption | str, distribution: str = "somebody's") -> Catalog:
    """All that is installed, the native backend with something else to say of its constants."""
    catalog = load_catalog()
    native = catalog.backends["native"]
    provider = dataclasses.replace(native.provider, constants=constants)
    offered = dataclasses.replace(native, provider=provider, distribution=distribution)
    return dataclasses.replace(catalog, backends={**catalog.backends, "native": offered})


def verdict(tmp_path: Path, constants: Assumption | str) -> AuditResult:
    """The audit of the spec above with such a backend."""
    catalog = saying(constants)
    (audit,) = run([from_document(DOCUMENT, catalog)], catalog, store=Store(tmp_path), train=False).audits
    return audit


def said(status: str) -> Assumption:
    return Assumption(name=NAME, status=status, text="the divisor is the number of records")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("constants", "expected", "status"),
    [
        (said("by-construction"), "proved", "reported"),
        (said("declared"), "proved", "reported"),
        (said("reported"), "proved", "reported"),
        ("", "supported", "unchecked"),
        (said("unchecked"), "supported", "unchecked"),
        (said("false"), "open", "false"),
    ],
)
def test_what_a_backend_says_decides_what_is_proved(
    tmp_path: Path, constants: Assumption | str, expected: str, status: str
) -> None:
    audit = verdict(tmp_path, constants)
    assert audit.verdicts[0].verdict == expected
    assert {a.status for f in audit.findings for a in f.assumptions if a.name == NAME} == {status}
    if status == "false":
        assert "the divisor is the number of records" in audit.verdicts[0].reason
    if status == "unchecked":
        assert NAME in audit.verdicts[0].reason


def test_a_false_statement_joins_findings_that_do_not_name_it() -> None:
    from support import audits

    bound, spec = audits.bound(1.0), audits.spec()
    trained = dataclasses.replace(spec, model=spec.data)
    assert [*with_assumptions([bound], spec, said("false"), {})] == [bound]
    (joined,) = with_assumptions([bound], trained, said("false"), {})
    assert isinstance(joined, Finding)
    assert [(a.name, a.status) for a in joined.assumptions] == [(NAME, "false")]
    assert [*with_assumptions([bound], trained, said("reported"), {})] == [bound]
    own = dataclasses.replace(bound, assumptions=(said("false"),))  # a false one of its own stays false
    assert [*with_assumptions([own], trained, said("by-construction"), {})] == [own]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, ["issue 819", "number of batches"]),
        ({"sampler": "declared-rate"}, ["issue 819"]),
        ({"sampler": "declared-rate", "reduction": "sum"}, []),
        ({"sampler": "declared-rate", "divisor": "declared"}, []),
        ({"sampler": "poisson", "divisor": "declared"}, ["number of batches"]),
        ({"sampler": "weighted", "divisor": "declared"}, ["labels"]),
    ],
)
def test_what_opacus_computes_from_the_records(options: dict[str, str], wrong: list[str]) -> None:
    from support import audits

    from dpspec.contract import FrozenMap, Section

    base: Spec = audits.spec()
    mechanism = Section("group", FrozenMap({"sampling": {"scheme": "poisson", "rate": 0.1}, "steps": 1}))
    spec = dataclasses.replace(base, mechanism=mechanism, training=Section("opacus", FrozenMap(options)))
    found = opacus_constants(spec)
    assert found.status == ("false" if wrong else "by-construction")
    assert all(part in found.text for part in wrong)
    (backend,) = [b for b in BACKENDS if b.kind == "opacus"]
    ours = Offered(provider=backend, plugin="builtin", distribution="dpspec", version="0")
    assert constants_of(ours, spec) == found


def test_specs_of_opacus_are_proved_only_with_a_public_divisor(tmp_path: Path) -> None:
    """The bound is within the claim for all of them, and the divisor tells how many records there are but for one."""
    catalog = load_catalog()
    loaded = load_specs(sorted((ROOT / "specs" / "opacus").glob("*.yaml")), catalog)
    result = run(loaded.specs, catalog, store=Store(tmp_path), train=False)
    found = {audit.name: audit.verdicts[0] for audit in result.audits}
    assert found.pop("opacus-public-divisor").verdict == "proved"
    shuffled = found.pop("opacus-declared-shuffled")
    assert shuffled.verdict == "open"
    assert "no theorem covers shuffled batches" in shuffled.reason
    assert len(found) == 4
    assert {v.verdict for v in found.values()} == {"open"}
    assert all(
        "data-independent-hyperparameters is false" in v.reason and "issue 819" in v.reason for v in found.values()
    )


def test_calibration_takes_no_bound_for_proved_that_rests_on_a_false_assumption() -> None:
    short = {**DOCUMENT, "mechanism": {**DOCUMENT["mechanism"], "noise_multiplier": 0.75, "steps": 4}}
    for constants, proved in ((said("reported"), True), (said("false"), False)):
        catalog = saying(constants)
        spec = from_document(short, catalog)
        try:
            found = calibrate_spec(spec, catalog, vary="mechanism.noise_multiplier", relative=0.5).proved is not None
        except UsageError:
            found = False
        assert found == proved
