"""Compare attacks with theory: scores, guesses, bounds, inserted records and many runs."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.attacks import attacked, moments, outcomes_of, spec_at, trials_of

from dpspec.contract import Check, Evidence, Finding, FrozenMap, Spec, TrainingJob, Trial
from dpspec.contract.attacks import Observed, Records
from dpspec.contract.frozen import canonical_json
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.kit import coins_by_size
from dpspec.registry.loader import load_catalog
from dpspec.stats.attacks import curve_lines, evidence_tests, one_run, thresholds
from dpspec.training.loop import native
from dpspec.training.loop.native import Update, parts_of
from dpspec.training.measure import scores as final_scores
from dpspec_group import attack, evidence, scores
from dpspec_group.evidence import counts, many_run_bounds, runs_of
from dpspec_group.options import EDGES, Attack
from dpspec_group.scores import declared_distribution, many_run_design, score_distribution

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


def follow(spec: Spec, trials: list[Trial], size: int, records: int) -> None:
    """Mean scores within 4.5 standard errors of theory: a correct attack fails this about once in 10^5 runs.

    What sampling leaves of the real gradients widens the scores a little: a tenth of a deviation is allowed.
    """
    found_scores, coins = pooled(trials, size)
    expected = moments(score_distribution(scores.canary_pairs(spec.phases, Attack.of(spec), records, size)))
    by_coin = found_scores[coins == 0], found_scores[coins == 1]
    for found, mean, std in zip(by_coin, expected[::2], expected[1::2], strict=True):
        assert abs(found.mean() - mean) < std * (4.5 / len(found) ** 0.5 + 0.1)
    assert 0.7 < by_coin[0].std() / expected[1] < 1.4


def test_scores_follow_the_law_that_the_design_assumes(one_trial: tuple[Spec, list[Trial]]) -> None:
    spec, trials = one_trial
    for size in (1, 4):
        assert len(pooled(trials, size)[0]) == 200
        follow(spec, trials, size, 120)


@pytest.mark.ci
def test_near_identical_members_are_seen_along_the_cosine(tmp_path: Path) -> None:
    """Scores follow the law of members that are 0.9 radians off: its cosine, 0.62, is far from 1."""
    spec = spec_of(tmp_path, "audit.canary.spread=0.9", "audit.canary.count=200", "threat_model.group_size=[4]")
    trials = trials_of(spec, 0)
    follow(spec, trials, 4, 120)
    assert all(o.p_value > 1e-9 for o in outcomes_of(spec, trials) if isinstance(o, Check))


@pytest.mark.ci
def test_with_batches_of_a_fixed_size_the_law_knows_of_the_canaries(tmp_path: Path) -> None:
    """500 canaries on average lower each record's sampling rate, and scores follow that rate."""
    spec = spec_of(tmp_path, "mechanism.sampling={scheme: fixed, batch_size: 60}", "mechanism.steps=60")
    follow(spec, trials_of(spec, 0), 4, 120 + 500)


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


def test_outcomes_are_the_coins_in_the_order_of_scores(tmp_path: Path) -> None:
    plan = Attack.of(spec_of(tmp_path, "threat_model.group_size=2", "claims.four.group_size=2"))
    scores, coins = [5.0, -1.0, 3.0, -4.0, 0.0, 2.0], "101011"
    outcomes = attack._outcomes(plan, np.full(6, 2), np.array([int(c) for c in coins]), np.array(scores))
    assert outcomes == [[2, "001111"]]
    equal = attack._outcomes(plan, np.full(4, 2), np.array([1, 0, 1, 0]), np.zeros(4))
    assert equal == [[2, "1010"]]  # the order of equal scores does not depend on the coins
    trial = Trial(index=0, evidence=FrozenMap({"outcomes": outcomes, "records": 10}))
    assert coins_by_size(trial, {2: plan.tested(6)}) == {2: "001111"}
    with pytest.raises(ValueError, match="coins must be 7"):
        coins_by_size(trial, {2: plan.tested(7)})


