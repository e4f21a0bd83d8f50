"""Choose the guess counts of one run from the accuracy of an exact Gaussian attack."""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special

from dpspec.stats.attacks import guess_counts, one_run


def gaussian_accuracy(canaries: int, guesses: int, mu: float) -> float:
    """The expected share of right guesses among the most extreme scores, half of them on either side.

    Scores are N(0, 1) for absent and N(mu, 1) for present canaries.
    """
    share = 0.5 * guesses / canaries

    def excess(cut: float) -> float:
        return float(0.5 * special.ndtr(-cut) + 0.5 * special.ndtr(mu - cut) - share)

    cut = optimize.brentq(excess, -40.0, mu + 40.0)
    return float(0.5 * special.ndtr(mu - cut) / share)


def gaussian_design(canaries: int, mu: float, delta: float, confidence: float) -> tuple[guess_counts.Rung, ...]:
    """The rungs around the even count with the largest expected lower bound on epsilon."""

    def shown(half: int) -> float:
        right = min(2 * half, math.floor(2 * half * gaussian_accuracy(canaries, 2 * half, mu)))
        return one_run.epsilon_lower(canaries, 2 * half, right, delta, confidence)

    best = max(sorted({round(n) for n in np.geomspace(4, canaries // 2, 25)}), key=shown)
    return guess_counts.around(best, best, canaries)
