"""Scores (m,) of canaries by the final model (hook ``dpspec_attacks``); higher means more likely inserted.

Tests depend only on the inclusion bits, so a poor score only loses power.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from dpspec.contract.attacks import Observed
from dpspec.training.providers import SHADOWS

Array: TypeAlias = np.ndarray[Any, Any]

#: Minimum standard deviation of log-odds, in case all shadow models agree.
_LEAST_STD = 1e-12


def loss(observed: Observed) -> Array:
    """Log-odds of the labels."""
    return observed.after


def loss_difference(observed: Observed) -> Array:
    """Decrease of the loss, ln(1 + exp(-before)) - ln(1 + exp(-after)).

    Across many runs, asinh(score / unit) with the noise as unit: monotone, and well spread for any learning rate and
    divisor.
    """
    fell: Array = np.logaddexp(0.0, -observed.before) - np.logaddexp(0.0, -observed.after)
    return np.asarray(np.arcsinh(fell / observed.unit)) if observed.many else fell


def likelihood_ratio(observed: Observed) -> Array:
    """Log-likelihood ratios of insertion, by Gaussians fitted per group size to canaries with known bits."""
    scores = np.zeros(len(observed.coins))
    for size in np.unique(observed.copies):
        at = np.flatnonzero(observed.copies == size)
        features, coins = np.column_stack([observed.before[at], observed.after[at]]), observed.coins[at]
        present, absent = features[coins == 1], features[coins == 0]
        if min(len(present), len(absent)) == 0:
            continue
        # Linear discriminant analysis: each hypothesis has its own mean; the covariance is shared.
        centred = np.concatenate([present - present.mean(0), absent - absent.mean(0)])
        covariance = centred.T @ centred / max(1, len(centred) - 2)
        covariance += (1e-6 * np.trace(covariance) + 1e-12) * np.eye(2)
        weights = np.linalg.solve(covariance, present.mean(0) - absent.mean(0))
        scores[at] = (features - 0.5 * (present.mean(0) + absent.mean(0))) @ weights
    return scores


def path(observed: Observed) -> Array:
    """Log-likelihood ratios by the interpolated path of the models (``path_scores``)."""
    import torch

    from dpspec.training.measure.path_scores import PathScores

    scored = PathScores(observed.job, observed.canaries, observed.copies, observed.planted)
    found: Array = scored(torch.tensor(observed.first), torch.tensor(observed.last)).cpu().numpy()
    return found


def shadow(observed: Observed) -> Array:
    """Log-odds by the final model, standardized by ``SHADOWS`` shadow models (after Carlini et al. 2022).

    They are trained from the first model, in pairs with complementary inclusion bits. One standard deviation is used
    for all canaries. Seeds are the same for every run and independent of the run's own.
    """
    odds = shadow_log_odds(observed, SHADOWS)[0]
    std = np.sqrt(np.mean(odds.std(axis=0, ddof=1) ** 2))
    scores: Array = (observed.after - odds.mean(axis=0)) / np.maximum(std, _LEAST_STD)
    return scores


def shadow_log_odds(observed: Observed, models: int) -> tuple[Array, Array]:
    """Canaries' log-odds by ``models`` (even) trained models, 0 if not finite, and inclusion bits: (models, m) each."""
    import torch

    from dpspec.training.canaries import plant
    from dpspec.training.device import derive
    from dpspec.training.gradients import flat_model
    from dpspec.training.loop.native import NativeTrainer
    from dpspec.training.measure.observers import margins

    job, first = observed.job, torch.tensor(observed.first)
    half = np.random.default_rng(derive(0, "shadow coins")).integers(0, 2, (models // 2, len(observed.copies)))
    coins = np.concatenate([half, 1 - half])
    rows = np.zeros(coins.shape)
    for place, tossed in enumerate(coins):
        model = copy.deepcopy(job.model)
        flat_model.load(model, first)
        planted = plant(job.x, job.y, observed.canaries, observed.copies, tossed)
        NativeTrainer().train(
            replace(job, x=planted.x, y=planted.y, model=model, seed=derive(place, "shadow run"), observers=())
        )
        rows[place] = margins(model, flat_model.flatten(model), observed.canaries, device=job.device)
    return np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0), coins
