"""The attack against what theory says of it: scores, guesses, and the bounds that follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.attacks import attacked, moments, outcomes_of, trials_of

from dpspec.contract import Check, Finding, FrozenMap, Spec, TrainingJob, Trial
from dpspec.contract.frozen import canonical_json
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.kit import coins_by_size
from dpspec.registry.loader import load_catalog
from dpspec.stats.attacks import curve_lines, evidence_tests, one_run
from dpspec.training.loop import native
from dpspec.training.loop.native import Update, parts_of
from dpspec_group import attack, evidence, scores, theory
from dpspec_group.options import Attack
from dpspec_group.scores import score_distribution

#: More records and canaries than the small audit has, in rarer batches.
MORE = (
    "mechanism={kind: group, noise_multiplier: 1.5, clip_norm: 0.5, sampling: {scheme: poisson, rate: 0.1}, steps: 40}",
    "data={kind: synthetic, records: 120, features: 40, classes: 10, seed: 2}",
    "claims.one.epsilon=9.0",
    "claims.four.epsilon=90.0",
    "audit.canary.count=400",
)


def spec_of(folder: Path, *overrides: str) -> Spec:
    return attacked(folder, *MORE, *overrides)


def pooled(trials: list[Trial], group_size: int) -> tuple[np.ndarray, np.ndarray]:
    at = [trial.arrays["group_sizes"] == group_size for trial in trials]
    columns = [[trial.arrays[name][a] for trial, a in zip(trials, at, strict=True)] for name in ("scores", "coins")]
    return np.concatenate(columns[0]), np.concatenate(columns[1])


@pytest.fixture(scope="module")
def one_trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Spec, list[Trial]]:
    spec = spec_of(tmp_path_factory.mktemp("small"))
    return spec, trials_of(spec, 0)


def follow(spec: Spec, trials: list[Trial], size: int, records: int, spread: float = 0.0) -> None:
    """Mean scores within 4.5 standard errors of theory: a correct attack fails this about once in 10^5 runs.

    What sampling leaves of the real gradients widens the scores a little: a tenth of a deviation is allowed.
    """
    scores, coins = pooled(trials, size)
    pairs = [(theory.canary_mixture(p, size, records, spread=spread), int(p["steps"])) for p in spec.phases]
    expected = moments(score_distribution(pairs))
    for found, mean, std in zip((scores[coins == 0], scores[coins == 1]), expected[::2], expected[1::2], strict=True):
        assert abs(found.mean() - mean) < std * (4.5 / len(found) ** 0.5 + 0.1)
    assert 0.7 < scores[coins == 0].std() / expected[1] < 1.4


def test_scores_follow_the_law_that_the_design_assumes(one_trial: tuple[Spec, list[Trial]]) -> None:
    spec, trials = one_trial
    for size in (1, 4):
        assert len(pooled(trials, size)[0]) == 200
        follow(spec, trials, size, 120)


def test_near_identical_members_are_seen_along_the_cosine(tmp_path: Path) -> None:
    """Scores follow the law of members that are 0.9 radians off: its cosine, 0.62, is far from 1."""
    spec = spec_of(tmp_path, "audit.canary.spread=0.9", "audit.canary.count=200", "threat_model.group_size=[4]")
    trials = trials_of(spec, 0)
    follow(spec, trials, 4, 120, 0.9)
    assert all(o.p_value > 1e-9 for o in outcomes_of(spec, trials) if isinstance(o, Check))


def test_with_batches_of_a_fixed_size_the_law_knows_of_the_canaries(tmp_path: Path) -> None:
    """500 planted records on average make each of them rarer in a batch, and scores follow the rarer law."""
    spec = spec_of(tmp_path, "mechanism.sampling={scheme: fixed, batch_size: 60}", "mechanism.steps=60")
    follow(spec, trials_of(spec, 0), 4, 120 + 500)


def test_a_trial_is_reproducible_and_its_seed_matters(one_trial: tuple[Spec, list[Trial]], tmp_path: Path) -> None:
    spec, (first,) = one_trial
    assert trials_of(spec, 0)[0].evidence == first.evidence
    assert trials_of(spec, 1)[0].evidence["outcomes"] != first.evidence["outcomes"]
    assert trials_of(spec_of(tmp_path, "audit.seed=12"), 0)[0].evidence["outcomes"] != first.evidence["outcomes"]


def test_an_estimate_as_if_gaussian_and_mu_are_near_the_truth_of_a_gaussian_mechanism(tmp_path: Path) -> None:
    """Full batches, 400 coins of groups of 4: mu is 4 sqrt(10) / 10, its interval about 0.2 wide either way."""
    overrides = ("mechanism.sampling={scheme: full}", "mechanism.noise_multiplier=10.0", "mechanism.steps=10")
    spec = spec_of(tmp_path, *overrides, "threat_model.group_size=[4]")
    found = [o for o in outcomes_of(spec, trials_of(spec, 0)) if isinstance(o, Finding)]
    (estimate,) = (o for o in found if o.bound == "estimate" and o.quantity == "epsilon")
    true = 4 * 10**0.5 / 10
    low, high = (curve_lines.gaussian_epsilon(true + d, 1e-5) for d in (-0.4, 0.4))
    assert low < estimate.value < high
    (mu,) = (o for o in found if o.quantity == "mu")
    (epsilon,) = (o for o in found if o.quantity == "epsilon" and o.bound == "lower")
    assert epsilon.value < curve_lines.gaussian_epsilon(mu.value, 1e-5)
    assert mu.value < true


def test_what_is_told_is_the_order_of_the_coins(tmp_path: Path) -> None:
    plan = Attack.of(spec_of(tmp_path, "threat_model.group_size=2", "claims.four.group_size=2"))
    scores, coins = [5.0, -1.0, 3.0, -4.0, 0.0, 2.0], "101011"
    told = attack._outcomes(plan, np.full(6, 2), np.array([int(c) for c in coins]), np.array(scores))
    assert told == [[2, "001111"]]
    equal = attack._outcomes(plan, np.full(4, 2), np.array([1, 0, 1, 0]), np.zeros(4))
    assert equal == [[2, "1010"]]  # the order of equal scores does not depend on the coins
    trial = Trial(index=0, evidence=FrozenMap({"outcomes": told, "records": 10}))
    assert coins_by_size(trial, {2: plan.tested(6)}) == {2: "001111"}
    with pytest.raises(ValueError, match="coins must be 7"):
        coins_by_size(trial, {2: plan.tested(7)})


def test_scores_belong_to_their_group_size_in_whatever_order_the_sizes_are_given(tmp_path: Path) -> None:
    """Given as [4, 1], larger groups must still stand out more: they did not, and single records were slandered."""
    spec = spec_of(tmp_path, "threat_model.group_size=[4, 1]")
    trials = trials_of(spec, 0)
    gaps = {}
    for size in (1, 4):
        scores, coins = pooled(trials, size)
        gaps[size] = scores[coins == 1].mean() - scores[coins == 0].mean()
    assert 0.0 < 3 * gaps[1] < gaps[4]


def test_the_lower_bound_of_perfect_guesses_is_what_the_design_said(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "threat_model.group_size=1", "claims.four.group_size=1", "audit.canary.count=400")
    trial = Trial(index=0, evidence=FrozenMap({"outcomes": [[1, "0" * 200 + "1" * 200]], "records": 120}))
    proof, bound, mu, estimate, *_ = evidence.one_run_bounds(spec, [trial])
    assert bound.value == proof.power == scores.one_run_design(spec, 120, 400, 1).largest_epsilon
    assert (mu.quantity, mu.bound, mu.rigor, mu.at) == ("mu", "lower", "statistical", FrozenMap({"group_size": 1}))
    assert mu.value == one_run.mu_lower(400, 100, 100, 0.95) > 1.0
    assert "400 canary groups of 1, 100 guesses; rules out noise multipliers >= " in mu.method
    assert (estimate.bound, estimate.rigor) == ("estimate", "approximate")
    assert proof.statistics["guesses"] == proof.statistics["correct"]
    assert bound.value == evidence_tests.epsilon_lower(proof, 1e-5, 0.95)


def train_with(spec: Spec, change: Callable[[TrainingJob], TrainingJob], update: Update | None = None) -> list[Trial]:
    class Broken:
        def train(self, job: TrainingJob) -> None:
            parts = parts_of(change(job))
            native.train_with(job, parts if update is None else replace(parts, update=update))

    prepared = prepare(spec, load_catalog())
    inputs = prepared.audit.trial_inputs(spec)
    context = RunContext(prepared, load_catalog(), inputs, device="cpu")
    context.__dict__["trainer"] = Broken()
    return list(prepared.audit.trials(inputs, context, [0]))


@pytest.mark.parametrize(
    "scheme", ["{scheme: poisson, rate: 0.1}", "{scheme: fixed, batch_size: 12}", "{scheme: full}"]
)
def test_a_run_that_ends_in_its_first_phase_deviates(tmp_path: Path, scheme: str) -> None:
    phases = "[{steps: 4}, {steps: 6, noise_multiplier: 3.0}]"
    overrides = ("mechanism.steps=null", f"mechanism.phases={phases}", f"mechanism.sampling={scheme}")
    spec = spec_of(tmp_path, *overrides, "audit.canary.count=40")
    trials = train_with(spec, lambda job: replace(job, phases=job.phases[:1]))
    checks = {(o.assumption, o.note): o for o in outcomes_of(spec, trials) if isinstance(o, Check)}
    for note in ("released models", "steps in the logs"):
        assert (checks["steps", note].p_value, checks["steps", note].measured) == (0.0, 4.0)


@pytest.mark.parametrize("access", ["all-iterates", "final-model"])
@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_model_that_diverges_leaves_finite_evidence(tmp_path: Path, factor: float, access: str) -> None:
    spec = spec_of(tmp_path, "mechanism.steps=4", "audit.canary.count=40", f"threat_model.access={access}")
    trials = train_with(spec, lambda job: job, lambda state, noisy: (state - noisy) * factor)
    canonical_json(trials[0].evidence)
    measured = [
        o
        for o in outcomes_of(spec, trials)
        if isinstance(o, Check) and o.assumption == "noise-scale" and o.observed == "measured"
    ]
    assert measured
    assert {(check.p_value, check.detectable) for check in measured} == {(1.0, None)}
