"""How planted records are scored by a final model: what the hook ``dpspec_attacks`` offers of dpspec's own.

Each takes what the adversary observed (:class:`~dpspec.contract.attacks.Observed`) and gives scores (m,), the higher
the more likely the record was planted. Tests rest on the coins alone: a score that fits badly only costs power.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from dpspec.contract.attacks import Observed

Array: TypeAlias = np.ndarray[Any, Any]


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