@pytest.mark.ci
def test_scores_belong_to_their_group_size_in_any_order_of_sizes(tmp_path: Path) -> None:
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
    assert mu.value == one_run.mu_lower(400, 200, 200, 0.95) > 1.5
    assert mu.method.endswith("400 canary groups of 1, 200 guesses")
    assert (estimate.bound, estimate.rigor) == ("estimate", "approximate")
    assert proof.statistics["guesses"] == proof.statistics["correct"]
    assert bound.value == evidence_tests.epsilon_lower(proof, 1e-5, 0.95)


def train_with(spec: Spec, change: Callable[[TrainingJob], TrainingJob], update: Update | None = None) -> list[Trial]:
    class Broken:
        def train(self, job: TrainingJob) -> None:
            parts = parts_of(change(job))
            native.train_with(job, parts if update is None else replace(parts, update=update))

    prepared = prepare(spec, load_catalog())
    inputs = prepared.trial_inputs()
    context = RunContext(prepared, load_catalog(), inputs, device="cpu")
    context.__dict__["trainer"] = Broken()
    return list(prepared.audit.trials(inputs, context, [0]))


@pytest.mark.family
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


@pytest.mark.family
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


# --- inserted records, scored by losses and by models of the adversary


KINDS = ("mislabelled", "noise", "duplicate")


def canary(kind: str, count: int = 60) -> str:
    return f"audit.canary={{space: input, kind: {kind}, count: {count}}}"


def share_of_right_guesses(trials: list, size: int) -> float:
    right = total = 0
    for trial in trials:
        (coins,) = [c for s, c in trial.evidence["outcomes"] if s == size]
        half = len(coins) - len(coins) // 2
        right += coins[:half].count("0") + coins[half:].count("1")
        total += len(coins)
    return right / total


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
def test_the_white_box_attack_sees_planted_records_and_groups_better(tmp_path: Path, kind: str) -> None:
    """60 coins a size: guessing blindly, 60% are right once in 15 times, 75% once in 3 * 10^4 times."""
    spec = attacked(tmp_path, canary(kind, 120), "mechanism.steps=20")
    trials = trials_of(spec, 0)
    assert share_of_right_guesses(trials, 4) > 0.75
    assert share_of_right_guesses(trials, 4) >= share_of_right_guesses(trials, 1)
    outcomes = outcomes_of(spec, trials)
    evidence = [o for o in outcomes if isinstance(o, Evidence) and o.quantity == "epsilon"]
    assert {e.scope.adversary for e in evidence} == {"record"}
    assert all(o.p_value > 1e-9 for o in outcomes if isinstance(o, Check))
    assert [o for o in outcomes if isinstance(o, Finding) and o.bound == "lower"]


@pytest.mark.ci
@pytest.mark.parametrize("score", ["loss", "loss-difference", "likelihood-ratio"])
def test_final_models_show_groups_that_were_hardly_noised(tmp_path: Path, score: str) -> None:
    """40 or 80 coins and almost no noise: random guesses are 75% right with probability 10^-3."""
    overrides = ("threat_model.access=final-model", "mechanism.noise_multiplier=0.1", "mechanism.steps=40")
    spec = attacked(tmp_path, canary("noise", 160), f"audit.score={score}", *overrides)
    trials = trials_of(spec, 0)
    counts = {size: len(coins) for size, coins in trials[0].evidence["outcomes"]}
    assert counts == ({1: 40, 4: 40} if score == "likelihood-ratio" else {1: 80, 4: 80})
    assert share_of_right_guesses(trials, 4) > 0.75
    assert {e.scope.access for e in outcomes_of(spec, trials) if isinstance(e, Evidence)} == {"final-model"}


