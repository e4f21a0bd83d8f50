"""The attack: it reads what was released as a slow loop does, stays below the bound, and finds what is broken."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpspec.contract import Check, DataError, Evidence, Finding, FrozenMap, Observer, Series, Spec, TrainingJob, Trial
from dpspec.engine.context import RunContext
from dpspec.engine.judge import Unjudged, judge
from dpspec.engine.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec.spec.load import load_specs
from dpspec.stats import binomial
from dpspec.training import native
from dpspec.training.native import NativeTrainer, parts_of
from dpspec_rero.attack import _job, _members, hide
from dpspec_rero.audit import ReroAudit
from dpspec_rero.certified import Certified
from dpspec_rero.evidence import successes
from dpspec_rero.prior import Candidates
from dpspec_rero.reading import Reader
from dpspec_rero.steps import declared

TEXT = """\
dpspec: 1
name: small
mechanism:
  kind: rero
  noise_multiplier: 0.8
  clip_norm: 0.5
  sampling: {scheme: poisson, rate: 0.3}
  steps: 12
  baselines: []
data: {kind: synthetic, records: 80, features: 12, classes: 4, seed: 2}
model: {kind: linear}
training: {learning_rate: 0.2}
threat_model: {prior: {candidates: 8}}
claims:
  - {id: c, kind: rero, kappa: 0.125, gamma: 0.9}
audit: {method: many-run, runs: 64, seed: 11}
"""


def spec_of(tmp_path: Path, *overrides: str) -> Spec:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT, encoding="utf-8")
    loaded = load_specs([path], load_catalog(), overrides)
    assert loaded.ok, loaded.diagnostics
    return loaded.specs[0]


def context_of(spec: Spec) -> tuple[RunContext, FrozenMap]:
    prepared = prepare(spec, load_catalog())
    inputs = prepared.audit.trial_inputs(spec)
    return RunContext(prepared, load_catalog(), inputs, device="cpu"), inputs


def trials_of(spec: Spec, count: int, trainer: object | None = None) -> list[Trial]:
    context, inputs = context_of(spec)
    if trainer is not None:
        context.__dict__["trainer"] = trainer
    return list(ReroAudit().trials(inputs, context, range(count)))


class Alone:
    """The native loop without its way of training runs together, and with a part that may be replaced."""

    def __init__(self, change: Callable[[TrainingJob], TrainingJob] = lambda job: job) -> None:
        self._change = change

    def train(self, job: TrainingJob) -> None:
        native.train_with(job, parts_of(self._change(job)))


class Kept(Observer):
    def __init__(self) -> None:
        self.states: list[torch.Tensor] = []
        self.batches: list[torch.Tensor] = []

    def released(self, step: int, state: torch.Tensor) -> None:
        self.states.append(state.clone())

    def sampled(self, step: int, indices: torch.Tensor) -> None:
        self.batches.append(indices.clone())


def clipped_gradient(model: torch.nn.Module, state: torch.Tensor, x: np.ndarray, y: int, clip: float) -> torch.Tensor:
    """One record's gradient by autograd, scaled down to the clip norm."""
    torch.nn.utils.vector_to_parameters(state.clone(), model.parameters())
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.tensor(x)[None]), torch.tensor([y]))
    loss.backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).double()
    return gradient * min(1.0, clip / float(gradient.norm()))


@pytest.mark.parametrize("sampling", ["{scheme: poisson, rate: 0.3}", "{scheme: full}"])
def test_likelihoods_are_those_of_a_slow_loop(tmp_path: Path, sampling: str) -> None:
    spec = spec_of(tmp_path, f"mechanism.sampling={sampling}", "mechanism.steps=4")
    context, inputs = context_of(spec)
    data = context.data
    places, target = hide(Candidates(count=8), data.train_y, seed=5)
    rows = _members(len(data.train_y), places, target)
    job = _job(inputs, context, 0, rows, (0.0, 1.0))
    x, y = torch.tensor(data.train_x), torch.tensor(data.train_y)
    reader = Reader([job], [torch.from_numpy(rows)], torch.from_numpy(places)[None], x, y, iterates=True)
    kept = Kept()
    NativeTrainer().train(replace(job, observers=(*reader.observers(), kept)))
    q = 0.3 if "poisson" in sampling else 1.0
    sigma, clip, rate = 0.8, 0.5, 0.2
    divisor = job.expected_batch_size if spec.training["reduction"] == "mean" else 1.0
    expected = np.zeros(8)
    for step in range(4):
        before, after = kept.states[step], kept.states[step + 1]
        rest = (before - after).double() * divisor / rate
        for i in kept.batches[step].tolist():
            if i < len(rows) - 1:
                at = rows[i]
                rest -= clipped_gradient(job.model, before, data.train_x[at], int(data.train_y[at]), clip)
        for c, at in enumerate(places):
            g = clipped_gradient(job.model, before, data.train_x[at], int(data.train_y[at]), clip)
            loss = float(rest @ g - g @ g / 2) / (sigma * clip) ** 2
            expected[c] += math.log(1.0 - q + q * math.exp(loss))
    assert reader.scores[0].numpy() == pytest.approx(expected, abs=2e-3)


