"""Worst-case initial weights: their scope, independence of coins, and the bounds of final models."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import check, prepare
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import SpecError
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog
from dpspec.stats.attacks import curve_lines
from dpspec_group.evidence import mu_of_runs

CATALOG = load_catalog()

DOCUMENT: dict[str, Any] = {
    "dpspec": 1,
    "name": "chosen",
    "mechanism": {
        "kind": "group",
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "sampling": {"scheme": "full"},
        "steps": 4,
    },
    "data": {"kind": "synthetic", "records": 40, "features": 8},
    "model": {"kind": "linear", "initial": "worst-case"},
    "threat_model": {"access": "final-model"},
    "claims": [
        {"id": "one", "kind": "approx-dp", "epsilon": 10.0, "delta": 1e-5},
        {"id": "mu", "kind": "gdp", "mu": 0.2, "refuted_by": "attack", "expect": "refuted"},
    ],
    "audit": {"method": "many-run", "canary": {"space": "input", "kind": "blank"}, "runs": 100, "seed": 2},
}


ACCURATE = {"id": "useful", "kind": "metric", "name": "accuracy", "at_least": 0.5}
PER_INSTANCE = {
    "mechanism": {**DOCUMENT["mechanism"], "kind": "per-instance"},
    "claims": [{"id": "i", "kind": "per-instance-dp", "epsilon": 1.0, "delta": 1e-5, "record": 0}],
    "threat_model": {},
    "audit": {"method": "one-run"},
}


def spec(**blocks: Any):
    return from_document({**DOCUMENT, **blocks}, CATALOG, ".")


def weights(one: Any) -> dict[str, torch.Tensor]:
    made = prepare(one, CATALOG)
    context = RunContext(made, CATALOG, made.trial_inputs(), device="cpu")
    return context.model.build(context.seed(0, "model")).state_dict()


@pytest.mark.ci
def test_a_final_model_depends_on_one_record(tmp_path: Path) -> None:
    result = run([spec()], CATALOG, store=Store(tmp_path))
    (audit,) = result.audits
    assert [v.verdict for v in audit.verdicts] == ["proved", "refuted"]
    lower = [f for f in audit.findings if f.bound == "lower" and f.scope.pipeline == "executed"]
    shown = {f.quantity: f.value for f in lower}
    assert 0.0 < shown["epsilon"] < 10.0
    assert 0.8 < shown["mu"] < 2.0  # the truth is 2
    chosen = {a.name: a.status for f in lower for a in f.assumptions}
    assert chosen["worst-case-initial-weights"] == "by-construction"
    assert chosen["independent-runs"] == "by-construction"
    assert all("worst-case initial weights" in f.method for f in lower)
    upper = [f for f in audit.findings if f.bound == "upper" and f.scope.pipeline == "declared"]
    assert upper
    assert all("same-initial-weights" in {a.name for a in f.assumptions} for f in upper)
    assert not any(f.quantity == "accuracy" for f in audit.findings)
    assert verify(result, CATALOG, directory=".") == ()


@pytest.mark.ci
def test_weights_follow_from_the_records_alone() -> None:
    """Weights do not depend on coins, canaries, seeds, noise or the number of runs."""
    first = weights(spec())
    noisy = {**DOCUMENT["mechanism"], "noise_multiplier": 3.0}
    others = [
        spec(audit={**DOCUMENT["audit"], "seed": 9}),
        spec(audit={**DOCUMENT["audit"], "canary": {"space": "input", "kind": "noise"}}),
        spec(mechanism=noisy),
    ]
    for other in others:
        assert all(torch.equal(first[name], tensor) for name, tensor in weights(other).items())
    fewer = weights(spec(data={**DOCUMENT["data"], "records": 39}))
    assert any(not torch.equal(first[name], tensor) for name, tensor in fewer.items())


def test_they_are_part_of_what_a_trial_is() -> None:
    chosen, drawn = (prepare(one, CATALOG) for one in (spec(), spec(model={"kind": "linear"})))
    assert chosen.trial_inputs() != drawn.trial_inputs()
    assert chosen.facts.initial_weights is None


@pytest.mark.parametrize(
    ("blocks", "path", "words"),
    [
        ({"claims": [ACCURATE]}, ("claims", 0), "without privacy"),
        (PER_INSTANCE, ("model", "initial"), "'per-instance' do not hold for weights"),
    ],
)
def test_what_speaks_of_other_weights_is_refused(blocks: dict[str, Any], path: tuple[Any, ...], words: str) -> None:
    found = [d for d in check(spec(**blocks), CATALOG) if d.code == "unsupported" and words in d.message]
    assert [d.path for d in found] == [path]
    with pytest.raises(SpecError, match="'worst' is not a valid initial"):
        spec(model={"kind": "linear", "initial": "worst"})


@pytest.mark.ci
def test_mu_of_many_runs_says_what_it_is() -> None:
    (finding,) = mu_of_runs(spec(), 40, 1, "0" * 50 + "1" * 50)
    assert (finding.quantity, finding.bound, finding.rigor) == ("mu", "lower", "statistical")
    assert f"epsilon {curve_lines.gaussian_epsilon(finding.value, 1e-5):.4g} at delta 1e-05" in finding.method
    (nothing,) = mu_of_runs(spec(), 40, 1, "10" * 50)
    assert nothing.value == 0.0
    assert "for a Gaussian mechanism" not in nothing.method
    assert list(mu_of_runs(spec(), 40, 1, "011")) == []
    assert dataclasses.asdict(finding)["confidence"] == 0.95


@pytest.mark.ci
@pytest.mark.parametrize("mu", [0.0, 1.0, 2.0])
def test_mu_of_many_runs_is_below_the_truth(mu: float) -> None:
    """400 sets of 100 runs: at most 5% exceed the truth; more than 7.9% has probability 1/100 (binomial)."""
    rng, one, above = np.random.default_rng(int(10 * mu)), spec(), 0
    for _ in range(400):
        coins = rng.integers(0, 2, 100)
        ordered = coins[np.argsort(rng.normal(size=100) + mu * coins)]
        (finding,) = mu_of_runs(one, 40, 1, "".join(map(str, ordered)))
        above += finding.value > mu
    assert above <= 0.079 * 400
