"""Scores by models that the adversary trained: against arithmetic by hand, without any coin, and against guessing."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpspec.contract.attacks import Observed
from dpspec.contract.frozen import FrozenMap
from dpspec.stats.attacks import guess_counts, one_run
from dpspec.training.canaries import Records, plant
from dpspec.training.device import derive
from dpspec.training.gradients import flat_model
from dpspec.training.loop.native import run_batched
from dpspec.training.measure import scores as final_scores
from dpspec.training.measure.scores import margins

#: At most so many of 400 seeds may lie above the truth at level 95%: more has a chance of 1 in 100 (binomial).
SEEDS, MOST = 400, 31


def some(count: int) -> Records:
    source = np.random.default_rng(3)
    x = source.normal(size=(count, 6)).astype(np.float32)
    return Records(3 * x, source.integers(0, 3, size=count).astype(np.int64))


def observed(job, canaries: Records, copies: np.ndarray, last: torch.Tensor) -> Observed:
    """What is seen of a model at ``last`` (P,) that was trained by ``job``, which has the real records alone."""
    first = flat_model.flatten(job.model)
    before, after = (margins(job.model, state, canaries, device="cpu") for state in (first, last))
    return Observed(
        canaries=canaries,
        copies=copies,
        before=before,
        after=after,
        ask=lambda records: (before, after),
        first=first.numpy().copy(),
        last=last.numpy().copy(),
        coins=np.full(len(copies), -1, dtype=np.int8),
        unit=1.0,
        many=False,
        planted=int(copies.sum()) // 2,
        job=replace(job, model=copy.deepcopy(job.model)),
    )


def trained(job, canaries: Records, copies: np.ndarray, coins: np.ndarray) -> torch.Tensor:
    every = plant(job.x, job.y, canaries, copies, np.ones(len(copies), dtype=np.int64))
    kept = [np.concatenate([np.ones(len(job.x), dtype=bool), tossed[every.owner] == 1]) for tossed in coins]
    rows = [(every.x[some], every.y[some]) for some in kept]
    return run_batched([replace(job, x=x, y=y, seed=i, records=job.public_records) for i, (x, y) in enumerate(rows)])


def test_what_they_are_by_hand(make_job) -> None:
    job, canaries, copies = make_job(steps=6), some(10), np.repeat([1, 3], 5)
    seen = observed(job, canaries, copies, flat_model.flatten(job.model) + 0.1)
    odds, coins = final_scores.shadow_log_odds(seen, 8)
    assert (coins.sum(0) == 4).all()
    assert (coins[:4] + coins[4:] == 1).all()
    runs = []
    for place, tossed in enumerate(coins):
        rows = plant(job.x, job.y, canaries, copies, tossed)
        runs.append(replace(job, x=rows.x, y=rows.y, seed=derive(place, "shadow run")))
    wanted = np.stack([margins(job.model, state, canaries, device="cpu") for state in run_batched(runs)])
    assert odds == pytest.approx(wanted, abs=1e-4)


def test_the_score_is_the_distance_in_common_deviations(make_job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_scores, "SHADOWS", 8)
    job, canaries, copies = make_job(steps=6), some(10), np.ones(10, dtype=np.int64)
    seen = observed(job, canaries, copies, flat_model.flatten(job.model) + 0.1)
    odds, _ = final_scores.shadow_log_odds(seen, 8)
    deviation = np.sqrt(odds.var(axis=0, ddof=1).mean())
    assert final_scores.shadow(seen) == pytest.approx((seen.after - odds.mean(0)) / deviation)


def test_they_look_at_no_coin_and_change_nothing(make_job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever coins would be handed over, whatever seed the run had, and whatever a trained model is in the job."""
    monkeypatch.setattr(final_scores, "SHADOWS", 4)
    job, canaries, copies = make_job(steps=4), some(8), np.ones(8, dtype=np.int64)
    seen = observed(job, canaries, copies, flat_model.flatten(job.model) + 0.1)
    before = flat_model.flatten(seen.job.model).clone()
    scores = final_scores.shadow(seen)
    assert torch.equal(before, flat_model.flatten(seen.job.model))
    other = copy.deepcopy(seen.job.model)
    flat_model.load(other, before + 1.0)
    for changed in (
        replace(seen, coins=np.arange(8, dtype=np.int8) % 2),
        replace(seen, job=replace(seen.job, seed=77)),
        replace(seen, job=replace(seen.job, model=other)),
    ):
        assert np.array_equal(final_scores.shadow(changed), scores)


def test_models_that_diverge_leave_finite_scores(make_job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_scores, "SHADOWS", 2)
    job = make_job(steps=3)
    job = replace(job, options=FrozenMap({**job.options, "learning_rate": 1e38}))
    seen = observed(job, some(4), np.ones(4, dtype=np.int64), flat_model.flatten(job.model))
    assert np.isfinite(final_scores.shadow(seen)).all()


def bounds(scores: np.ndarray, coins: np.ndarray) -> tuple[float, float]:
    """Epsilon at delta 1e-5 and mu, as an audit without a known law of the scores bounds them."""
    ordered = "".join(map(str, coins[np.argsort(scores, kind="stable")]))
    found = guess_counts.counts([ordered], guess_counts.blind(len(ordered), least=8))
    guesses, right = guess_counts.counts([ordered], [guess_counts.of_curve(len(ordered))])
    return (
        guess_counts.epsilon_lower(len(ordered), *found, 1e-5, 0.95),
        one_run.mu_lower(len(ordered), guesses[0], right[0], 0.95),
    )


def shown(job, canaries: Records, copies: np.ndarray, seeds: int) -> np.ndarray:
    """The bounds (seeds, 2) on epsilon and mu of so many runs. Scores of all are made by the same models, which follow
    from the job and the canaries."""
    tossed = np.random.default_rng(1).integers(0, 2, (seeds, len(copies)))
    odds, _ = final_scores.shadow_log_odds(observed(job, canaries, copies, flat_model.flatten(job.model)), 16)
    found = []
    for coins, state in zip(tossed, trained(job, canaries, copies, tossed), strict=True):
        after = margins(job.model, state, canaries, device="cpu")
        found.append(bounds((after - odds.mean(axis=0)) / np.sqrt(np.mean(odds.var(axis=0, ddof=1))), coins))
    return np.array(found)


def test_where_there_is_nothing_to_see(make_job) -> None:
    """Noise of 5000 clip norms in 3 steps, mu 3.5e-4, epsilon below 0.001: at most 5% of 400 runs may show more."""
    job = make_job(steps=3, noise_multiplier=5000.0, clip_norm=1.0, sampling={"scheme": "full"})
    found = shown(job, some(60), np.ones(60, dtype=np.int64), SEEDS)
    above = (found > [1e-3, np.sqrt(3) / 5000.0]).sum(0)
    assert (above <= MOST).all(), above


def test_what_is_there_is_seen_and_not_more(make_job) -> None:
    """100 pairs, 10 full batches of noise 3: mu is 2 sqrt(10) / 3. More than 6 of 40 lie above once in 70 times."""
    job = make_job(steps=10, noise_multiplier=3.0, clip_norm=1.0, sampling={"scheme": "full"})
    found = shown(job, some(100), np.full(100, 2), 40)
    assert (found[:, 1] > 2.0 * np.sqrt(10) / 3.0).sum() <= 6
    assert found[:, 0].mean() > 0.1
