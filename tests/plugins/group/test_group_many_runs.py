"""Many runs: coins, thresholds that were fixed before, and what they show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.attacks import attacked, outcomes_of, trials_of

from dpspec.contract import Check, Evidence, Finding, FrozenMap, Spec, Trial
from dpspec.contract.frozen import canonical_json
from dpspec.stats.attacks import evidence_tests, thresholds
from dpspec_group.evidence import counts, many_run_bounds, runs_of
from dpspec_group.options import EDGES, Attack
from dpspec_group.scores import declared_distribution, many_run_design

MANY = "audit={method: many-run, canary: {space: gradient}, runs: 200, seed: 3}"
RECORDS = "audit={method: many-run, canary: {space: input, kind: noise}, runs: 200, seed: 3}"


def reached(score: float) -> int:
    return int(np.searchsorted(EDGES, score, side="right"))


def told(coins: list[int], scores: list[float], size: int = 1) -> list[Trial]:
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
    evidence, finding = found(spec, told(list(coins), list(scores)))
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
    evidence, finding = found(spec, told(list(coins), list(scores)))
    assert evidence.kind == "many-run-ranked"
    assert evidence.statistics["outcomes"] == thresholds.outcomes(np.floor(64 * scores), coins)
    assert finding.value == evidence_tests.epsilon_lower(evidence, 1e-5, 0.95) > 0.3
    runs = runs_of(Attack.of(spec), told(list(coins), list(scores)))[1]
    best = max(
        thresholds.fixed_epsilon_lower(**counts(runs, edge), delta=1e-5, confidence=0.95)
        for edge in range(0, len(EDGES), 16)
    )
    assert finding.value < best
    assert evidence.scope.adversary == "record"


def test_a_size_whose_coins_all_fell_alike_says_nothing(tmp_path: Path) -> None:
    spec = attacked(tmp_path, MANY, "threat_model.group_size=1", "claims.four.group_size=1")
    assert list(many_run_bounds(spec, told([1] * 20, [0.5] * 20))) == []
    records = attacked(tmp_path, RECORDS, "threat_model.group_size=1", "claims.four.group_size=1")
    assert list(many_run_bounds(records, told([1] * 20, [0.5] * 20))) == []


@pytest.mark.parametrize("law", [True, False])
def test_the_lower_bound_exceeds_the_truth_rarely_enough(tmp_path: Path, law: bool) -> None:
    """Scores of randomised response at epsilon 2, 80 audits at 95%: at most 11 above 2 (99.9% binomial quantile)."""
    text = MANY if law else RECORDS
    spec = attacked(tmp_path, text, "threat_model.group_size=1", "claims.four.group_size=1")
    rng, above = np.random.default_rng(4), 0
    for _ in range(80):
        coins = rng.integers(0, 2, 200)
        answers = np.where(rng.random(200) < np.exp(2) / (1 + np.exp(2)), coins, 1 - coins)
        evidence_finding = list(many_run_bounds(spec, told(list(coins), list(8.0 * answers - 4.0))))
        above += evidence_finding[1].value > 2.0
    assert above <= 11


@pytest.mark.parametrize("access", ["all-iterates", "final-model"])
@pytest.mark.parametrize("canary", ["{space: gradient}", "{space: input, kind: blank}"])
def test_runs_end_to_end(tmp_path: Path, canary: str, access: str) -> None:
    audit = f"audit={{method: many-run, canary: {canary}, runs: 24}}"
    spec = attacked(tmp_path, audit, f"threat_model.access={access}", "mechanism.steps=4", "data.records=30")
    trials = trials_of(spec, *range(24))
    assert [len(t.evidence["outcomes"]) for t in trials] == [2] * 24
    assert {coin for t in trials for _, coin, _ in t.evidence["outcomes"]} == {0, 1}
    assert max(len(canonical_json(t.evidence)) for t in trials[2:]) < 200
    outcomes = outcomes_of(spec, trials)
    assert {o.kind for o in outcomes if isinstance(o, Evidence) and o.quantity == "epsilon"} <= {
        "many-run",
        "many-run-ranked",
    }
    assert all(o.p_value > 1e-9 for o in outcomes if isinstance(o, Check))
    accuracy = [o for o in outcomes if isinstance(o, Finding) and o.quantity == "accuracy"]
    assert accuracy
    assert all("1 run" in o.method for o in accuracy)
    # Alone a run is the same up to rounding, together the same to the last bit.
    alone = trials_of(spec, 5)[0].evidence["outcomes"][0]
    assert alone[:2] == trials[5].evidence["outcomes"][0][:2]
    assert abs(alone[2] - trials[5].evidence["outcomes"][0][2]) <= 1
    assert [t.evidence for t in trials_of(spec, *range(24))] == [t.evidence for t in trials]


def test_scores_of_runs_follow_the_law_that_thresholds_rest_on(tmp_path: Path) -> None:
    """Of 60 runs, as many reach the designed threshold as the law says, within 4.5 standard errors."""
    overrides = (MANY, "threat_model.group_size=4", "claims.one.group_size=4", "data.records=20")
    spec = attacked(tmp_path, *overrides)
    trials = trials_of(spec, *range(60))
    law = declared_distribution(spec, 20, 4)
    runs = runs_of(Attack.of(spec), trials)[4]
    edge = reached(0.0) - 1
    present, absent, true, false = counts(runs, edge).values()
    for hits, of, rate in zip((true, false), (present, absent), law.rates(EDGES[edge]), strict=True):
        assert abs(hits - of * rate) < 4.5 * (of * rate * (1 - rate)) ** 0.5 + 0.5