def test_evidence_holds_no_score_and_no_record(tmp_path: Path) -> None:
    (trial,) = trials_of(attacked(tmp_path, canary("duplicate", 32)), 0)
    assert set(trial.evidence) >= {"outcomes", "records", "steps", "internal"}
    text = canonical_json(trial.evidence)
    assert all(f"{score:.6f}"[:8] not in text for score in trial.arrays["scores"])


def test_loss_scores_by_hand() -> None:
    seen = observed(np.array([0.0, 1.0]), np.array([2.0, -1.0]))
    loss = lambda odds: np.log1p(np.exp(-odds))  # noqa: E731
    fell = loss(seen.before) - loss(seen.after)
    assert final_scores.loss_difference(seen) == pytest.approx(fell)
    assert final_scores.loss_difference(replace(seen, many=True)) == pytest.approx(np.arcsinh(fell / 0.5))
    assert final_scores.loss(seen).tolist() == [2.0, -1.0]


def test_calibrated_ratios_do_not_use_the_coins_that_they_guess() -> None:
    rng = np.random.default_rng(0)
    coins = rng.integers(0, 2, 4000)
    before = rng.normal(size=4000)
    after = before + coins + 0.5 * rng.normal(size=4000)
    known = np.where(scores.tested(4000), -1, coins)
    found = final_scores.likelihood_ratio(observed(before, after, known))
    # The ratio of N(1, 1/4) to N(0, 1/4) at the difference, estimated from 1000 of either kind.
    exact = 4.0 * (after - before - 0.5)
    assert np.corrcoef(found, exact)[0, 1] > 0.999
    assert np.abs(found - exact).max() < 1.0
    one_sided = np.where(scores.tested(4000), -1, 1)
    assert final_scores.likelihood_ratio(observed(before, after, one_sided)).tolist() == [0.0] * 4000


def observed(before: np.ndarray, after: np.ndarray, coins: np.ndarray | None = None) -> Observed:
    count = len(before)
    return Observed(
        canaries=Records(np.zeros((count, 1), dtype=np.float32), np.zeros(count, dtype=np.int64)),
        copies=np.ones(count, dtype=np.int64),
        before=before,
        after=after,
        ask=lambda records: (before, after),
        first=np.zeros(1),
        last=np.zeros(1),
        coins=np.full(count, -1) if coins is None else coins,
        unit=0.5,
        many=False,
        planted=count // 2,
        job=None,  # type: ignore[arg-type]
    )


SPEC = Path(__file__).parents[3] / "specs" / "attacks" / "planted-records.yaml"
BLACK_BOX = SPEC.with_name("black-box-one-run.yaml")
FINAL = "threat_model.access=final-model"
CLAIM = "claims=[{id: eight, kind: approx-dp, epsilon: 30.0, delta: 1e-5, group_size: 8}]"


def ranks(trial) -> float:
    scores, coins = trial.arrays["scores"], trial.arrays["coins"]
    return float((scores[coins == 1][:, None] > scores[coins == 0][None, :]).mean())


@pytest.mark.ci
def test_digits_show_more_than_by_their_loss(tmp_path: Path) -> None:
    """250 groups of eight mislabelled digits, with a proved bound of 25.5: mean ranks of guesses have deviation .04.
    Other variation of a digit's loss hides most of the effect of its inclusion."""
    digits = (FINAL, CLAIM, "threat_model.group_size=8", "audit.canary.count=250")
    found = {}
    for score in ("loss", "shadow"):
        spec = spec_at(SPEC, *digits, f"audit.score={score}")
        trials = trials_of(spec, 0)
        found[score] = ranks(trials[0])
        outcomes = outcomes_of(spec, trials)
        (shown,) = [f for f in outcomes if isinstance(f, Finding) and (f.quantity, f.bound) == ("epsilon", "lower")]
        assert 0.0 <= shown.value < 25.5
        assert f"by {score}" in shown.method
        assert not {"attack-code"} & {a.name for a in shown.assumptions}
    assert found["shadow"] > found["loss"] + 0.05
    assert found["shadow"] > 0.65