def test_runs_together_and_alone_rank_alike(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    together, alone = trials_of(spec, 6), trials_of(spec, 6, Alone())
    assert [t.evidence["rank"] for t in together] == [t.evidence["rank"] for t in alone]
    assert [t.evidence["internal"]["target"] for t in together] == [t.evidence["internal"]["target"] for t in alone]


@pytest.mark.parametrize("noise", [0.5, 0.8, 1.5])
def test_success_stays_below_the_bound_and_well_above_guessing(tmp_path: Path, noise: float) -> None:
    """64 trials at each of three noise levels. A correct attack fails either test once in 10^4 seeds at most."""
    spec = spec_of(tmp_path, f"mechanism.noise_multiplier={noise}")
    trials = trials_of(spec, 64)
    right = successes(trials, 1)
    (gamma,) = Certified(declared(spec.phases)).gammas([0.125])
    assert binomial.at_least(right, 64, gamma.upper) > 1e-4
    if noise < 1.0:
        assert binomial.at_least(right, 64, 0.125) < 1e-4
    checks = [o for o in ReroAudit().conclude(spec, trials) if isinstance(o, Check)]
    assert {c.assumption for c in checks} == {"steps", "noise-scale", "sampling"}
    assert all(c.p_value > 1e-6 for c in checks)


def test_without_its_noise_the_pipeline_is_contradicted(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "mechanism.noise_multiplier=2.0", "claims.c.gamma=0.5")

    def quiet(job: TrainingJob) -> TrainingJob:
        return replace(job, phases=[FrozenMap({**phase, "noise_multiplier": 0.0}) for phase in job.phases])

    trials = trials_of(spec, 48, Alone(quiet))
    context, _ = context_of(spec)
    audit = ReroAudit()
    outcomes = [*audit.bound(spec, context), *audit.conclude(spec, trials)]
    (judged,) = judge(
        [
            Unjudged(
                spec=spec,
                findings=tuple(o for o in outcomes if isinstance(o, Finding)),
                checks=tuple(o for o in outcomes if isinstance(o, Check)),
                evidence=tuple(o for o in outcomes if isinstance(o, Evidence)),
            )
        ]
    )
    assert judged.verdicts[0].verdict == "contradicted"
    assert judged.conformance.status == "deviates"


def test_the_final_model_alone_shows_less_and_not_nothing(tmp_path: Path) -> None:
    quiet = "mechanism.noise_multiplier=0.05"
    final = trials_of(spec_of(tmp_path, quiet, "threat_model.access=final-model"), 48)
    right = successes(final, 1)
    assert binomial.at_least(right, 48, 0.125) < 1e-4
    assert right < successes(trials_of(spec_of(tmp_path, quiet), 48), 1)
    assert final[0].evidence["noise"]["degrees"] == 0


def test_evidence_speaks_of_kappa_and_counts_the_first_m(tmp_path: Path) -> None:
    prior = "threat_model.prior={candidates: 4, probabilities: [0.4, 0.3, 0.2, 0.1], top: 2}"
    spec = spec_of(tmp_path, prior)
    ranks = [0, 1, 2, 3, 1, 0, 3, 1]
    trials = [
        Trial(
            index=i,
            evidence=FrozenMap(
                {
                    "rank": rank,
                    "records": 77,
                    "steps": 12,
                    "included": [277],
                    "noise": {"statistic": 600.0, "degrees": 600},
                }
            ),
        )
        for i, rank in enumerate(ranks)
    ]
    outcomes = list(ReroAudit().conclude(spec, trials))
    (evidence,) = [o for o in outcomes if isinstance(o, Evidence)]
    assert evidence.at["kappa"] == pytest.approx(0.7)
    assert dict(evidence.statistics) == {"trials": 8, "successes": 5}
    (bound,) = [o for o in outcomes if isinstance(o, Finding)]
    assert bound.value == pytest.approx(binomial.lower(5, 8, 0.95))
    (table,) = [o for o in outcomes if isinstance(o, Series)]
    assert table.columns["success"] == (0.25, 0.625)
    assert table.columns["kappa"] == pytest.approx((0.4, 0.7))


def test_targets_are_hidden_by_the_prior_and_candidates_are_of_one_class_where_asked() -> None:
    labels = np.repeat([0, 1, 2], [5, 30, 40]).astype(np.int64)
    masses = (0.5, 0.25, 0.125, 0.125)
    positions = np.zeros(4)
    for seed in range(2000):
        places, target = hide(Candidates(count=4, masses=masses), labels, seed)
        assert len(set(places.tolist())) == 4
        positions[target] += 1
    assert np.abs(positions / 2000 - masses).max() < 0.05  # 4.4 standard deviations
    for seed in range(50):
        places, _ = hide(Candidates(count=20, source="same-class"), labels, seed)
        assert len(set(labels[places].tolist())) == 1
        assert labels[places[0]] > 0
    with pytest.raises(DataError, match="no class has 41"):
        hide(Candidates(count=41, source="same-class"), labels, 0)


def test_a_likelier_candidate_is_named_where_nothing_is_seen(tmp_path: Path) -> None:
    """Under noise that drowns everything the prior decides: success is its largest mass."""
    prior = "threat_model.prior={candidates: 4, probabilities: [0.7, 0.1, 0.1, 0.1]}"
    spec = spec_of(tmp_path, prior, "mechanism.noise_multiplier=1000", "mechanism.steps=2")
    right = successes(trials_of(spec, 64), 1)
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


@pytest.mark.parametrize(
    ("override", "code", "path"),
    [
        ("audit.method=one-run", "unsupported", "audit.method"),
        ("audit.canary={count: 3}", "unsupported", "audit.canary"),
        ("threat_model.prior={kappa: 0.1}", "missing-key", "threat_model.prior"),
        ("threat_model.prior=null", "missing-key", "threat_model"),
        ("training.optimizer={kind: adam}", "unsupported", "training.optimizer"),
        ("data={kind: declared, records: 80, features: 12, classes: 4}", "data-not-at-hand", "audit"),
        ("model=null", "no-model", "audit"),
    ],
)
def test_what_cannot_be_attacked_is_said_and_located(tmp_path: Path, override: str, code: str, path: str) -> None:
    found = prepare(spec_of(tmp_path, override), load_catalog()).diagnostics
    assert (code, path) in [(d.code, ".".join(map(str, d.path))) for d in found]


@pytest.mark.slow
@pytest.mark.parametrize(("candidates", "runs"), [(16, 256), (256, 128)])
def test_digits_at_three_noise_levels(tmp_path: Path, candidates: int, runs: int) -> None:
    """The lower end is below gamma at each; for sixteen candidates within a factor of 1.5 of it at the middle one."""
    changes = (
        "data={kind: digits, split: {test: 0.2}}",
        "mechanism.clip_norm=0.1",
        "mechanism.steps=30",
        "mechanism.sampling.rate=0.2",
        f"threat_model.prior.candidates={candidates}",
        f"claims.c.kappa={1.0 / candidates}",
        "training.learning_rate=0.02",
    )
    for noise in (0.5, 0.7, 1.0):
        spec = spec_of(tmp_path, *changes, f"mechanism.noise_multiplier={noise}")
        context, inputs = context_of(spec)
        trials = [
            trial
            for start in range(0, runs, 64)
            for trial in ReroAudit().trials(inputs, context, range(start, min(start + 64, runs)))
        ]
        lower = binomial.lower(successes(trials, 1), runs, 0.95)
        (gamma,) = Certified(declared(spec.phases)).gammas([1.0 / candidates])
        assert lower < gamma.lower
        assert lower > 1.2 / candidates
        if noise == 0.7 and candidates == 16:
            assert lower > gamma.upper / 1.5
