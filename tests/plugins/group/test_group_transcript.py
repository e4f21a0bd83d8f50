"""Who else was drawn, told with every iterate: bounds that cover it, attacks that use it, and what is refused."""

from __future__ import annotations

from itertools import product
from math import comb
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import norm

import dpspec
from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.contract import Diagnostic
from dpspec.engine.preparing.prepare import check
from dpspec.engine.results.result import AuditResult as Audit
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

SPEC = """\
dpspec: 1
name: told
mechanism: {kind: group, noise_multiplier: 0.4, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 60}
data: {kind: synthetic, pattern: blobs, records: 300, features: 40, classes: 2}
model: {kind: mlp, hidden: [16]}
training: {learning_rate: 0.5}
threat_model: {access: transcript}
claims:
  - {id: told, kind: approx-dp, epsilon: 200.0, delta: 1e-5}
  - {id: seen, kind: approx-dp, epsilon: 200.0, delta: 1e-5, access: all-iterates}
  - {id: low, kind: approx-dp, epsilon: 0.1, delta: 1e-5, refuted_by: attack, expect: refuted}
  - {id: low-seen, kind: approx-dp, epsilon: 0.1, delta: 1e-5, access: all-iterates, expect: refuted}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 600}, seed: 3}
"""


def audited(tmp_path: Path, *changes: tuple[str, str]) -> Audit:
    text = SPEC
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "told.yaml"
    path.write_text(text)
    (audit,) = dpspec.run(path, store=tmp_path / "store").audits
    return audit


def test_bounds_cover_it_and_the_attack_speaks_of_it_alone(tmp_path: Path) -> None:
    audit = audited(tmp_path)
    assert {v.claim: v.verdict for v in audit.verdicts} == {
        "told": "proved",
        "seen": "proved",
        "low": "refuted",
        "low-seen": "refuted",
    }
    assert all(v.expected for v in audit.verdicts)
    reasons = [v.reason for v in audit.verdicts]
    assert "The attack (one-run, transcript) rejects the claim" in reasons[2]
    assert "attack" not in reasons[3]  # by data sets that attain the bound, which say nothing of what ran
    assert audit.conformance.status == "no-deviation-found"
    assert {e.scope.access for e in audit.evidence} == {"transcript"}
    upper = {f.scope.access for f in audit.findings if f.bound == "upper" and f.quantity == "epsilon"}
    assert upper == {"transcript"}


def test_numbers_are_those_of_all_iterates(tmp_path: Path) -> None:
    told = audited(tmp_path)
    seen = audited(tmp_path, ("{access: transcript}", "{access: all-iterates}"))
    assert [v.upper for v in told.verdicts] == [v.upper for v in seen.verdicts]
    assert {f.scope.access for f in seen.findings} == {"all-iterates"}


def test_of_the_expected_update_nothing_hides_in_sampling(tmp_path: Path) -> None:
    """What was drawn is known, so that less is left to chance than where only the data is."""
    told = audited(tmp_path)
    seen = audited(tmp_path, ("{access: transcript}", "{access: all-iterates}"))
    sharp = [
        next(c.detectable for c in a.checks if c.assumption == "update" and c.note.startswith("relative to rate"))
        for a in (told, seen)
    ]
    assert sharp[0] is not None
    assert sharp[1] is not None
    assert sharp[0] < sharp[1] / 2


@pytest.mark.ci
@pytest.mark.parametrize(
    "changes",
    [
        [("{space: gradient, kind: orthogonal, count: 600}", "{space: input, kind: mislabelled, count: 60}")],
        [("method: one-run", "method: many-run, runs: 24"), (", count: 600", ""), ],
        [("training: {", "training: {backend: opacus, sampler: declared-rate, divisor: declared, "),
         ("{space: gradient, kind: orthogonal, count: 600}", "{space: input, kind: mislabelled, count: 60}")],
    ],
)  # fmt: skip
def test_records_many_runs_and_opacus(tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    audit = audited(tmp_path, *changes)
    assert [v.verdict for v in audit.verdicts[:2]] == ["proved", "proved"]
    assert audit.conformance.status == "no-deviation-found"
    assert {e.scope.access for e in audit.evidence} == {"transcript"}


def delta_told(rate: float, sigma: float, epsilon: float) -> float:
    """Of one step on two others and a record, sums 1 each: all draws of the others, each with its densities."""
    at = np.linspace(-8.0, 12.0, 200_001)
    found = 0.0
    for coins in product((0, 1), repeat=2):
        chance = float(np.prod([rate if coin else 1 - rate for coin in coins]))
        without = norm.pdf(at, sum(coins), sigma)
        inside = (1 - rate) * without + rate * norm.pdf(at, sum(coins) + 1, sigma)
        found += chance * float(np.trapezoid(np.maximum(inside - np.exp(epsilon) * without, 0.0), at))
    return found


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5])
def test_a_step_of_poisson_batches_loses_no_more_to_whoever_is_told(epsilon: float) -> None:
    bound = PrivacyLoss(((Mixture.poisson(1, 0.3, 0.8), 1),), "present-first").delta(epsilon)
    assert delta_told(0.3, 0.8, epsilon) == pytest.approx(bound.upper, rel=1e-3)


def test_of_batches_of_a_fixed_size_the_others_tell_of_the_record() -> None:
    """Three others and a record, batches of two: only with the record can one other be drawn, at any epsilon."""
    with_the_record = comb(3, 1) / comb(4, 2)
    bound = PrivacyLoss(((Mixture.fixed(1, 3, 2, 0.8), 1),)).delta(5.0)
    assert with_the_record == 0.5 > 2 * bound.upper


def refused(tmp_path: Path, text: str) -> list[Diagnostic]:
    path = tmp_path / "refused.yaml"
    path.write_text(text)
    loaded = load_specs([path], load_catalog())
    assert loaded.ok, loaded.diagnostics
    return [d for spec in loaded.specs for d in check(spec, load_catalog()) if d.path == ("threat_model", "access")]


@pytest.mark.parametrize(
    "sampling", ["fixed, batch_size: 30", "truncated-poisson, rate: 0.1, max_batch: 50", "shuffled, batch_size: 30"]
)
def test_other_schemes_are_refused(tmp_path: Path, sampling: str) -> None:
    (told,) = refused(tmp_path, SPEC.replace("poisson, rate: 0.1", sampling))
    assert "no bound covers a transcript" in told.message
    assert refused(tmp_path, SPEC.replace("poisson, rate: 0.1", "full")) == []


@pytest.mark.parametrize("kind", ["modelmix", "per-instance", "preprocessing", "rero"])
def test_other_mechanisms_are_refused(tmp_path: Path, kind: str) -> None:
    example = yaml.safe_load(load_catalog().mechanisms[kind].provider.example)
    example["threat_model"] = {**example.get("threat_model", {}), "access": "transcript"}
    told = [d.message for d in refused(tmp_path, yaml.safe_dump(example, sort_keys=False))]
    assert f"the bounds of {kind!r} hold for access all-iterates or final-model, not for 'transcript'" in told


def test_a_claim_may_not_see_more_than_the_threat_model(tmp_path: Path) -> None:
    path = tmp_path / "wider.yaml"
    path.write_text(SPEC.replace("{access: transcript}", "{}").replace("access: all-iterates", "access: transcript"))
    loaded = load_specs([path], load_catalog())
    assert not loaded.ok
    assert "transcript" in loaded.diagnostics[0].message
