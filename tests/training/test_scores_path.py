"""Scores by the final model alone: against densities where training is a straight line, and against the loss."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from dpspec.contract import FrozenMap
from dpspec.training.canaries import Records, plant
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure import scores as path_scores
from dpspec.training.measure.scores import PathScores


def some(count: int, features: int = 6) -> Records:
    source = np.random.default_rng(3)
    x = source.normal(size=(count, features)).astype(np.float32)
    return Records(3 * x, source.integers(0, 3, size=count).astype(np.int64))


def clipped(job, state, x, y, clip=1.0):
    model = FlatModel(job.model)
    rows = torch.cat(list(model.gradients(state, x, y))).double()
    return (rows * (clip / rows.norm(dim=1).clamp_min(clip)).unsqueeze(1)).numpy()


@pytest.mark.parametrize("count", [1, 5])
def test_one_full_batch_by_enumerating_all_coins(make_job, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """One step at rate 1: the last model is Gaussian given the coins, with means that are known.

    Of one canary the score is the log ratio of two densities. Of five the marginal ratio over 32 coins is met as far as
    sums of four other canaries are normal.
    """
    monkeypatch.setattr(path_scores, "_UNSURE", 0.0)
    monkeypatch.setattr(path_scores, "_ROUNDS", 1)
    job = make_job(steps=1, noise_multiplier=4.0, clip_norm=1.0, sampling={"scheme": "full"})
    job = replace(job, options=FrozenMap({**job.options, "learning_rate": 1e-3}))
    canaries, copies = some(count), np.full(count, 2)
    first = flat_model.flatten(job.model)
    rng = np.random.default_rng(5)
    real = clipped(job, first, torch.tensor(job.x), torch.tensor(job.y)).sum(0)
    effects = 2 * clipped(job, first, torch.tensor(canaries.x), torch.tensor(canaries.y))
    total = real + rng.integers(0, 2, count) @ effects + 4.0 * rng.normal(size=len(real))
    scorer = PathScores(job, canaries, copies, count)
    found = scorer(first, first - (1e-3 / job.expected_batch_size * torch.from_numpy(total)).float()).numpy()
    every = np.array(list(product((0, 1), repeat=count)))
    logs = -0.5 * ((total - real - every @ effects) ** 2).sum(1) / 16.0
    wanted = [logsumexp(logs[every[:, i] == 1]) - logsumexp(logs[every[:, i] == 0]) for i in range(count)]
    assert found == pytest.approx(wanted, abs=0.02 if count == 1 else 0.05)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_how_far_one_unit_in_each_step_moves_the_model(make_job, momentum: float) -> None:
    """A sum in step t moves the last model by rate / divisor * (1 + m + ... + m^(T - t))."""
    steps, job = 7, make_job(steps=7)
    optimizer = {"optimizer": {"kind": "momentum", "momentum": momentum}} if momentum else {}
    job = replace(job, options=FrozenMap({**job.options, **optimizer}))
    scorer = PathScores(job, some(2), np.array([1, 1]), 1)
    weights = [sum(momentum**j for j in range(steps - t + 1)) for t in range(1, steps + 1)]
    rate = float(job.options["learning_rate"]) / job.expected_batch_size
    assert scorer._scale(steps) == pytest.approx(rate * float(np.mean(weights)))


def test_they_tell_planted_records_from_others(make_job) -> None:
    """20 canaries in 20 steps at rate .3, five runs: ranks of the planted ones; by chance .5, with deviation .06."""
    ranks = []
    for seed in range(5):
        job = make_job(steps=20, noise_multiplier=0.5, sampling={"scheme": "poisson", "rate": 0.3})
        job = replace(job, seed=seed)
        canaries, copies = some(20), np.ones(20, dtype=np.int64)
        coins = np.random.default_rng(seed).permutation(np.arange(20) % 2)
        scorer, first = PathScores(job, canaries, copies, 10), flat_model.flatten(job.model)
        rows = plant(job.x, job.y, canaries, copies, coins)
        NativeTrainer().train(replace(job, x=rows.x, y=rows.y))
        scores = scorer(first, flat_model.flatten(job.model)).numpy()
        ranks.append(np.mean(scores[coins == 1][:, None] > scores[coins == 0][None, :]))
    assert np.mean(ranks) > 0.7


def test_a_model_that_diverged_says_nothing(make_job) -> None:
    job = make_job(steps=3)
    scorer, first = PathScores(job, some(4), np.ones(4, dtype=np.int64), 2), flat_model.flatten(job.model)
    assert not scorer(first, torch.full_like(first, torch.inf)).any()
