"""How planted records are scored by a final model: what the hook ``dpspec_attacks`` offers of dpspec's own.

Each takes what the adversary observed (:class:`~dpspec.contract.attacks.Observed`) and gives scores (m,), the higher
the more likely the record was planted. Tests rest on the coins alone: a score that fits badly only costs power.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from dpspec.contract.attacks import Observed
from dpspec.training.providers import SHADOWS

Array: TypeAlias = np.ndarray[Any, Any]

#: The minimum standard deviation of log-odds: canaries on which all shadow models agree would score infinitely.
_LEAST_STD = 1e-12


def loss(observed: Observed) -> Array:
    """The log-odds of the labels by the last model, which fall as the loss rises."""
    return observed.after


def loss_difference(observed: Observed) -> Array:
    """By how much the loss fell, ln(1 + exp(-before)) - ln(1 + exp(-after)); of many runs in units of the noise.

    Those, asinh(score / unit), rise with the scores and stay apart on the grid of many runs whatever the learning rate
    and the divisor are.
    """
    fell: Array = np.logaddexp(0.0, -observed.before) - np.logaddexp(0.0, -observed.after)
    return np.asarray(np.arcsinh(fell / observed.unit)) if observed.many else fell


def likelihood_ratio(observed: Observed) -> Array:
    """Likelihood ratios of planted against not, by normal laws fitted to the canaries whose coins are known.

    Groups of each size have laws of their own.
    """
    scores = np.zeros(len(observed.coins))
    for size in np.unique(observed.copies):
        at = np.flatnonzero(observed.copies == size)
        scores[at] = fitted_ratios(observed.before[at], observed.after[at], observed.coins[at])
    return scores


def fitted_ratios(before: Array, after: Array, coins: Array) -> Array:
    """Likelihood ratios (m,) of planted against not from log-odds (m,), learned where ``coins`` (m,) are 0 or 1.

    Each hypothesis has a mean of its own; the covariance of the two log-odds is shared. Zeros where one of the
    hypotheses has no canary to learn from.
    """
    features = np.column_stack([before, after])
    present, absent = features[coins == 1], features[coins == 0]
    if min(len(present), len(absent)) == 0:
        return np.zeros(len(coins))
    centred = np.concatenate([present - present.mean(0), absent - absent.mean(0)])
    covariance = centred.T @ centred / max(1, len(centred) - 2)
    covariance += (1e-6 * np.trace(covariance) + 1e-12) * np.eye(2)
    weights = np.linalg.solve(covariance, present.mean(0) - absent.mean(0))
    scores: Array = (features - 0.5 * (present.mean(0) + absent.mean(0))) @ weights
    return scores


def path(observed: Observed) -> Array:
    """Log-likelihood ratios by where the model must have come through (``path_scores``)."""
    import torch

    from dpspec.training.measure.path_scores import PathScores

    scored = PathScores(observed.job, observed.canaries, observed.copies, observed.planted)
    found: Array = scored(torch.tensor(observed.first), torch.tensor(observed.last)).cpu().numpy()
    return found


def shadow(observed: Observed) -> Array:
    """How far the log-odds by the last model lie above those of models that the adversary trained, in their deviations.

    It trains ``SHADOWS`` of them as the job declares, from the first model, with coins of its own for all canaries: two
    by two, what one has planted the other has not, so that each canary is in half of them. So it knows what a record's
    log-odds are for other reasons, midway between planted and not (after Carlini et al. 2022, with one deviation for
    all). The seeds are the same for every run and have nothing to do with a run's own; the loop is the native one.
    """
    odds = shadow_log_odds(observed, SHADOWS)[0]
    std = np.sqrt(np.mean(odds.std(axis=0, ddof=1) ** 2))
    scores: Array = (observed.after - odds.mean(axis=0)) / np.maximum(std, _LEAST_STD)
    return scores


def shadow_log_odds(observed: Observed, models: int) -> tuple[Array, Array]:
    """The canaries' log-odds by so many trained models, 0 where one gives no number, and the coins: (models, m) each.

    ``models`` is even.
    """
    import torch

    from dpspec.training.canaries import plant
    from dpspec.training.gradients import flat_model
    from dpspec.training.loop.native import NativeTrainer
    from dpspec.training.measure.observers import margins
    from dpspec.training.seeds import derive

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
