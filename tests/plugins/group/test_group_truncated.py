"""Truncated Poisson batches from spec to verdict: scopes, refusals, a run that conforms, and runs that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dpspec
from dpspec.accounting import round_up
from dpspec.contract import Finding, FrozenMap, Phase
from dpspec.engine.preparing.prepare import check
from dpspec.errors import UsageError
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.training.loop import samplers
from dpspec_group import evidence, theory

SPEC = """\
dpspec: 1
name: truncated
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: truncated-poisson, rate: 0.1, max_batch: 28}
  steps: 100
data: {kind: synthetic, records: 200, features: 64, classes: 2, seed: 1}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {group_size: [1, 3]}
claims:
  - {id: one, kind: approx-dp, epsilon: 60.0, delta: 1e-5, over: this}
  - {id: three, kind: approx-dp, epsilon: 400.0, delta: 1e-5, group_size: 3, over: this}
  - {id: low, kind: approx-dp, epsilon: 5.0, delta: 1e-5, min_records: 199}
  - {id: all, kind: approx-dp, epsilon: 60.0, delta: 1e-5}
  - {id: rate, kind: membership, fpr: 0.001, tpr: 0.9, over: this}
  - {id: mu, kind: gdp, mu: 30, over: this}
"""

AUDIT = "audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 32}, seed: 1}\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "truncated.yaml"
    path.write_text(text)
    return path


def test_verdicts_speak_of_the_declared_data(tmp_path: Path) -> None:
    (audit,) = dpspec.run(written(tmp_path, SPEC)).audits
    verdicts = {verdict.claim: verdict.verdict for verdict in audit.verdicts}
    assert verdicts == {
        "one": "proved",
        "three": "proved",
        "low": "refuted",
        "all": "supported",
        "rate": "proved",
        "mu": "proved",
    }
    uppers = [f for f in audit.findings if f.quantity == "epsilon" and f.bound == "upper"]
    lowers = [f for f in audit.findings if f.quantity == "epsilon" and f.bound == "lower"]
    assert {(f.scope.data, f.scope.min_records) for f in uppers} == {("this", 0)}
    assert {(f.scope.data, f.scope.min_records) for f in lowers} >= {("all", 199)}
    assert all("TruncatedPoisson" in f.source for f in lowers)


def test_the_interval_is_above_poisson_sampling_and_below_replacement() -> None:
    options = {"noise_multiplier": 1.0, "clip_norm": 1.0, "steps": 50}
    capped = Phase({**options, "sampling": {"scheme": "truncated-poisson", "rate": 0.1, "max_batch": 35}})
    plain = Phase({**options, "sampling": {"scheme": "poisson", "rate": 0.1}})
    for direction in theory.DIRECTIONS:
        (found,) = theory.group_epsilons([capped], 2, 200, [1e-5], direction)
        (poisson,) = theory.group_epsilons([plain], 2, 200, [1e-5], direction)
        (replaced,) = theory.group_epsilons([plain.replace(noise_multiplier=0.5)], 2, 200, [1e-5], direction)
        assert found.lower <= poisson.upper <= found.upper * (1 + 1e-3)
        assert found.upper <= replaced.upper


def test_baselines_stand_beside_the_bound(tmp_path: Path) -> None:
    more = SPEC.replace("  steps: 100\n", "  steps: 100\n  baselines: [linear, full-batch]\n")
    (audit,) = dpspec.run(written(tmp_path, more)).audits
    (table,) = [one for one in audit.series if one.name == "epsilon-by-group-size"]
    for mine, full in zip(table.columns["epsilon"], table.columns["full-batch"], strict=True):
        assert mine < full
    black_box = SPEC.replace("  steps: 100\n", "  steps: 100\n  baselines: [vadhan-sharp]\n")
    assert any(
        "vadhan-sharp cannot be computed for truncated-poisson" in message
        for message in diagnostics(tmp_path, black_box)
    )


def diagnostics(tmp_path: Path, text: str) -> list[str]:
    loaded = load_specs([written(tmp_path, text)], load_catalog())
    if not loaded.ok:
        return [d.message for d in loaded.diagnostics]
    return [d.message for spec in loaded.specs for d in check(spec, load_catalog()) if d.severity == "error"]


def test_zero_out_is_not_covered(tmp_path: Path) -> None:
    assert diagnostics(tmp_path, SPEC) == []
    zeroed = SPEC.replace("{group_size: [1, 3]}", "{group_size: [1, 3], adjacency: zero-out}")
    assert any("add-remove adjacency only" in message for message in diagnostics(tmp_path, zeroed))


def test_a_cap_needs_its_number_and_no_other_scheme_takes_it(tmp_path: Path) -> None:
    assert diagnostics(tmp_path, SPEC.replace(", max_batch: 28", ""))
    assert diagnostics(tmp_path, SPEC.replace("truncated-poisson", "poisson"))


@pytest.mark.parametrize("kind", ["per-instance", "rero", "modelmix", "preprocessing"])
def test_no_other_mechanism_takes_what_it_does_not_cover(kind: str, tmp_path: Path) -> None:
    mechanism = load_catalog().mechanisms[kind].provider
    example = mechanism.example
    if "scheme: poisson, rate:" not in example:
        assert "scheme" not in example  # it has no sampling at all
        return
    assert diagnostics(tmp_path, example) == []
    truncated = example.replace("{scheme: poisson, rate:", "{scheme: truncated-poisson, max_batch: 1000, rate:")
    assert any("truncated-poisson" in message for message in diagnostics(tmp_path, truncated))


def test_opacus_does_not_draw_them() -> None:
    pytest.importorskip("opacus")
    from dpspec.testing.backend import small_job
    from dpspec.training.opacus_backend import OpacusTrainer

    options = FrozenMap({"learning_rate": 0.1, "optimizer": "sgd", "reduction": "mean"})
    job = small_job(options=options, sampling={"scheme": "truncated-poisson", "rate": 0.5, "max_batch": 5}, steps=2)
    with pytest.raises(UsageError, match="truncated-poisson"):
        OpacusTrainer().train(job)


def test_a_run_conforms_and_its_checks_are_the_promised_ones(tmp_path: Path) -> None:
    (audit,) = dpspec.run(written(tmp_path, SPEC + AUDIT), store=tmp_path / "store").audits
    assert audit.conformance.status == "no-deviation-found"
    sampling = [found for found in audit.checks if found.assumption == "sampling"]
    assert any("largest batch" in found.test for found in sampling)
    assert any("mean of truncated" in found.test for found in sampling)


def test_a_loop_that_forgets_the_cap_deviates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(self: samplers.TruncatedPoisson, generator: torch.Generator) -> torch.Tensor:
        return samplers.Poisson(self.records, self.rate).draw(generator)

    monkeypatch.setattr(samplers.TruncatedPoisson, "draw", draw)
    (audit,) = dpspec.run(written(tmp_path, SPEC + AUDIT), store=tmp_path / "store").audits
    assert audit.conformance.status == "deviates"


def test_pieces_of_a_shuffled_epoch_deviate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled = samplers.Shuffled(200, 20)

    def draw(self: samplers.TruncatedPoisson, generator: torch.Generator) -> torch.Tensor:
        return shuffled.draw(generator)

    monkeypatch.setattr(samplers.TruncatedPoisson, "draw", draw)
    (audit,) = dpspec.run(written(tmp_path, SPEC + AUDIT), store=tmp_path / "store").audits
    assert audit.conformance.status == "deviates"


def test_planted_records_fill_batches_when_noise_is_ruled_out(tmp_path: Path) -> None:
    """The declared 100 records never fill a batch of 150: with 400 planted ones a record may displace another."""
    text = """\
