"""Scores of canaries: the more likely one was planted, the higher. no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec.accounting.mixture import Mixture
from dpspec_group import theory
from dpspec_group.laws import end_to_end
from dpspec_group.options import Attack

Array: TypeAlias = np.ndarray[Any, Any]

#: What stands for scores that are not finite: ranks that know nothing of the coins.
_LARGE = 1e30


def tame(values: Array) -> Array:
    """In float64, 0 for what is not a number and finite where it is infinite."""
    tamed: Array = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=_LARGE, neginf=-_LARGE)
    return tamed


def planted_pairs(
    phases: Sequence[dps.FrozenMap], attack: Attack, records: int, group_size: int
) -> list[tuple[Mixture, int]]:
    """Per phase what one step shows along the direction of a planted group, and the steps.

    records: how many the adversary takes to be in the run, planted ones included.
    """
    return [(theory.planted_mixture(p, group_size, records, spread=attack.spread), int(p["steps"])) for p in phases]


def step_by_step(phases: Sequence[dps.FrozenMap], attack: Attack, records: int, sizes: Array, seen: Array) -> Array:
    """Log-likelihood ratios (m,) of planted against not, from projections (steps, m) in units of the clip norm.

    Without declared noise there is no likelihood; the plain sum over the steps ranks the groups then.
    """
    scores = np.zeros(len(sizes))
    seen = seen / math.cos(attack.spread)
    for size in attack.sizes:
        at, start = np.flatnonzero(sizes == size), 0
        for phase in phases:
            rows = seen[start : start + int(phase["steps"]), at]
            start += int(phase["steps"])
            if float(phase["noise_multiplier"]) == 0.0:
                scores[at] += rows.sum(axis=0)
            else:
                ((pair, _),) = planted_pairs([phase], attack, records, size)
                scores[at] += pair.log_ratio(rows).sum(axis=0)
    return scores


def along(phases: Sequence[dps.FrozenMap], attack: Attack, records: int, sizes: Array, moved: Array) -> Array:
    """Log-likelihood ratios (m,) of planted against not, from the sums of all updates along the directions (m,)."""
    moved = moved / math.cos(attack.spread)
    if any(float(phase["noise_multiplier"]) == 0.0 for phase in phases):
        return moved
    scores = np.zeros(len(sizes))
    for size in attack.sizes:
        at = sizes == size
        pairs = planted_pairs(phases, attack, records, size)
        scores[at] = end_to_end(pairs, [float(phase["clip_norm"]) for phase in phases]).log_ratio(moved[at])
    return scores


def by_loss(score: str, before: Array, after: Array) -> Array:
    """Scores (m,) from the log-odds of the canaries' labels under the first and the last model.

    loss: the log-odds of the last model, which fall as the loss rises. loss-difference: by how much the loss fell.
    """
    if score == "loss":
        return after
    return np.logaddexp(0.0, -before) - np.logaddexp(0.0, -after)


def calibrated(before: Array, after: Array, coins: Array, fitted: Array) -> Array:
    """Likelihood ratios (m,) of planted against not, from log-odds by normal laws fitted where ``fitted`` is true.

    Each hypothesis has a mean of its own; the covariance of the two log-odds is shared. The coins of other canaries
    are not looked at. Zeros where one of the hypotheses has no canary to learn from.
    """
    features = np.column_stack([before, after])
    present, absent = features[fitted & (coins == 1)], features[fitted & (coins == 0)]
    if min(len(present), len(absent)) == 0:
        return np.zeros(len(coins))
    centred = np.concatenate([present - present.mean(0), absent - absent.mean(0)])
    covariance = centred.T @ centred / max(1, len(centred) - 2)
    covariance += (1e-6 * np.trace(covariance) + 1e-12) * np.eye(2)
    weights = np.linalg.solve(covariance, present.mean(0) - absent.mean(0))
    scores: Array = (features - 0.5 * (present.mean(0) + absent.mean(0))) @ weights
    return scores


def tested(canaries: int) -> Array:
    """Which of so many canaries of one size are guessed where the others are fitted to, (canaries,) bool."""
    return np.arange(canaries) >= canaries // 2
