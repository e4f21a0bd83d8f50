"""The reconstruction attack for Gaussian and Laplace noise, and its candidates."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.rero_attacks import LAPLACE, SCALED, Alone, clipped_gradient, context_of, judged, quiet, spec_of, trials_of
from support.seen_run import SeenRun

from dpspec.contract import Check, DataError, Evidence, Finding, FrozenMap, Series, TrainingJob, Trial
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec.stats import binomial
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop import native
from dpspec.training.loop.native import parts_of
from dpspec_rero import ReroAudit, attack
from dpspec_rero.attack import AbsoluteSum, Reader, hide_target, make_job, make_records, train_all
from dpspec_rero.options import Candidates, Steps
from dpspec_rero.theory import Leakage

PLANTED = "threat_model.prior={candidates: 8, from: planted}"


class Twice(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner = torch.nn.Linear(12, 12)
        self.again = self.inner
        self.tied = torch.nn.Linear(12, 12, bias=False)
        self.tied.weight = self.inner.weight
        self.head = torch.nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.tied(torch.tanh(self.again(torch.tanh(self.inner(x)))))))


@pytest.mark.family
@pytest.mark.parametrize("noise", ["gaussian", "scaled", "laplace"])
@pytest.mark.parametrize("sampling", ["{scheme: poisson, rate: 0.3}", "{scheme: full}"])
@pytest.mark.parametrize("module", [None, Twice])
def test_likelihoods_are_those_of_a_slow_loop(tmp_path, sampling, noise, module):
    """With noise of either law, and where parameters are tied."""
    given = {"gaussian": (), "scaled": SCALED, "laplace": LAPLACE}[noise]
    spec = spec_of(tmp_path, f"mechanism.sampling={sampling}", "mechanism.steps=4", *given)
    context, inputs = context_of(spec)
    data = context.data
    hidden = hide_target(Candidates(count=8), data.train_x, data.train_y, 4, seed=5)
    places, rows = hidden.places, hidden.rows
    job = make_job(inputs, context, 0, (data.train_x[rows], data.train_y[rows]))
    job = job if module is None else replace(job, model=module())
    x, y = torch.tensor(data.train_x), torch.tensor(data.train_y)
    reader = Reader([job], [torch.from_numpy(rows)], torch.from_numpy(places)[None], x, y, iterates=True)
    kept = SeenRun()
    train_all(context, [replace(job, observers=(*reader.observers(), kept))])
    q = 0.3 if "poisson" in sampling else 1.0
    scale, clip, rate, ord = (0.3, 0.5, 0.2, 1) if noise == "laplace" else (0.4, 0.5, 0.2, 2)
    divisor = job.expected_batch_size if spec.training["reduction"] == "mean" else 1.0
    expected, seen = np.zeros(8), 0.0
    for step in range(4):
        before, after = kept.states[step], kept.states[step + 1]
        rest = (before - after).double() * divisor / rate
        for i in kept.indices[step].tolist():
            if i < len(rows) - 1:
                at = rows[i]
                rest -= clipped_gradient(job.model, before, data.train_x[at], int(data.train_y[at]), clip, ord)
        for c, at in enumerate(places):
            g = clipped_gradient(job.model, before, data.train_x[at], int(data.train_y[at]), clip, ord)
            if noise == "laplace":
                loss = float(rest.abs().sum() - (rest - g).abs().sum()) / scale
            else:
                loss = float(rest @ g - g @ g / 2) / scale**2
            expected[c] += math.log(1.0 - q + q * math.exp(loss))
        there = len(rows) - 1 in kept.indices[step].tolist()
        own = clipped_gradient(job.model, before, data.train_x[rows[-1]], int(data.train_y[rows[-1]]), clip, ord)
        left = (rest - own if there else rest) / scale
        seen += float(2.0 * left.abs().sum() if noise == "laplace" else left.square().sum())
    assert reader.scores[0].numpy() == pytest.approx(expected, abs=2e-3)
    assert float(reader.noise[0]) == pytest.approx(seen, rel=1e-4)
    assert reader.degrees == 4 * len(left) * (2 if noise == "laplace" else 1)


def named(trials: Sequence[Trial]) -> int:
    return sum(trial.evidence["rank"] == 0 for trial in trials)


@pytest.mark.ci
def test_runs_together_and_alone_rank_alike(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    together, alone = trials_of(spec, 6), trials_of(spec, 6, Alone())
    assert [t.evidence["rank"] for t in together] == [t.evidence["rank"] for t in alone]


DP_SGD_CHECKS = {"steps", "noise-scale", "per-layer-noise", "independent-noise", "sampling", "clipping"}
LAPLACE_CHECKS = {"steps", "noise-scale", "sampling", "clipping"}
LAPLACE_CASE = ("planted", 8, 0.2, [*LAPLACE, "mechanism.scale=0.2"], 32)


@pytest.mark.family
@pytest.mark.parametrize(
    ("source", "candidates", "noise", "how", "count"),
    [
        ("all", 8, 0.5, [], 64),
        ("all", 8, 1.5, [], 64),
        ("planted", 32, 1.0, [], 96),
        pytest.param(*LAPLACE_CASE, marks=pytest.mark.ci),
    ],
)
def test_success_stays_below_the_bound_and_well_above_guessing(tmp_path, source, candidates, noise, how, count):
    """A correct attack fails either test for at most 1 in 10^4 seeds; inserted records come close to the bound."""
    prior = f"threat_model.prior={{candidates: {candidates}, from: {source}}}"
    how = how or [f"mechanism.noise_multiplier={noise}"]
    spec = spec_of(tmp_path, *how, prior, f"claims.c.kappa={1 / candidates}")
    trials = trials_of(spec, count)
    right = named(trials)
    (gamma,) = Leakage(tuple(map(Steps.of, spec.phases))).gammas([1 / candidates])
    assert binomial.at_least(right, count, gamma.upper) > 1e-4
    if candidates == 32:
        assert binomial.at_most(right, count, gamma.lower / 1.5) > 0.5
    elif noise < 1.0:
        assert binomial.at_least(right, count, 1 / candidates) < 1e-4
    checks = {o.assumption: o for o in ReroAudit().conclude(spec, trials) if isinstance(o, Check)}
    assert all(check.p_value > 1e-6 for check in checks.values())
    if candidates == 32 or source == "all":
        assert set(checks) >= DP_SGD_CHECKS
        return
    assert set(checks) == LAPLACE_CHECKS
    assert checks["noise-scale"].measured == pytest.approx(1.0, abs=0.02)
    assert checks["noise-scale"].detectable is not None
    assert checks["noise-scale"].detectable < 0.06


@pytest.mark.parametrize("noise", ["gaussian", pytest.param("laplace", marks=pytest.mark.ci)])
def test_without_its_noise_the_pipeline_is_contradicted(tmp_path, monkeypatch, noise):
    monkeypatch.setattr(attack, "train_all", lambda context, jobs: train_all(context, [quiet(job) for job in jobs]))
    how = [*LAPLACE, PLANTED, "mechanism.scale=2.0"] if noise == "laplace" else ["mechanism.noise_multiplier=2.0"]
    spec = spec_of(tmp_path, *how, "claims.c.gamma=0.5")
    trials = trials_of(spec, 24)
    found = judged(spec, trials)
    assert found.verdicts[0].verdict == "contradicted"
    assert found.conformance.status == "deviates"


@pytest.mark.ci
def test_the_final_model_alone_shows_less_and_not_nothing(tmp_path: Path) -> None:
    quiet = "mechanism.noise_multiplier=0.05"
    final = trials_of(spec_of(tmp_path, quiet, "threat_model.access=final-model"), 48)
    right = named(final)
    assert binomial.at_least(right, 48, 0.125) < 1e-4
    assert right < named(trials_of(spec_of(tmp_path, quiet), 48))
    assert final[0].evidence["noise"]["degrees"] == 0


def test_evidence_speaks_of_kappa_and_counts_the_first_m(tmp_path: Path) -> None:
    prior = "threat_model.prior={candidates: 4, probabilities: [0.4, 0.3, 0.2, 0.1], top: 2}"
    spec = spec_of(tmp_path, prior)
    common = {"records": 77, "steps": 12, "included": [277], "noise": {"statistic": 600.0, "degrees": 600}}
    ranks = [0, 1, 2, 3, 1, 0, 3, 1]
    trials = [Trial(index=i, evidence=FrozenMap({**common, "rank": rank})) for i, rank in enumerate(ranks)]
    outcomes = list(ReroAudit().conclude(spec, trials))
    (evidence,) = [o for o in outcomes if isinstance(o, Evidence)]
    assert evidence.at["kappa"] == pytest.approx(0.7)
    assert dict(evidence.statistics) == {"trials": 8, "successes": 5}
    (bound,) = [o for o in outcomes if isinstance(o, Finding)]
    assert bound.value == pytest.approx(binomial.lower(5, 8, 0.95))
    (table,) = [o for o in outcomes if isinstance(o, Series)]
    assert table.columns["success"] == (0.25, 0.625)
    assert table.columns["kappa"] == pytest.approx((0.4, 0.7))


@pytest.mark.ci
def test_targets_are_hidden_by_the_prior_and_candidates_are_of_one_class_where_asked() -> None:
    labels = np.repeat([0, 1, 2], [5, 30, 40]).astype(np.int64)
    masses = (0.5, 0.25, 0.125, 0.125)
    x = np.zeros((75, 2), dtype=np.float32)
    positions = np.zeros(4)
    for seed in range(2000):
        hidden = hide_target(Candidates(count=4, masses=masses), x, labels, 3, seed)
        assert len(set(hidden.places.tolist())) == 4
        assert hidden.rows.tolist() == [
            *sorted(set(range(75)) - set(hidden.places.tolist())),
            hidden.places[hidden.target],
        ]
        positions[hidden.target] += 1
    assert np.abs(positions / 2000 - masses).max() < 0.05  # 4.4 standard deviations
    for seed in range(50):
        places = hide_target(Candidates(count=20, source="same-class"), x, labels, 3, seed).places
        assert len(set(labels[places].tolist())) == 1
        assert labels[places[0]] > 0
    with pytest.raises(DataError, match="no class has 41"):
        hide_target(Candidates(count=41, source="same-class"), x, labels, 3, 0)


def test_a_likelier_candidate_is_named_where_nothing_is_seen(tmp_path: Path) -> None:
    """Under noise that drowns everything the prior decides: success is its largest mass."""
    prior = "threat_model.prior={candidates: 4, probabilities: [0.7, 0.1, 0.1, 0.1]}"
    spec = spec_of(tmp_path, prior, "mechanism.noise_multiplier=1000", "mechanism.steps=2")
    right = named(trials_of(spec, 64))
    assert 0.45 < right / 64 < 0.92


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_model_that_diverges_leaves_finite_evidence(tmp_path: Path, factor: float) -> None:
    spec = spec_of(tmp_path, "mechanism.steps=3")

    class Diverging:
        def train(self, job: TrainingJob) -> None:
            parts = parts_of(job)
            native.train_with(job, replace(parts, update=lambda state, noisy: (state - noisy) * factor))

    (trial,) = trials_of(spec, 1, Diverging())
    assert math.isfinite(trial.evidence["noise"]["statistic"])
    assert 0 <= trial.evidence["rank"] < 8


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


def test_runs_are_trained_one_by_one(tmp_path: Path) -> None:
    plan = prepare(spec_of(tmp_path, *LAPLACE), load_catalog()).plan()
    assert [len(chunk) for chunk in plan.chunks] == [1] * 64


def data(records: int = 50, features: tuple[int, ...] = (1, 4, 5), classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(0)
    x = source.normal(size=(records, *features)).astype(np.float32)
    return x, source.integers(0, classes, size=records)


def test_planted_records_differ_in_feature_or_label_and_are_as_long_as_the_longest() -> None:
    x, y = data()
    made, labels = make_records(60, x, y, 3, np.random.default_rng(1))
    assert made.shape == (60, 1, 4, 5)
    assert made.dtype == np.float32
    flat = made.reshape(60, -1)
    assert ((flat != 0).sum(1) == 1).all()
    assert np.linalg.norm(flat, axis=1) == pytest.approx(np.linalg.norm(x.reshape(50, -1), axis=1).max())
    assert len(set(zip(flat.argmax(1).tolist(), labels.tolist(), strict=True))) == 60
    with pytest.raises(DataError, match="20 features and 3 classes tell 60 records apart"):
        make_records(61, x, y, 3, np.random.default_rng(1))


def test_planted_records_join_all_others_and_the_seed_decides_which() -> None:
    x, y = data()
    one, again, other = (hide_target(Candidates(count=8, source="planted"), x, y, 3, seed) for seed in (4, 4, 5))
    assert one.places.tolist() == list(range(50, 58))
    assert one.rows.tolist() == [*range(50), 50 + one.target]
    assert (one.x == again.x).all()
    assert one.target == again.target
    assert not (one.x == other.x).all()
