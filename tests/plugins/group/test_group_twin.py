"""An audit without the twin: what it still says, bit by bit, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpspec
from dpspec.contract import Plan
from dpspec.engine.preparing.prepare import Prepared, check, prepare
from dpspec.engine.results.result import AuditResult as Audit
from dpspec.engine.results.result import Result
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.reporters.limits import limits

pytestmark = pytest.mark.usefixtures("no_independent_bounds")

SPEC = """\
dpspec: 1
name: alone
mechanism: {kind: group, noise_multiplier: 0.4, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 60}
data: {kind: synthetic, pattern: blobs, records: 300, features: 40, classes: 2}
model: {kind: mlp, hidden: [16]}
training: {learning_rate: 0.5}
threat_model: {access: transcript}
claims:
  - {id: proved, kind: approx-dp, epsilon: 200.0, delta: 1e-5}
  - {id: low, kind: approx-dp, epsilon: 0.1, delta: 1e-5, refuted_by: attack, expect: refuted}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 600}, seed: 3}
"""

ACCURATE = "claims:\n  - {id: accurate, kind: metric, name: accuracy, at_least: 0.5}\n"

CATALOG = load_catalog()


def written(folder: Path, twin: str, text: str = SPEC) -> Path:
    path = folder / "alone.yaml"
    path.write_text(text.replace("seed: 3}", f"seed: 3{twin}}}"))
    return path


def prepared(folder: Path, twin: str) -> Prepared:
    return prepare(load_specs([written(folder, twin)], CATALOG).specs[0], CATALOG)


def plan(folder: Path, twin: str) -> Plan:
    of = prepared(folder, twin)
    return of.audit.plan(of.spec, of.facts)


def ran(folder: Path, twin: str) -> Result:
    return dpspec.run(written(folder, twin), store=folder / "store")


def audited(folder: Path, twin: str) -> Audit:
    (audit,) = ran(folder, twin).audits
    return audit


def test_what_is_not_seen_without_it_is_said(tmp_path: Path) -> None:
    sentence = "alone was trained without a canary-free run: its tests cannot detect noise that is the same in every"
    said = [
        any(one.startswith(sentence) for one in limits(ran(tmp_path, more)))
        for more in ("", ", canary_free_run: false", ", canary_free_run: false, runs: 2")
    ]
    assert said == [False, True, True]


def test_the_attack_is_the_same_and_the_result_says_what_is_missing(tmp_path: Path) -> None:
    both, alone = audited(tmp_path, ""), audited(tmp_path, ", canary_free_run: false")
    assert [(v.claim, v.verdict, v.upper) for v in alone.verdicts] == [
        (v.claim, v.verdict, v.upper) for v in both.verdicts
    ]
    assert [dict(e.statistics) for e in alone.evidence] == [
        dict(e.statistics) for e in both.evidence if e.quantity != "accuracy"
    ]
    assert "accuracy" in {f.quantity for f in both.findings}
    assert "accuracy" not in {f.quantity for f in alone.findings}
    assert {e.method for e in alone.evidence} == {"one-run, transcript, no canary-free run"}
    assert alone.conformance.status == "no-deviation-found"
    made = {(c.assumption, c.note) for c in both.checks}
    missing = made - {(c.assumption, c.note) for c in alone.checks}
    assert missing == {("independent-noise", "at every lag, of every two steps, and of two runs")}
    others = {(c.assumption, c.note) for c in alone.checks} - made
    assert others == {("independent-noise", "at every lag and of every two steps")}


def test_what_is_planned_costs_less_and_promises_no_more(tmp_path: Path) -> None:
    both, alone = plan(tmp_path, ""), plan(tmp_path, ", canary_free_run: false")
    assert alone.seconds is not None
    assert both.seconds is not None
    assert alone.seconds < both.seconds
    assert len(both.checks) == len(alone.checks)
    assert {c.note for c in both.checks} - {c.note for c in alone.checks} == {
        "at every lag, of every two steps, and of two runs"
    }


def test_a_twin_that_is_written_is_that_which_is_left_out(tmp_path: Path) -> None:
    """Trials that were stored without the key are those of a spec that asks for what they have."""
    inputs = [prepared(tmp_path, twin) for twin in ("", ", canary_free_run: true", ", canary_free_run: false")]
    left_out, true, false = (of.audit.trial_inputs(of.spec) for of in inputs)
    assert left_out == true != false


def test_claims_about_the_twin_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ", canary_free_run: false", SPEC.replace("claims:\n", ACCURATE))
    (found,) = check(load_specs([path], CATALOG).specs[0], CATALOG)
    assert (found.code, found.path) == ("unsupported", ("claims", 0))
    assert "claim 'accurate' needs the canary-free run, which canary_free_run: false disables" in found.message
