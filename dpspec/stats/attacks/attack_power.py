"""What an attack can be expected to show, before anything is trained: the bound at its typical outcome.

The typical outcome is the median one, so that about half of all audits show more. Where scores are those of an exact
Gaussian mechanism, N(0, 1) for an absent canary and N(mu, 1) for a present one, it follows in closed form: no
simulation, no seed. What the same design would show without an error is ``largest`` in the module of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from dpspec.stats.attacks import guess_counts, many_run, thresholds

#: Thresholds at which a fixed one is looked for, in standard deviations around the absent and the present mean.
_REACH, _THRESHOLDS = 5.0, 400


def gaussian_accuracy(canaries: int, guesses: int, mu: float, *, top: float = 0.5) -> float:
    """The expected share of right guesses of the ``guesses`` most extreme of ``canaries`` scores, at exact Gaussian mu.

    The share ``top`` of the guesses says "present" for the highest scores, the rest "absent" for the lowest: with cuts
    c at the quantiles of the half-and-half mixture, P[present above c] / 2 over the guessed share, and the same below.
    """
    if not 0 < guesses <= canaries:
        raise ValueError(f"need 0 < guesses <= canaries, got {guesses}, {canaries}")
    share = guesses / canaries
    high, low = top * share, (1.0 - top) * share
    right = 0.5 * float(special.ndtr(mu - _cut(1.0 - high, mu))) if high > 0.0 else 0.0
    right += 0.5 * float(special.ndtr(_cut(low, mu))) if low > 0.0 else 0.0
    return min(1.0, right / share)


def expected(
    canaries: int, guesses: Sequence[int], accuracy: Callable[[int], float], delta: float, confidence: float
) -> float:
    """The lower bound on epsilon when each guess count comes out as ``accuracy`` foresees.

    Evidence of kind ``one-run`` with one guess count, ``one-run-ladder`` with several.
    """
    right = [count - _median(count, 1.0 - min(1.0, accuracy(count))) for count in guesses]
    return guess_counts.epsilon_lower(canaries, guesses, guess_counts.fitting(guesses, right), delta, confidence)


def gaussian(canaries: int, guesses: Sequence[int], mu: float, delta: float, confidence: float) -> float:
    """:func:`expected` for an exact Gaussian mechanism."""
    return expected(canaries, guesses, lambda count: gaussian_accuracy(canaries, count, mu), delta, confidence)


def gaussian_many_run(present: int, absent: int, mu: float, delta: float, confidence: float) -> float:
    """The lower bound of many runs with the best threshold for mu, fixed in advance (kind ``many-run``)."""
    bounds = []
    for cut in np.linspace(-_REACH, mu + _REACH, _THRESHOLDS):
        true = present - _median(present, float(special.ndtr(cut - mu)))
        false = _median(absent, float(special.ndtr(-cut)))
        bounds.append(many_run.epsilon_lower(present, absent, true, false, delta, confidence))
    return max(bounds)


def gaussian_ranked(present: int, absent: int, mu: float, delta: float, confidence: float) -> float:
    """The lower bound of many runs whose scores are the quantiles of their laws (kind ``many-run-ranked``)."""
    scores = np.concatenate((_quantiles(absent), mu + _quantiles(present)))
    coins = np.arange(absent + present) >= absent
    return thresholds.epsilon_lower(thresholds.outcomes(scores, coins), delta, confidence)


def _median(trials: int, probability: float) -> int:
    """About the median of a number of errors, exact in the Poisson limit but for a hundredth: floor(mean + 1/3)."""
    return min(trials, math.floor(trials * probability + 1.0 / 3.0))


def _quantiles(number: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(special.ndtri((np.arange(number) + 0.5) / max(1, number)), dtype=np.float64)


def _cut(probability: float, mu: float) -> float:
    """The quantile of the half-and-half mixture of N(0, 1) and N(mu, 1), by bisection."""
    low, high = -40.0, mu + 40.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        mass = 0.5 * float(special.ndtr(middle)) + 0.5 * float(special.ndtr(middle - mu))
        low, high = (middle, high) if mass < probability else (low, middle)
    return 0.5 * (low + high)