@pytest.mark.parametrize(
    ("override", "most"),
    [
        ("audit.seed=1", None),
        ("audit.canary.count=4096", 1789),
        ("mechanism.sampling={scheme: poisson, rate: 0.5}", 1789),
        ("mechanism.clipping={scheme: per-layer}", 1789),
        ("threat_model.access=all-iterates", 1789),
    ],
    ids=["streamed", "few", "poisson", "per-layer", "all-iterates"],
)
def test_memory_limits_canaries_whose_gradients_are_stored(override: str, most: int | None) -> None:
    catalog = load_catalog()
    diagnostics = prepare(spec_at(BLACK_BOX, override), catalog).diagnostics
    counts = [error.message for error in diagnostics if error.severity == "error" and error.path[-1] == "count"]
    assert len(counts) == (most is not None)
    assert all(f"count must be at most {most}" in message for message in counts)


# --- many runs


MANY = "audit={method: many-run, canary: {space: gradient}, runs: 200, seed: 3}"
RECORDS = "audit={method: many-run, canary: {space: input, kind: noise}, runs: 200, seed: 3}"


def reached(score: float) -> int:
    return int(np.searchsorted(EDGES, score, side="right"))


def run_trials(coins: list[int], scores: list[float], size: int = 1) -> list[Trial]:
    return [
        Trial(index=i, evidence=FrozenMap({"records": 60, "outcomes": [[size, int(coin), reached(score)]]}))
        for i, (coin, score) in enumerate(zip(coins, scores, strict=True))
    ]


def found(spec: Spec, trials: list[Trial]) -> tuple[Evidence, Finding]:
    evidence, finding, *_ = many_run_bounds(spec, trials)
    return evidence, finding


def test_counts_are_those_of_the_designed_threshold(tmp_path: Path) -> None:
    spec = attacked(tmp_path, MANY, "threat_model.group_size=1", "claims.four.group_size=1")
    planned = many_run_design(spec, 60, 200, 1)
    rng = np.random.default_rng(0)
    coins = rng.integers(0, 2, 200)
    scores = rng.normal(size=200) * 2 + 2 * coins
    evidence, finding = found(spec, run_trials(list(coins), list(scores)))
    says = scores >= planned[0]
    assert dict(evidence.statistics) == {
        "present": coins.sum(),
        "absent": 200 - coins.sum(),
        "true_positives": says[coins == 1].sum(),
        "false_positives": says[coins == 0].sum(),
    }
    assert finding.value == thresholds.fixed_epsilon_lower(*evidence.statistics.values(), 1e-5, 0.95)
    assert (evidence.scope.adversary, evidence.scope.access) == ("gradient", "all-iterates")


def test_without_a_law_the_threshold_is_chosen_and_paid_for(tmp_path: Path) -> None:
    spec = attacked(tmp_path, RECORDS, "threat_model.group_size=1", "claims.four.group_size=1")
    rng = np.random.default_rng(0)
    coins = rng.integers(0, 2, 200)
    scores = rng.normal(size=200) + 2 * coins
    evidence, finding = found(spec, run_trials(list(coins), list(scores)))
    assert evidence.kind == "many-run-ranked"
    assert evidence.statistics["outcomes"] == thresholds.outcomes(np.floor(64 * scores), coins)
    assert finding.value == evidence_tests.epsilon_lower(evidence, 1e-5, 0.95) > 0.3
    runs = runs_of(Attack.of(spec), run_trials(list(coins), list(scores)))[1]
    best = max(
        thresholds.fixed_epsilon_lower(**counts(runs, edge), delta=1e-5, confidence=0.95)
        for edge in range(0, len(EDGES), 16)
    )
    assert finding.value < best
    assert evidence.scope.adversary == "record"


