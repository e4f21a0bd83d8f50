"""Adaptive clipping in specs: the count is charged, lower ends are claimed for attained data only, and refusals."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import binom, norm
from support.attacks import attacked, audited, errors, trials_of

import dpspec
from dpspec.accounting import PrivacyLoss, joint_noise_multiplier
from dpspec.contract import Phase
from dpspec.training.loop import native
from dpspec.training.providers import native_constants
from dpspec_group import scores

pytestmark = pytest.mark.usefixtures("claimed_deltas_alone")

TEXT = """\
dpspec: 1
name: adaptive
mechanism:
  kind: group
  noise_multiplier: 2.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 9
  clipping: {scheme: adaptive, count_std: 1.2}
data: {kind: declared, records: 100, features: 4, classes: 2}
claims:
  - {id: one, kind: approx-dp, epsilon: 40.0, delta: 1e-5}
  - {id: low, kind: approx-dp, epsilon: 0.5, delta: 1e-5, expect: refuted}
"""
FIXED = "mechanism.sampling={scheme: fixed, batch_size: 10}"
FULL, FLAT = "mechanism.sampling={scheme: full}", "mechanism.clipping={scheme: flat}"
PLAIN, LEAST = "mechanism.clipping.centered=false", "threat_model.min_records=99"
REPLACED = "threat_model.adjacency=replace-one"


@pytest.mark.parametrize("centered", [True, False])
def test_the_count_is_charged(centered: bool, tmp_path: Path) -> None:
    audit = audited(tmp_path, f"mechanism.clipping.centered={str(centered).lower()}", text=TEXT)
    joint = joint_noise_multiplier(2.0, 1.2, centered=centered)
    exact = PrivacyLoss.gaussian(joint, rate=0.1).compose(9).epsilon(1e-5)
    assert audit.verdicts[0].upper == pytest.approx(exact.upper, rel=1e-4)
    constant = audited(tmp_path, FLAT, text=TEXT)
    assert constant.verdicts[0].upper is not None
    assert constant.verdicts[0].upper < exact.lower


@pytest.mark.family
@pytest.mark.parametrize(
    ("overrides", "refuted"),
    [
        ((), True),
        ((LEAST,), False),  # other records hide the count
        ((PLAIN,), False),
        ((FULL, LEAST), True),
        ((FIXED, LEAST), True),
        ((FIXED, LEAST, PLAIN), False),
        ((REPLACED,), True),
        ((REPLACED, FULL, LEAST), True),
        (("mechanism.sampling={scheme: random-allocation, epoch_steps: 3}",), True),
    ],
)
def test_lower_ends_need_data_that_attain_them(overrides: tuple[str, ...], refuted: bool, tmp_path: Path) -> None:
    one, low = audited(tmp_path, *overrides, text=TEXT).verdicts
    assert one.verdict == "proved"
    assert low.verdict == ("refuted" if refuted else "open")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), None),
        ((FLAT,), None),
        (("mechanism.clipping={scheme: adaptive}",), "missing key 'count_std'"),
        (("mechanism.clipping={scheme: flat, count_std: 2}",), "count_std applies to scheme: adaptive only"),
        (("mechanism.clipping.count_std=0",), "count_std"),
        (("mechanism.clipping.count_std=1e-7",), "count_std must be at least 1e-6"),
        (("threat_model.adjacency=zero-out",), "covers add-remove adjacency only, not zero-out"),
        ((FULL, "threat_model.adjacency=zero-out"), "covers add-remove adjacency only, not zero-out"),
        (("claims.0.adjacency=zero-out",), "covers add-remove adjacency only, not zero-out"),
        ((FLAT, "threat_model.adjacency=zero-out"), None),
        (("mechanism.clipping.scheme=automatic",), "automatic"),
        (("mechanism.clipping.min_clipbound=1.5",), "min_clipbound must be at most clip_norm, 1, got 1.5"),
        (("mechanism.clipping.max_clipbound=0.5",), "max_clipbound must be at least clip_norm, 1, got 0.5"),
        (("mechanism.clipping.target_unclipped_quantile=1.1",), "target_unclipped_quantile"),
        (("mechanism.clipping.clipbound_learning_rate=-0.1",), "clipbound_learning_rate"),
        (("mechanism.clipping.learning_rate=0.1",), "learning_rate"),
        (("mechanism.clipping={scheme: flat, max_clipbound: 2}",), "max_clipbound applies to scheme: adaptive only"),
    ],
)
def test_what_is_not_covered_is_refused(overrides: tuple[str, ...], words: str | None, tmp_path: Path) -> None:
    found = errors(tmp_path, *overrides, text=TEXT)
    assert any(words in message for message in found) if words else found == []


TRAINED = (
    "data={kind: synthetic, records: 60, features: 6, classes: 3, seed: 2}",
    "model={kind: linear}",
    "mechanism.steps=24",
    "claims.1.expect=open",
    "audit={method: one-run, canary: {space: gradient, count: 18}, seed: 5}",
)
MANY = (*TRAINED, "audit={method: many-run, runs: 16, canary: {space: gradient}, seed: 5}")
COUNTED = (*MANY, "audit.score_counts=true")


@pytest.mark.family
@pytest.mark.parametrize(
    "overrides",
    [
        TRAINED,
        (*TRAINED, FIXED),
        (*TRAINED, "mechanism.sampling={scheme: random-allocation, epoch_steps: 3}"),
        (*TRAINED, "threat_model.access=transcript"),
        (*TRAINED, PLAIN, "threat_model.group_size=[1, 2]", "audit.canary.count=36", "data.features=20"),
        (*TRAINED, "audit.canary={space: input, kind: mislabelled, count: 18}"),
        (*TRAINED, "audit.canary={space: input, kind: mislabelled, count: 18}", "threat_model.access=final-model"),
        (*TRAINED, "audit.expected_from=20"),
        COUNTED,
        (*COUNTED, "threat_model.access=transcript"),
        (*MANY, "audit.canary={space: input, kind: mislabelled}"),
        (*TRAINED, "mechanism.clipping={scheme: adaptive, count_std: 1e9}"),
        (*TRAINED, "mechanism.clipping={scheme: adaptive, count_std: 1.2, clipbound_learning_rate: 0}"),
        (*TRAINED, "mechanism.clipping={scheme: adaptive, count_std: 1.2, max_clipbound: 1, min_clipbound: 1}"),
    ],
    ids=[
        "poisson",
        "fixed",
        "allocated",
        "transcript",
        "plain",
        "input",
        "final-input",
        "estimated",
        "counted",
        "counted-transcript",
        "many-input",
        "large-std",
        "constant",
        "limits",
    ],
)
def test_attacked_runs_conform(overrides: tuple[str, ...], tmp_path: Path) -> None:
    """Every promised check is made; the bound is the one without a run."""
    audit = audited(tmp_path, *overrides, text=TEXT)
    assert audit.conformance.status == "no-deviation-found"
    assert {verdict.verdict for verdict in audit.verdicts} <= {"proved", "supported", "open", "refuted"}
    notes = {check.note for check in audit.checks if "count" in check.note}
    assert len(notes) == 3


def test_the_divisor_of_counts_must_be_public(tmp_path: Path) -> None:
    """Also with sums as updates: the expected batch size moves the clip norm, and depends on the number of records."""
    statuses = []
    for changes in ((), ("training.expected_batch_size=6",), (FLAT,)):
        spec = attacked(tmp_path, *TRAINED, "training={reduction: sum}", *changes, text=TEXT)
        statuses.append(native_constants(spec).status)
    assert statuses == ["declared", "by-construction", "by-construction"]


def test_the_sum_of_counts_and_projections_is_the_likelihood_ratio() -> None:
    """Against the ratio of both densities, by enumeration of the numbers of drawn members."""
    rng, records, size, rate = np.random.default_rng(3), 30, 3, 0.4
    clipping = {"scheme": "adaptive", "count_std": 0.8}
    sampling = {"scheme": "poisson", "rate": rate}
    phase = Phase({"noise_multiplier": 1.7, "clip_norm": 1.0, "steps": 5, "sampling": sampling, "clipping": clipping})
    attack = SimpleNamespace(others_drawn=False, spread=0.0, every=1, sizes=(size,), share=1)
    projections, counts = rng.normal(0.5, 2.0, (5, 1)), rng.normal(-0.5, 2.0, 5)
    joint = scores.counted_phases([phase], attack, records)
    estimates = scores.with_counts([phase], joint, projections, counts)
    found = scores.stepwise_scores(joint, attack, records, np.array([size]), estimates)
    std = math.sqrt(0.8**2 + 0.25 * records * rate * (1.0 - rate))
    expected = 0.0
    for along, count in zip(projections[:, 0], counts, strict=True):
        densities = [norm.pdf(along, j, 1.7) * norm.pdf(count, -0.5 * j, std) for j in range(size + 1)]
        expected += math.log(binom.pmf(range(size + 1), size, rate) @ densities / densities[0])
    assert found[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.ci
def test_counts_add_to_the_power_of_a_group_alone(tmp_path: Path) -> None:
    """Full batches: with the counts the attack attains the bound's noise multiplier, without them the gradients'."""
    overrides = (FULL, "mechanism.steps=1", "audit.runs=400", "mechanism.clipping.count_std=0.9")
    laws = []
    for counted in ("true", "false"):
        spec = attacked(tmp_path, *MANY, *overrides, f"audit.score_counts={counted}", text=TEXT)
        law = scores.declared_distribution(spec, 60, 1)
        assert law is not None
        laws.append(law.mu())
        trials = trials_of(spec, *range(200))
        coins, values = (np.array([trial.arrays[name][0] for trial in trials]) for name in ("coins", "scores"))
        apart = values[coins == 1].mean() - values[coins == 0].mean()
        assert apart == pytest.approx(law.mu() ** 2, abs=5.0 * 2.0 * law.mu() / math.sqrt(200))
    assert laws[0] == pytest.approx(1.0 / joint_noise_multiplier(2.0, 0.9), rel=1e-3)
    assert laws[1] == pytest.approx(0.5, rel=1e-3)


HONEST = native.ClipNorms


class SilentCounts(native.ClipNorms):
    def noise(self, std: float) -> float:
        return 0.0


class OtherRule(native.ClipNorms):
    """The clip norm follows from the count without noise, which is released with it."""

    def count(self, phase: native.ScheduledPhase, norms: torch.Tensor) -> tuple[float, float, float] | None:
        report = super().count(phase, norms)
        if report is not None and phase.adaptive is not None:
            clip_norm, noisy, noise = report
            self.clip_norm = phase.adaptive.next_clip_norm(clip_norm, noisy - noise, self._batch_size)
        return report


class HiddenCounts(SilentCounts):
    """Report noise that was not added."""

    def count(self, phase: native.ScheduledPhase, norms: torch.Tensor) -> tuple[float, float, float] | None:
        report = super().count(phase, norms)
        return None if report is None else (*report[:2], HONEST.noise(self, 1.2))


@pytest.mark.family
@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        (SilentCounts, "chi-square, two-sided"),
        (OtherRule, "clip norms by another rule"),
        (HiddenCounts, "counts that contradict the clipped norms"),
    ],
)
def test_faulty_counts_deviate(faulty, words, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "ClipNorms", faulty)
    audit = audited(tmp_path, *TRAINED, text=TEXT)
    assert audit.conformance.status == "deviates"
    assert any(words in check.test for check in audit.checks if check.p_value < 1e-8)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((*TRAINED, "training.backend=opacus"), "backend 'opacus' does not train with adaptive clipping"),
        ((*TRAINED, "threat_model.access=final-model"), "scored under the final model by the declared clip norm"),
        ((*TRAINED, "audit.score_counts=true"), "score_counts needs adaptive clipping with centered counts"),
        ((*COUNTED, PLAIN), "score_counts needs adaptive clipping with centered counts"),
        ((*COUNTED, FIXED), "score_counts needs adaptive clipping with centered counts"),
        ((*COUNTED, FLAT), "score_counts needs adaptive clipping with centered counts"),
        ((*COUNTED, "threat_model.group_size=[1, 2]"), "score_counts needs adaptive clipping with centered counts"),
        ((*COUNTED, "audit.canary={space: input, kind: mislabelled}"), "score_counts needs adaptive clipping"),
    ],
    ids=["opacus", "final-gradient", "one-run", "plain", "fixed", "flat", "two-sizes", "input"],
)
def test_attacks_that_need_other_clip_norms_are_refused(overrides: tuple[str, ...], words: str, tmp_path: Path) -> None:
    assert any(words in message for message in errors(tmp_path, *overrides, text=TEXT))


LAYERS = {
    "dpspec": 1,
    "name": "layers",
    "mechanism": {
        "kind": "group",
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "sampling": {"scheme": "poisson", "rate": 0.2},
        "steps": 15,
        "clipping": {"scheme": "per-layer"},
    },
    "data": {"kind": "synthetic", "records": 80, "features": 6, "classes": 3},
    "model": {"kind": "mlp", "hidden": [8]},
    "claims": [{"id": "one", "kind": "approx-dp", "epsilon": 40.0, "delta": 1e-5}],
    "audit": {"method": "one-run", "canary": {"space": "input", "kind": "mislabelled", "count": 16}},
}


@pytest.mark.ci
def test_runs_with_a_clip_norm_for_each_layer_conform_and_have_the_flat_bound() -> None:
    flat = {**LAYERS, "mechanism": {**LAYERS["mechanism"], "clipping": {"scheme": "flat"}}}
    layers, constant = (dpspec.run(spec).audits[0] for spec in (LAYERS, flat))
    assert layers.conformance.status == "no-deviation-found"
    assert layers.verdicts[0].upper == constant.verdicts[0].upper
    assert layers.trials[0].key != constant.trials[0].key


def test_clipping_per_layer_is_refused_where_it_is_not_executed_or_not_covered(tmp_path: Path) -> None:
    text = yaml.safe_dump(LAYERS)
    other = errors(tmp_path, "training.backend=opacus", text=text)
    assert any("does not clip each layer" in error for error in other)
    capped = errors(tmp_path, "mechanism.sampling={scheme: truncated-poisson, rate: 0.2, max_batch: 30}", text=text)
    assert any("no bound covers max_batch with clipping per layer" in error for error in capped)
