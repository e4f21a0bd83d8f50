"""White-box scores of planted records against a slow likelihood, and against simulation."""

from __future__ import annotations

from dataclasses import replace
from math import comb, log

import numpy as np
import pytest
import torch

from dpspec.training.canaries import Records, plant
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.scores import RecordScores, margins


class Kept(RecordScores):
    """Also keeps what it saw."""

    def seen(self, step, phase, previous, residual, known):
        self.saw = getattr(self, "saw", [])
        self.saw.append((previous.clone(), residual.clone(), self.scores.clone()))
        super().seen(step, phase, previous, residual, known)


def audited(make_job, kind, coins, copies, **phase):
    """A run with planted records, watched; the job without them, and the canaries."""
    job = make_job(**phase)
    source = np.random.default_rng(3)
    canaries = Records(
        source.normal(size=(len(coins), 6)).astype(np.float32), source.integers(0, 3, size=len(coins)).astype(np.int64)
    )
    rows = plant(job.x, job.y, canaries, copies, coins)
    seen = kind(job, canaries, copies, int(copies.sum()) // 2)
    NativeTrainer().train(replace(job, x=rows.x, y=rows.y, observers=(seen,)))
    return seen, job, canaries


def slow(job, canaries, copies, saw):
    """The scores by dense covariances over all parameters, one canary and one count at a time."""
    phase = job.phases[0]
    clip, sigma = phase["clip_norm"], phase["noise_multiplier"]
    q = phase["sampling"].get("rate", 1.0)
    model = FlatModel(job.model)

    def clipped(state, x, y):
        rows = torch.cat(list(model.gradients(state, x, y))).double()
        return rows * (clip / rows.norm(dim=1).clamp_min(clip)).unsqueeze(1) / clip

    scores = np.zeros(len(copies))
    for previous, residual, before in saw:
        real = clipped(previous, torch.tensor(job.x), torch.tensor(job.y))
        planted = clipped(previous, torch.tensor(canaries.x), torch.tensor(canaries.y))
        believed = torch.sigmoid(before).numpy()
        mean = believed * q * copies
        variance = believed * q * copies * (1 - q + q * copies) - mean**2
        for i, k in enumerate(copies):
            others = [j for j in range(len(copies)) if j != i]
            center = sum(mean[j] * planted[j] for j in others)
            covariance = sigma**2 * torch.eye(len(residual), dtype=torch.float64)
            covariance += sum(variance[j] * torch.outer(planted[j], planted[j]) for j in others)
            covariance += q * (1 - q) * (real.T @ real)
            # As the fast routine, look along the canaries alone.
            seen = planted @ (residual.double() - center)
            spread = planted @ covariance @ planted.T
            shift = planted @ planted[i]
            inverse = torch.linalg.inv(spread)
            likelihood = 0.0
            for j in range(int(k) + 1):
                weight = comb(int(k), j) * q**j * (1 - q) ** (int(k) - j)
                exponent = j * shift @ inverse @ seen - 0.5 * j**2 * shift @ inverse @ shift
                likelihood += weight * float(torch.exp(exponent))
            scores[i] += log(likelihood)
    return scores


@pytest.mark.parametrize("sampling", [{"scheme": "poisson", "rate": 0.25}, {"scheme": "full"}])
def test_scores_are_the_slow_likelihood_ratios(make_job, sampling):
    copies = np.array([1, 1, 3, 2])
    seen, job, canaries = audited(make_job, Kept, np.array([1, 0, 1, 0]), copies, sampling=sampling, steps=4)
    untrained = replace(job, model=make_job().model)
    assert np.allclose(seen.scores.numpy(), slow(untrained, canaries, copies, seen.saw), atol=1e-3)


@pytest.mark.parametrize("scheme", [{"scheme": "full"}, {"scheme": "fixed", "batch_size": 30}])
def test_planted_records_score_higher(make_job, scheme):
    """Little noise: every planted record stands out."""
    coins = np.array([1, 0, 1, 0, 1, 1, 0, 0])
    seen, _, _ = audited(make_job, RecordScores, coins, np.full(8, 2), noise_multiplier=0.05, sampling=scheme, steps=20)
    scores = seen.scores.numpy()
    assert scores[coins == 1].min() > scores[coins == 0].max()
    assert seen.steps == 20


def test_likelihood_ratios_are_calibrated(make_job):
    """Of 400 coins, as many are 1 as sigmoid(score) adds up to, within 5 standard errors: the score is what it says."""
    believed, coins = [], []
    for seed in range(20):
        tossed = np.random.default_rng(seed).integers(0, 2, size=20)
        seen, _, _ = audited(make_job, RecordScores, tossed, np.ones(20, dtype=int), seed=seed, steps=8)
        believed.append(torch.sigmoid(seen.scores).numpy())
        coins.append(tossed)
    p, c = np.concatenate(believed), np.concatenate(coins)
    assert abs((c - p).sum()) < 5 * np.sqrt((p * (1 - p)).sum())
    high = p > 0.6
    assert high.sum() > 30
    assert abs((c - p)[high].sum()) < 5 * np.sqrt((p * (1 - p))[high].sum())


def test_no_noise_and_no_gradient_leave_finite_scores(make_job):
    seen, _, _ = audited(
        make_job, RecordScores, np.array([1, 0, 1]), np.array([1, 1, 2]), noise_multiplier=0.0, steps=3
    )
    assert bool(seen.scores.isfinite().all())


def test_noise_is_measured_whatever_is_planted(make_job):
    """The statistic of the noise is at least chi-square in all 63 dimensions, for planted records only add to it."""
    seen, _, _ = audited(make_job, Plain, np.ones(5, dtype=int), np.ones(5, dtype=int), steps=40)
    scale = seen.noise_scale()
    assert scale.degrees == 63 * 40
    assert scale.statistic > scale.degrees - 5 * (2 * scale.degrees) ** 0.5
    assert scale.statistic < 2 * scale.degrees


class Plain(Residuals):
    """With the arguments of the scores."""

    def __init__(self, job, canaries, copies, planted):
        super().__init__(job, planted)


def test_margins_are_log_odds(make_job):
    job = make_job()
    model = FlatModel(job.model)
    records = Records(job.x[:5], job.y[:5])
    found = margins(job.model, flat_model.flatten(job.model), records, device="cpu")
    p = torch.softmax(model.logits(model.initial(), torch.tensor(records.x)).double(), 1)
    own = p.gather(1, torch.tensor(records.y).unsqueeze(1)).squeeze(1)
    assert np.allclose(found, torch.logit(own).detach().numpy(), atol=1e-5)
