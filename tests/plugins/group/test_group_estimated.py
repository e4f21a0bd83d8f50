"""Mean updates that are estimated from some records: an audit as any other, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import dpspec
from dpspec.contract import Check
from dpspec.engine.preparing.prepare import check, prepare
from dpspec.engine.results.result import AuditResult as Audit
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

pytestmark = pytest.mark.usefixtures("no_independent_bounds")

SPEC = """\
dpspec: 1
name: estimated
mechanism: {kind: group, noise_multiplier: 0.4, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 60}
data: {kind: synthetic, pattern: blobs, records: 300, features: 40, classes: 2}
model: {kind: mlp, hidden: [16]}
training: {learning_rate: 0.5}
threat_model: {access: all-iterates}
claims:
  - {id: proved, kind: approx-dp, epsilon: 200.0, delta: 1e-5}
  - {id: low, kind: approx-dp, epsilon: 0.1, delta: 1e-5, refuted_by: attack, expect: refuted}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 600}, seed: 3, expected_from: 30}
"""

RECORDS = ("{space: gradient, kind: orthogonal, count: 600}", "{space: input, count: 24}")


def written(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = SPEC
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "estimated.yaml"
    path.write_text(text)
    return path


def audited(tmp_path: Path, *changes: tuple[str, str]) -> Audit:
    (audit,) = dpspec.run(written(tmp_path, *changes), store=tmp_path / "store").audits
    return audit


def test_an_audit_refutes_conforms_and_says_how_it_estimated(tmp_path: Path) -> None:
    audit = audited(tmp_path)
    assert {v.claim: v.verdict for v in audit.verdicts} == {"proved": "proved", "low": "refuted"}
    assert audit.conformance.status == "no-deviation-found"
    assert "mean updates estimated from 30 records" in audit.evidence[0].method
    assert all(check.p_value > 1e-3 for check in audit.checks)
    # The bound speaks of the mechanism, and the attack's access is what it was.
    assert {evidence.scope.access for evidence in audit.evidence} == {"all-iterates"}


def test_planted_records_are_scored_by_estimates_too(tmp_path: Path) -> None:
    audit = audited(tmp_path, RECORDS, ("{id: low, ", "{id: low, "), (", refuted_by: attack, expect: refuted", ""))
    assert audit.conformance.status == "no-deviation-found"
    (update,) = [c for c in audit.checks if c.assumption == "update" and "at each step" not in c.test]
    assert update.p_value > 1e-3


def test_what_is_seen_depends_on_the_number_of_records(tmp_path: Path) -> None:
    """Fewer records see less of a drift, and of what a planted record adds, which is said beforehand as well."""
    catalog, seen, foreseen = load_catalog(), {}, {}
    for records in (30, 300):
        path = written(tmp_path, ("expected_from: 30", f"expected_from: {records}"))
        (audit,) = dpspec.run(path, store=tmp_path / "store").audits
        seen[records] = detectable(audit.checks)
        prepared = prepare(load_specs([path], catalog).specs[0], catalog)
        foreseen[records] = detectable(prepared.audit.plan(prepared.spec, prepared.facts).checks)
    assert seen[30]["update"] > seen[300]["update"]
    assert foreseen[30]["sensitivity"] > foreseen[300]["sensitivity"]


def detectable(checks: Iterable[Check]) -> dict[str, float]:
    """The least deviation that is seen of what is measured over all steps."""
    notes = {"relative to rate * sum of clipped gradients", "of an inserted canary, relative to rate * clip norm"}
    measured = (check for check in checks if check.observed == "measured" and check.note in notes)
    return {check.assumption: float(check.detectable or 0.0) for check in measured}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("access: all-iterates", "access: transcript"), "sees the drawn records and estimates nothing"),
        (("method: one-run", "method: many-run, runs: 16"), "uses all records for many runs"),
        (("{learning_rate: 0.5}", "{learning_rate: 0.5, optimizer: {kind: adam}}"), "not invertible"),
        (("{scheme: poisson, rate: 0.1}", "{scheme: fixed, batch_size: 30}"), "samples fixed batches"),
        (("{scheme: poisson, rate: 0.1}", "{scheme: full}"), "samples full batches"),
        (("expected_from: 30", "expected_from: 29"), "must be from 30, the mean batch size"),
        (("expected_from: 30", "expected_from: 301"), "to 300, the number of records, got 301"),
        (("expected_from: 30", "expected_from: 1"), "1"),
    ],
)
def test_refused_with_the_reason(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    more = [("count: 600", "count: 1")] if "many-run" in change[1] else []
    catalog = load_catalog()
    loaded = load_specs([written(tmp_path, change, *more)], catalog)
    found = list(loaded.diagnostics) if not loaded.ok else list(check(loaded.specs[0], catalog))
    assert any(told in problem.message for problem in found), [problem.message for problem in found]


def test_as_many_as_a_batch_holds_are_enough_however_that_is_rounded(tmp_path: Path) -> None:
    """0.07 of 300 records is 21.000000000000004 in floating point."""
    assert 0.07 * 300 > 21
    path = written(tmp_path, ("rate: 0.1}", "rate: 0.07}"), ("expected_from: 30", "expected_from: 21"))
    catalog = load_catalog()
    assert not list(check(load_specs([path], catalog).specs[0], catalog))
