"""Specs with extreme numbers are bounded or refused; by hand: ``python tests/campaigns/extreme_specs.py``."""

from dataclasses import replace

import pytest
from campaigns import extreme_specs

from dpspec.contract.catalog import Catalog
from dpspec.engine.running import runner
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_a_case_is_repeated_by_its_seed_and_number(catalog: Catalog) -> None:
    first, second = (extreme_specs.case(1, 7, catalog) for _ in range(2))
    assert first == second
    assert first != extreme_specs.case(2, 7, catalog)
    assert first.changed


@pytest.mark.parametrize("number", [14, 13, 25, 42, 48])
def test_cheap_cases_have_no_findings(number: int, catalog: Catalog) -> None:
    tried = extreme_specs.case(1, number, catalog)
    extreme_specs.bound(tried, catalog)
    assert tried.outcome in ("answered", "refused")
    assert not tried.findings


def test_bounds_below_the_exact_value_of_one_step_are_findings(catalog: Catalog) -> None:
    document = {**extreme_specs.SPECS[8], "claims": [extreme_specs.DP, extreme_specs.MEMBER]}
    (audit,) = runner.run([from_document(document, catalog, ".")], catalog, store=None, train=False).audits
    assert not list(extreme_specs.false_bounds(document, audit))
    lowered = [replace(verdict, upper=0.3 * verdict.upper, lower=0.0) for verdict in audit.verdicts if verdict.upper]
    findings = list(extreme_specs.false_bounds(document, replace(audit, verdicts=tuple(lowered))))
    assert len(findings) == 2
    assert "but one step has" in findings[0]
