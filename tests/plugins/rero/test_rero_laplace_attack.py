"""Laplace noise under attack: gradients scaled to an l1 norm, a bound that holds, noise that is missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.rero_attacks import LAPLACE, context_of, judged, quiet, spec_of, trials_of

from dpspec.contract import Check, phases_of
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec.stats import binomial
from dpspec.training.gradients.persample import FlatModel
from dpspec_rero import training
from dpspec_rero.mechanism import ReroAudit
from dpspec_rero.options import declared_steps, trained_phases
from dpspec_rero.theory import Leakage
from dpspec_rero.training import AbsoluteSum

PLANTED = "threat_model.prior={candidates: 8, from: planted}"


def test_gradients_are_scaled_to_an_l1_norm() -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(5, 3)
    x, y = torch.randn(7, 5), torch.randint(0, 3, (7,))
    x[3] = 1e30  # its gradient is longer than any float: it counts as nothing
    x[3, 0] = float("nan")
    model = FlatModel(module)
    state = model.initial()
    found = AbsoluteSum(model, x, y)(state, torch.arange(7), 0.5)
    expected = torch.zeros(len(state), dtype=torch.float64)
    norms = []
    for i in range(7):
        module.zero_grad()
        torch.nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1]).backward()
        g = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]).double()
        g = torch.zeros_like(g) if i == 3 else g * min(1.0, 0.5 / float(g.abs().sum()))
        norms.append(float(g.abs().sum()))
        expected += g
    assert found.sum.double() == pytest.approx(expected, abs=1e-6)
    assert found.norms.tolist() == pytest.approx(norms, abs=1e-6)
    assert float(found.norms.max()) <= 0.5 * (1.0 + 1e-6)
    assert AbsoluteSum(model, x, y)(state, torch.arange(0), 0.5).norms.shape == (0,)


@pytest.mark.ci
def test_success_stays_below_the_bound_and_well_above_guessing(tmp_path: Path) -> None:
    """A correct attack fails either test once in 10^4 seeds at most."""
    spec = spec_of(tmp_path, *LAPLACE, PLANTED, "mechanism.scale=0.2")
    trials = trials_of(spec, 32)
    right = sum(trial.evidence["rank"] == 0 for trial in trials)
    (gamma,) = Leakage(declared_steps(spec.phases)).gammas([0.125])
    assert binomial.at_least(right, 32, gamma.upper) > 1e-4
    assert binomial.at_least(right, 32, 0.125) < 1e-4
    checks = {o.assumption: o for o in ReroAudit().conclude(spec, trials) if isinstance(o, Check)}
    assert set(checks) == {"steps", "noise-scale", "sampling", "clipping"}
    assert all(check.p_value > 1e-6 for check in checks.values())
    assert checks["noise-scale"].measured == pytest.approx(1.0, abs=0.02)
    assert checks["noise-scale"].detectable is not None
    assert checks["noise-scale"].detectable < 0.06


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    train = training._train_laplace
    monkeypatch.setattr(training, "_train_laplace", lambda job: train(quiet(job)))


@pytest.mark.usefixtures("without_noise")
def test_without_its_noise_the_pipeline_is_contradicted(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, *LAPLACE, PLANTED, "mechanism.scale=2.0", "claims.c.gamma=0.5")
    found = judged(spec, trials_of(spec, 24))
    assert found.verdicts[0].verdict == "contradicted"
    assert found.conformance.status == "deviates"


def test_runs_are_trained_one_by_one(tmp_path: Path) -> None:
    plan = prepare(spec_of(tmp_path, *LAPLACE), load_catalog()).plan()
    assert [len(chunk) for chunk in plan.chunks] == [1] * 64


def test_the_deviation_is_that_of_the_declared_scale(tmp_path: Path) -> None:
    context, inputs = context_of(spec_of(tmp_path, *LAPLACE))
    (phase,) = trained_phases(phases_of(inputs["mechanism"]))
    assert phase["clip_norm"] == 0.5
    assert phase["noise_multiplier"] * phase["clip_norm"] == pytest.approx(0.3 * 2**0.5)
    context.close()


@pytest.mark.parametrize(
    ("overrides", "code", "path"),
    [
        (["training.backend=opacus"], "missing-capability", "training.backend"),
        (
            [
                "mechanism.steps=null",
                "mechanism.phases=[{steps: 3}, {steps: 3, noise: gaussian, sensitivity: {l2: 0.5}}]",
            ],
            "unsupported",
            "mechanism.phases.1.noise",
        ),
    ],
)
def test_what_cannot_be_attacked_is_said_and_located(
    tmp_path: Path, overrides: list[str], code: str, path: str
) -> None:
    """And can be bounded all the same."""
    spec = spec_of(tmp_path, *LAPLACE, *overrides)
    found = prepare(spec, load_catalog()).diagnostics
    assert [(d.code, ".".join(map(str, d.path))) for d in found] == [(code, path)]
    assert prepare(replace(spec, audit=None), load_catalog()).diagnostics == ()
