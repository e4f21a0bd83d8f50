"""Variants of the one-run attack: transcripts, estimated mean updates, and audits without a canary-free run."""

from itertools import product
from math import comb
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import norm
from support.attacks import attacked, audited, diagnosed, errors, written

import dpspec
from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.contract.results import AuditResult
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec.reporters.limits import limits

TEXT = """\
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
ITERATES = "threat_model.access=all-iterates"
RECORDS = "audit.canary={space: input, kind: mislabelled, count: 60}"
MANY = ("audit.method=many-run", "audit.canary={space: gradient}")
ESTIMATED = (ITERATES, "audit.expected_from=30")
ALONE = "audit.canary_free_run=false"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    return audited(tmp_path_factory.mktemp("base"), text=TEXT)


# --- transcripts: the other drawn records are known


@pytest.mark.ci
def test_bounds_cover_a_transcript_and_the_attack_is_about_it_alone(tmp_path: Path) -> None:
    stated = (
        "{id: told, kind: approx-dp, epsilon: 200.0, delta: 1e-5}",
        "{id: seen, kind: approx-dp, epsilon: 200.0, delta: 1e-5, access: all-iterates}",
        "{id: low, kind: approx-dp, epsilon: 0.1, delta: 1e-5, refuted_by: attack}",
        "{id: low-seen, kind: approx-dp, epsilon: 0.1, delta: 1e-5, access: all-iterates}",
    )
    audit = audited(tmp_path, f"claims=[{', '.join(stated)}]", text=TEXT)
    assert [v.verdict for v in audit.verdicts] == ["proved", "proved", "refuted", "refuted"]
    reasons = [v.reason for v in audit.verdicts]
    assert "The attack (one-run, transcript) rejects the claim" in reasons[2]
    assert "attack" not in reasons[3]  # by datasets that attain the bound, not by the executed run
    assert audit.conformance.status == "no-deviation-found"
    assert {e.scope.access for e in audit.evidence} == {"transcript"}
    upper = {f.scope.access for f in audit.findings if f.bound == "upper" and f.quantity == "epsilon"}
    assert upper == {"transcript"}


@pytest.mark.ci
def test_a_transcript_has_the_bounds_of_all_iterates_and_a_sharper_test_of_updates(tmp_path, base):
    transcript, seen = base, audited(tmp_path, ITERATES, text=TEXT)
    assert [v.upper for v in transcript.verdicts] == [v.upper for v in seen.verdicts]
    assert {f.scope.access for f in seen.findings} == {"all-iterates"}
    sharp = [
        next(c.detectable for c in a.checks if c.assumption == "update" and c.note.startswith("relative to rate"))
        for a in (transcript, seen)
    ]
    assert sharp[0] < sharp[1] / 2


@pytest.mark.ci
@pytest.mark.parametrize(
    "overrides",
    [
        (RECORDS,),
        (*MANY, "audit.runs=24"),
        (RECORDS, "training={learning_rate: 0.5, backend: opacus, sampler: declared-rate, divisor: declared}"),
    ],
)
def test_transcripts_of_records_many_runs_and_opacus(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    audit = audited(tmp_path, *overrides, text=TEXT)
    assert audit.verdicts[0].verdict == "proved"
    assert audit.conformance.status == "no-deviation-found"
    assert {e.scope.access for e in audit.evidence} == {"transcript"}


def delta_of_revealed(rate: float, sigma: float, epsilon: float) -> float:
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
def test_a_step_of_poisson_batches_loses_no_more_if_other_draws_are_revealed(epsilon: float) -> None:
    bound = PrivacyLoss(((Mixture.poisson(1, 0.3, 0.8), 1),), "present-first").delta(epsilon)
    assert delta_of_revealed(0.3, 0.8, epsilon) == pytest.approx(bound.upper, rel=1e-3)


@pytest.mark.parametrize(
    ("sampling", "covered"),
    [
        ("{scheme: fixed, batch_size: 30}", False),
        ("{scheme: truncated-poisson, rate: 0.1, max_batch: 50}", False),
        ("{scheme: shuffled, batch_size: 30}", False),
        ("{scheme: full}", True),
    ],
)
def test_transcripts_of_other_schemes_are_refused(tmp_path: Path, sampling: str, covered: bool) -> None:
    found = errors(tmp_path, f"mechanism.sampling={sampling}", text=TEXT)
    assert any("no bound covers a transcript" in message for message in found) is not covered


@pytest.mark.parametrize("kind", ["modelmix", "per-instance", "preprocessing", "rero"])
def test_transcripts_of_other_mechanisms_are_refused(tmp_path: Path, kind: str) -> None:
    example = yaml.safe_load(load_catalog().mechanisms[kind].provider.example)
    example["threat_model"] = {**example.get("threat_model", {}), "access": "transcript"}
    messages = [d.message for d in diagnosed(written(tmp_path, yaml.safe_dump(example, sort_keys=False)))]
    assert f"the bounds of {kind!r} hold for access all-iterates or final-model, not for 'transcript'" in messages


def test_a_claim_may_not_see_more_than_the_threat_model(tmp_path: Path) -> None:
    assert "transcript" in errors(tmp_path, "threat_model={}", "claims.low.access=transcript", text=TEXT)[0]


# --- mean updates that are estimated from some records


@pytest.mark.ci
def test_an_audit_with_estimates_refutes_conforms_and_says_how_it_estimated(tmp_path: Path) -> None:
    audit = audited(tmp_path, *ESTIMATED, text=TEXT)
    assert [v.verdict for v in audit.verdicts] == ["proved", "refuted"]
    assert audit.conformance.status == "no-deviation-found"
    assert "mean updates estimated from 30 records" in audit.evidence[0].method
    assert all(check.p_value > 1e-3 for check in audit.checks)
    # The bound applies to the mechanism, and the attack's access does not change.
    assert {evidence.scope.access for evidence in audit.evidence} == {"all-iterates"}


@pytest.mark.ci
def test_planted_records_are_scored_by_estimates_too(tmp_path: Path) -> None:
    audit = audited(tmp_path, *ESTIMATED, "audit.canary={space: input, count: 24}", text=TEXT)
    assert audit.conformance.status == "no-deviation-found"
    (update,) = [c for c in audit.checks if c.assumption == "update" and "at each step" not in c.test]
    assert update.p_value > 1e-3


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("threat_model.access=transcript",), "without seeing the drawn records"),
        ((*MANY, "audit.runs=16"), "one-run attacks"),
        (("training.optimizer={kind: adam}",), "not invertible"),
        (("mechanism.sampling={scheme: fixed, batch_size: 30}",), "Poisson batches of records"),
        (("audit.expected_from=29",), "must be from 30, the mean batch size"),
        (("audit.expected_from=301",), "to 300, the number of records, got 301"),
        (("audit.expected_from=1",), "1"),
        # 0.07 of 300 records is 21.000000000000004 in floating point: as many as a batch holds are enough
        (("mechanism.sampling.rate=0.07", "audit.expected_from=21"), None),
    ],
)
def test_estimates_are_refused_with_the_reason(tmp_path: Path, overrides: tuple[str, ...], words: str | None) -> None:
    found = errors(tmp_path, *ESTIMATED, *overrides, text=TEXT)
    assert any(words in message for message in found) if words else found == []


# --- audits without a canary-free run


@pytest.mark.ci
def test_what_is_not_seen_without_a_canary_free_run_is_said(tmp_path: Path) -> None:
    sentence = "alone was trained without a canary-free run: its tests cannot detect noise that is the same in every"
    path, said = written(tmp_path, TEXT), []
    for overrides in ((), (ALONE,), (ALONE, "audit.runs=2")):
        result = dpspec.run(path, overrides=overrides, store=tmp_path / "store")
        said.append(any(one.startswith(sentence) for one in limits(result)))
    assert said == [False, True, True]


@pytest.mark.ci
def test_the_attack_is_the_same_and_the_result_says_what_is_missing(tmp_path, base):
    both, alone = base, audited(tmp_path, ALONE, text=TEXT)
    verdicts = [[(v.claim, v.verdict, v.upper) for v in one.verdicts] for one in (both, alone)]
    assert verdicts[0] == verdicts[1]
    shown = [[dict(e.statistics) for e in one.evidence if e.quantity != "accuracy"] for one in (both, alone)]
    assert shown[0] == shown[1]
    assert "accuracy" in {f.quantity for f in both.findings}
    assert "accuracy" not in {f.quantity for f in alone.findings}
    assert {e.method for e in alone.evidence} == {"one-run, transcript, no canary-free run"}
    assert alone.conformance.status == "no-deviation-found"
    made, kept = ({(c.assumption, c.note) for c in audit.checks} for audit in (both, alone))
    assert made - kept == {("independent-noise", "at every lag, of every two steps, and of two runs")}
    assert kept - made == {("independent-noise", "at every lag and of every two steps")}


def test_a_canary_free_run_that_is_written_is_the_default_one(tmp_path: Path) -> None:
    """Trials stored without the key match a spec that requires their default."""
    specs = [attacked(tmp_path, *one, text=TEXT) for one in ((), ("audit.canary_free_run=true",), (ALONE,))]
    left_out, true, false = (prepare(spec, load_catalog()).audit.trial_inputs(spec) for spec in specs)
    assert left_out == true != false


def test_claims_about_the_accuracy_need_it(tmp_path: Path) -> None:
    stated = "claims=[{id: accurate, kind: metric, name: accuracy, at_least: 0.5}]"
    (found,) = diagnosed(written(tmp_path, TEXT), ALONE, stated, "data.split={test: 20}")
    assert (found.code, found.path) == ("unsupported", ("claims", 0))
    assert "claim 'accurate' needs the canary-free run, which canary_free_run: false disables" in found.message


def test_batches_of_a_fixed_size_reveal_the_record_by_the_others() -> None:
    """Three others and a record, batches of two: only with the record can one other be drawn, at any epsilon."""
    with_the_record = comb(3, 1) / comb(4, 2)
    bound = PrivacyLoss(((Mixture.fixed(1, 3, 2, 0.8), 1),)).delta(5.0)
    assert with_the_record == 0.5 > 2 * bound.upper
