"""Planted records: what attacks make of them in either access, by losses and by models of the adversary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.attacks import attacked, outcomes_of, spec_at, trials_of

from dpspec.contract import Check, Evidence, Finding
from dpspec.contract.attacks import Observed, Records
from dpspec.contract.frozen import canonical_json
from dpspec.training.measure import scores as final_scores
from dpspec_group import scores

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


@pytest.mark.parametrize("score", ["loss", "loss-difference", "likelihood-ratio"])
def test_final_models_show_groups_that_were_hardly_noised(tmp_path: Path, score: str) -> None:
    """40 or 80 coins, hardly any noise: guessing blindly, 75% are right once in 10^3 times."""
    overrides = ("threat_model.access=final-model", "mechanism.noise_multiplier=0.1", "mechanism.steps=40")
    spec = attacked(tmp_path, canary("noise", 160), f"audit.score={score}", *overrides)
    trials = trials_of(spec, 0)
    told = {size: len(coins) for size, coins in trials[0].evidence["outcomes"]}
    assert told == ({1: 40, 4: 40} if score == "likelihood-ratio" else {1: 80, 4: 80})
    assert share_of_right_guesses(trials, 4) > 0.75
    assert {e.scope.access for e in outcomes_of(spec, trials) if isinstance(e, Evidence)} == {"final-model"}


def test_evidence_holds_no_score_and_no_record(tmp_path: Path) -> None:
    (trial,) = trials_of(attacked(tmp_path, canary("duplicate", 32)), 0)
    assert set(trial.evidence) >= {"outcomes", "records", "steps", "internal"}
    text = canonical_json(trial.evidence)
    assert all(f"{score:.6f}"[:8] not in text for score in trial.arrays["scores"])


def test_nothing_is_promised_of_records_but_what_perfect_guesses_show(tmp_path: Path) -> None:
    spec = attacked(tmp_path, canary("noise", 200))
    power = scores.power(spec, 60)
    assert all("unknown" in p.note for p in power)
    assert scores.one_run_design(spec, 60, 100, 1).rungs == ((8, 8), (24, 24), (50, 50))


def test_loss_scores_by_hand() -> None:
    seen = observed(np.array([0.0, 1.0]), np.array([2.0, -1.0]))
    loss = lambda odds: np.log1p(np.exp(-odds))  # noqa: E731
    fell = loss(seen.before) - loss(seen.after)
    assert final_scores.loss_difference(seen) == pytest.approx(fell)
    assert final_scores.loss_difference(replace(seen, many=True)) == pytest.approx(np.arcsinh(fell / 0.5))
    assert final_scores.loss(seen).tolist() == [2.0, -1.0]


def test_calibrated_ratios_look_at_no_coin_that_they_guess() -> None:
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
FINAL = "threat_model.access=final-model"
CLAIM = "claims=[{id: eight, kind: approx-dp, epsilon: 30.0, delta: 1e-5, group_size: 8}]"


def ranks(trial) -> float:
    scores, coins = trial.arrays["scores"], trial.arrays["coins"]
    return float((scores[coins == 1][:, None] > scores[coins == 0][None, :]).mean())


@pytest.mark.ci
def test_digits_show_more_than_by_their_loss(tmp_path: Path) -> None:
    """250 groups of eight mislabelled digits, of which 25.5 is proved: guessing, ranks have a deviation of .04. What a
    digit's loss is for other reasons drowns most of what planting it does."""
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
