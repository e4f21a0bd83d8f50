"""Unsupported specs are refused at their place before anything is computed, with a way out."""

from pathlib import Path

import pytest
from support import specs

from dpspec.contract import Diagnostic

BASE = """\
dpspec: 1
name: refused
mechanism: {kind: rero, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 10}
data: {kind: declared, records: 100, features: 16, classes: 4}
threat_model: {prior: {kappa: [1e-3, 0.1]}}
claims:
  - {id: one, kind: rero, kappa: 0.1, gamma: 0.9}
"""

LAPLACE = [
    "mechanism.noise=laplace",
    "mechanism.noise_multiplier=null",
    "mechanism.clip_norm=null",
    "mechanism.scale=2.0",
    "mechanism.sensitivity={l1: 1.0}",
]


def diagnostics(tmp_path: Path, *overrides: str) -> list[Diagnostic]:
    return specs.diagnostics(tmp_path, BASE, *overrides)


def test_the_base_is_fine_with_either_noise(tmp_path: Path) -> None:
    assert diagnostics(tmp_path) == []
    assert diagnostics(tmp_path, *LAPLACE, "mechanism.baselines=[clt]") == []


def test_a_baseline_may_be_a_fraction(tmp_path: Path) -> None:
    fraction, decimal = (specs.spec_of(tmp_path, BASE, f"claims.one.kappa={x}") for x in ("1/256", "0.00390625"))
    assert fraction.claims[0]["kappa"] == 0.00390625
    assert fraction.digest == decimal.digest
    for text in ("{}", "[{}, 0.5]"):
        fraction, decimal = (
            specs.spec_of(tmp_path, BASE, f"threat_model.prior.kappa={text.format(x)}") for x in ("1/256", "0.00390625")
        )
        assert fraction.digest == decimal.digest


PRIOR, SAMPLES = "threat_model.prior", "mechanism.monte_carlo.samples"


@pytest.mark.parametrize(
    ("overrides", "code", "path"),
    [
        ([f"{PRIOR}.kappa=[0.1, 1.5]"], "out-of-range", f"{PRIOR}.kappa.1"),
        ([f"{PRIOR}.kappa=0"], "out-of-range", f"{PRIOR}.kappa"),
        (["claims.one.kappa=1.2"], "out-of-range", "claims.0.kappa"),
        (["claims.one.kappa=2/256"], "bad-format", "claims.0.kappa"),
        (["claims.one.gamma=0.05"], "bad-value", "claims.0.gamma"),
        ([f"{PRIOR}={{candidates: 101}}"], "bad-value", f"{PRIOR}.candidates"),
        ([f"{PRIOR}={{candidates: 26, from: same-class}}"], "bad-value", f"{PRIOR}.candidates"),
        ([f"{PRIOR}={{candidates: 2, top: 2}}"], "bad-value", f"{PRIOR}.top"),
        ([f"{PRIOR}={{candidates: 3, probabilities: [0.5, 0.5]}}"], "bad-value", f"{PRIOR}.probabilities"),
        ([f"{PRIOR}={{candidates: 2, probabilities: [0.5, 0.6]}}"], "bad-value", f"{PRIOR}.probabilities"),
        ([f"{PRIOR}={{kappa: 0.1, top: 3}}"], "missing-key", PRIOR),
        (["threat_model.adjacency=replace-one"], "unsupported", "threat_model.adjacency"),
        (["threat_model.group_size=[1, 4]"], "unsupported", "threat_model.group_size"),
        (["mechanism.sampling={scheme: fixed, batch_size: 10}"], "unsupported", "mechanism.sampling.scheme"),
        (["mechanism.sampling={scheme: shuffled, batch_size: 10}"], "unsupported", "mechanism.sampling.scheme"),
        ([f"{PRIOR}={{candidates: 65, from: planted}}"], "bad-value", f"{PRIOR}.candidates"),
        ([*LAPLACE[:4], "mechanism.sensitivity={l2: 1.0}"], "unsupported", "mechanism.sensitivity.l2"),
        (["mechanism.noise=laplace"], "unsupported", "mechanism.clip_norm"),
        ([*LAPLACE, "mechanism.noise=gaussian"], "unsupported", "mechanism.sensitivity.l1"),
        ([*LAPLACE, "mechanism.baselines=[clt-printed]"], "unsupported", "mechanism.baselines.0"),
        ([*LAPLACE, "mechanism.scale=0"], "no-noise", "mechanism.scale"),
        (["mechanism.scale=2.0"], "conflicting-key", "mechanism.noise_multiplier"),
        (["mechanism.noise_multiplier=0"], "no-noise", "mechanism.noise_multiplier"),
        (["mechanism.monte_carlo={samples: 100000000}", "mechanism.steps=50"], "bad-value", SAMPLES),
        (["claims=[{id: pure, kind: pure-dp, epsilon: 1.0}]"], "unsupported", "claims.0.kind"),
    ],
)
def test_what_cannot_be_audited_is_located(tmp_path: Path, overrides: list[str], code: str, path: str) -> None:
    found = diagnostics(tmp_path, *overrides)
    assert (code, path) in [(d.code, ".".join(map(str, d.path))) for d in found], found
    assert all(d.span is not None for d in found)


NO_BASELINES = "mechanism.baselines=[]"
ATTACKED = [
    "data={kind: synthetic, records: 80, features: 12, classes: 4}",
    "model={kind: linear}",
    f"{PRIOR}={{candidates: 8}}",
    "audit={method: many-run, runs: 4}",
]
MIXED = "mechanism.phases=[{steps: 3}, {steps: 3, noise: gaussian, sensitivity: {l2: 0.5}}]"


@pytest.mark.parametrize(
    ("overrides", "code", "path"),
    [
        (["audit.method=one-run"], "unsupported", "audit.method"),
        (["audit.canary={count: 3}"], "unsupported", "audit.canary"),
        ([f"{PRIOR}={{kappa: 0.1}}"], "missing-key", PRIOR),
        ([f"{PRIOR}=null"], "missing-key", "threat_model"),
        (["training.optimizer={kind: adam}"], "unsupported", "training.optimizer"),
        (["data={kind: declared, records: 80, features: 12, classes: 4}"], "data-not-at-hand", "audit"),
        (["model=null"], "no-model", "audit"),
        ([*LAPLACE, NO_BASELINES, "training.backend=opacus"], "missing-capability", "training.backend"),
        ([*LAPLACE, NO_BASELINES, "mechanism.steps=null", MIXED], "unsupported", "mechanism.phases.1.noise"),
    ],
)
def test_what_cannot_be_attacked_can_be_bounded(tmp_path: Path, overrides: list[str], code: str, path: str) -> None:
    found = diagnostics(tmp_path, *ATTACKED, *overrides)
    assert (code, path) in [(d.code, ".".join(map(str, d.path))) for d in found]
    assert not [d for d in diagnostics(tmp_path, *ATTACKED, *overrides, "audit=null") if d.severity == "error"]


def test_phases_are_told_apart(tmp_path: Path) -> None:
    phases = "[{steps: 4}, {steps: 6, sampling: {scheme: fixed, batch_size: 10}}]"
    found = diagnostics(tmp_path, "mechanism.steps=null", f"mechanism.phases={phases}")
    assert [".".join(map(str, d.path)) for d in found] == ["mechanism.phases.1.sampling.scheme"]
