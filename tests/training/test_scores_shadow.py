"""Scores by models that the adversary trained: against arithmetic by hand, and without any coin."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpspec.contract.attacks import Observed
from dpspec.contract.frozen import FrozenMap
from dpspec.training.canaries import Records, plant
from dpspec.training.device import derive
from dpspec.training.gradients import flat_model
from dpspec.training.loop.native import run_batched
from dpspec.training.measure import scores as final_scores
from dpspec.training.measure.scores import margins


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