def test_a_size_whose_coins_all_fell_alike_says_nothing(tmp_path: Path) -> None:
    spec = attacked(tmp_path, MANY, "threat_model.group_size=1", "claims.four.group_size=1")
    assert list(many_run_bounds(spec, run_trials([1] * 20, [0.5] * 20))) == []
    records = attacked(tmp_path, RECORDS, "threat_model.group_size=1", "claims.four.group_size=1")
    assert list(many_run_bounds(records, run_trials([1] * 20, [0.5] * 20))) == []


@pytest.mark.ci
@pytest.mark.parametrize("law", [True, False])
def test_the_lower_bound_exceeds_the_truth_rarely_enough(tmp_path: Path, law: bool) -> None:
    """Scores of randomised response at epsilon 2, 40 audits at 95%: at most 7 above 2 (99.9% binomial quantile)."""
    text = MANY if law else RECORDS
    spec = attacked(tmp_path, text, "threat_model.group_size=1", "claims.four.group_size=1")
    rng, above = np.random.default_rng(4), 0
    for _ in range(40):
        coins = rng.integers(0, 2, 200)
        answers = np.where(rng.random(200) < np.exp(2) / (1 + np.exp(2)), coins, 1 - coins)
        evidence_finding = list(many_run_bounds(spec, run_trials(list(coins), list(8.0 * answers - 4.0))))
        above += evidence_finding[1].value > 2.0
    assert above <= 7


@pytest.mark.family
@pytest.mark.parametrize("access", ["all-iterates", "final-model"])
@pytest.mark.parametrize("canary", ["{space: gradient}", "{space: input, kind: blank}"])
def test_runs_end_to_end(tmp_path: Path, canary: str, access: str) -> None:
    audit = f"audit={{method: many-run, canary: {canary}, runs: 16}}"
    spec = attacked(tmp_path, audit, f"threat_model.access={access}", "mechanism.steps=4", "data.records=30")
    trials = trials_of(spec, *range(16))
    assert [len(t.evidence["outcomes"]) for t in trials] == [2] * 16
    assert {coin for t in trials for _, coin, _ in t.evidence["outcomes"]} == {0, 1}
    assert max(len(canonical_json(t.evidence)) for t in trials[2:]) < 200
    outcomes = outcomes_of(spec, trials)
    kinds = {o.kind for o in outcomes if isinstance(o, Evidence) and o.quantity == "epsilon"}
    assert kinds <= {"many-run", "many-run-ranked"}
    assert all(o.p_value > 1e-9 for o in outcomes if isinstance(o, Check))
    accuracy = [o for o in outcomes if isinstance(o, Finding) and o.quantity == "accuracy"]
    assert accuracy
    assert all("1 run" in o.method for o in accuracy)
    # Alone a run is the same up to rounding, together the same to the last bit.
    alone = trials_of(spec, 5)[0].evidence["outcomes"][0]
    assert alone[:2] == trials[5].evidence["outcomes"][0][:2]
    assert abs(alone[2] - trials[5].evidence["outcomes"][0][2]) <= 1
    assert [t.evidence for t in trials_of(spec, *range(16))] == [t.evidence for t in trials]


@pytest.mark.ci
def test_scores_of_runs_follow_the_law_that_thresholds_rest_on(tmp_path: Path) -> None:
    """The number of 60 runs above the designed threshold is the expected one, within 4.5 standard errors."""
    overrides = (MANY, "threat_model.group_size=4", "claims.one.group_size=4", "data.records=20")
    spec = attacked(tmp_path, *overrides)
    trials = trials_of(spec, *range(60))
    law = declared_distribution(spec, 20, 4)
    runs = runs_of(Attack.of(spec), trials)[4]
    edge = reached(0.0) - 1
    present, absent, true, false = counts(runs, edge).values()
    for hits, of, rate in zip((true, false), (present, absent), law.rates(EDGES[edge]), strict=True):
        assert abs(hits - of * rate) < 4.5 * (of * rate * (1 - rate)) ** 0.5 + 0.5
