"""Specs with extreme numbers are bounded or refused; by hand: ``python tests/campaigns/extreme_specs.py``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaigns import extreme_specs

from dpspec.contract.catalog import Catalog
from dpspec.engine.running import runner
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import SpecError
from dpspec.language.load import from_document, load_specs
from dpspec.language.yaml_source import value_at
from dpspec.registry.loader import load_catalog

PLUGINS = Path(__file__).parents[2] / "plugins"
KINDS = ("group", "rero", "modelmix", "per-instance")
SMALL = {
    "group": ["mechanism.steps=4", "audit.canary.count=16"],
    "rero": ["mechanism.steps=4", "audit.runs=2"],
    "modelmix": ["mechanism.steps=4", "audit.canary.count=16"],
    "per-instance": ["mechanism.steps=4", "mechanism.orders=[2.0, 32.0]", "audit.runs=1"],
    "preprocessing": ["audit.repeats=100"],
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_a_case_is_repeated_by_its_seed_and_number(catalog: Catalog) -> None:
    first, second = (extreme_specs.case(1, 7, catalog) for _ in range(2))
    assert first == second
    assert first != extreme_specs.case(2, 7, catalog)
    assert first.changed


@pytest.mark.ci
def test_cheap_cases_have_no_findings(catalog: Catalog) -> None:
    outcomes = set()
    for number in (10, 13, 14, 15, 17, 18, 21, 23, 24, 25, 30, 34, 42, 43, 47, 48, 49, 51, 53, 55, 60, 62):
        tried = extreme_specs.case(1, number, catalog)
        extreme_specs.bound(tried, catalog)
        assert not tried.findings, tried
        outcomes.add(tried.outcome)
    assert outcomes == {"answered", "refused"}


@pytest.mark.ci
def test_bounds_below_the_exact_value_of_one_step_are_findings(catalog: Catalog) -> None:
    document = {**extreme_specs.SPECS[8], "claims": [extreme_specs.DP, extreme_specs.MEMBER]}
    (audit,) = runner.run([from_document(document, catalog, ".")], catalog, store=None, train=False).audits
    assert not list(extreme_specs.false_bounds(document, audit))
    lowered = [replace(verdict, upper=0.3 * verdict.upper, lower=0.0) for verdict in audit.verdicts if verdict.upper]
    findings = list(extreme_specs.false_bounds(document, replace(audit, verdicts=tuple(lowered))))
    assert len(findings) == 2
    assert "but one step has" in findings[0]


def audited(kind: str, place: str, value: float, catalog: Catalog, store: Path | None = None) -> Any:
    """Train the example of a plugin with another number; without a store, bound it only."""
    example = PLUGINS / f"dpspec_{kind.replace('-', '_')}" / "example.yaml"
    (spec,) = load_specs([example], catalog, SMALL[kind]).specs
    document, (*block, key) = spec.to_json(), place.split(".")
    value_at(document, tuple(block))[key] = value
    changed = from_document(document, catalog, spec.directory)
    (audit,) = runner.run([changed], catalog, store=store and Store(store), train=store is not None).audits
    return audit


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        *((kind, "mechanism.clip_norm", value) for kind in KINDS for value in (1e100, 1e300)),
        *((kind, "mechanism.sampling.rate", 5e-324) for kind in KINDS),
        *((kind, "mechanism.noise_multiplier", 1e-300) for kind in KINDS),
        *((kind, "audit.confidence", 1.0 - 2.0**-53) for kind in SMALL),
        ("group", "mechanism.sampling.rate", 1e-20),  # no sampler draws so rarely
        ("group", "training.learning_rate", 5e-324),
    ],
)
def test_a_number_without_meaning_is_refused(kind: str, place: str, value: float, catalog: Catalog) -> None:
    with pytest.raises(SpecError) as refused:
        audited(kind, place, value, catalog)
    assert all(error.path and error.message for error in refused.value.diagnostics)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "value"),
    [("group", 1e-30), ("group", 1e30), ("rero", 1e-12)],  # rounding hides the noise, which is no deviation
)
def test_a_valid_spec_with_an_extreme_clip_norm_is_trained(kind, value, catalog, tmp_path):
    audit = audited(kind, "mechanism.clip_norm", value, catalog, tmp_path)
    assert audit.conformance.expected, audit.conformance.reason