dpspec: 1
name: ruled-out
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: truncated-poisson, rate: 0.5, max_batch: 150}
  steps: 4
data: {kind: declared, records: 100, features: 600, classes: 2}
model: {kind: linear}
training: {backend: native, learning_rate: 1.0}
threat_model: {access: all-iterates}
claims: [{id: one, kind: approx-dp, epsilon: 50.0, delta: 1e-5, over: this}]
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 400}}
"""
    (spec,) = load_specs([written(tmp_path, text)], load_catalog()).specs
    found = list(evidence.one_run_outcomes(spec, 100, 1, ["0" * 200 + "1" * 200]))
    (mu,) = [f for f in found if isinstance(f, Finding) and f.quantity == "mu"]
    most = theory.mu_of_all_steps(spec.phases, 1, 500)
    assert most == pytest.approx(2.0 * theory.mu_of_all_steps(spec.phases, 1, 100))
    assert f"noise multipliers >= {round_up(most / mu.value, 4)} at these rates" in mu.method


def always_one(coins: torch.Tensor) -> torch.Tensor:
    coins[7] = 0.0
    return coins


def two_rates(coins: torch.Tensor) -> torch.Tensor:
    coins[: len(coins) // 2] /= 1.5
    coins[len(coins) // 2 :] /= 0.5
    return coins


@pytest.mark.parametrize("favour", [always_one, two_rates])
@pytest.mark.parametrize("scheme", ["fixed", "truncated-poisson", "poisson"])
def test_records_that_are_drawn_too_often_deviate(
    scheme: str, favour: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(self: Any, generator: torch.Generator) -> torch.Tensor:
        coins = favour(torch.rand(self.records, generator=generator, dtype=torch.float64))
        if scheme == "fixed":
            return coins.argsort()[: self.batch_size].sort().values
        order = coins.argsort(stable=True)[: getattr(self, "max_batch", self.records)]
        return order[coins[order] < self.rate].sort().values

    sampling = {
        "fixed": "{scheme: fixed, batch_size: 20}",
        "truncated-poisson": "{scheme: truncated-poisson, rate: 0.1, max_batch: 28}",
        "poisson": "{scheme: poisson, rate: 0.1}",
    }
    names = {"fixed": "FixedSize", "truncated-poisson": "TruncatedPoisson", "poisson": "Poisson"}
    monkeypatch.setattr(getattr(samplers, names[scheme]), "draw", draw)
    text = (
        (SPEC[: SPEC.index("  - {id: three")] + AUDIT)
        .replace(sampling["truncated-poisson"], sampling[scheme])
        .replace("[1, 3]", "1")
    )
    text = text.replace("steps: 100", "steps: 200").replace(", over: this", "")
    (audit,) = dpspec.run(written(tmp_path, text), store=tmp_path / "store").audits
    assert audit.conformance.status == "deviates"
