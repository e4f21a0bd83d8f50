"""How many canaries to guess: decided from the declared mechanism alone, before any coin is seen.

The adversary scores each canary by its log-likelihood ratio over all steps. Over many steps the scores are close to
normal under either hypothesis, with moments that one quadrature per phase gives. From them follows how often the
r most extreme scores are guessed right, and so the r that can be expected to show the largest epsilon. A wrong
normal approximation can only cost tightness: the test itself holds for any r that was fixed in advance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from dpspec.accounting.checks import Floats
from dpspec.accounting.mixture import Mixture
from dpspec.stats import onerun

#: Grid of guess counts tried, as fractions of the canaries.
_FRACTIONS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8, 1.0)

#: With fewer guesses than this no interesting epsilon can be shown.
_LEAST_GUESSES = 8


@dataclass(frozen=True, kw_only=True)
class Design:
    """A guess count with what it can be expected to show, and what it would show if every guess were right."""

    guesses: int
    expected_epsilon: float
    largest_epsilon: float


@dataclass(frozen=True, kw_only=True)
class ScoreLaw:
    """Mean and standard deviation of the total score of a canary that is absent, and of one that is present."""

    absent_mean: float
    absent_std: float
    present_mean: float
    present_std: float

    def accuracy(self, guesses: int, canaries: int) -> float:
        """The expected share of right guesses when the extreme half of ``guesses`` on either side is guessed."""
        share = 0.5 * guesses / canaries
        top = self._cut(1.0 - share)
        bottom = self._cut(share)
        right = 0.5 * (1.0 - _cdf(top, self.present_mean, self.present_std))
        right += 0.5 * _cdf(bottom, self.absent_mean, self.absent_std)
        return min(1.0, right / (2.0 * share))

    def _cut(self, probability: float) -> float:
        """The quantile of the half-and-half mixture of both laws, by bisection."""
        spread = 12.0 * max(self.absent_std, self.present_std)
        low = min(self.absent_mean, self.present_mean) - spread
        high = max(self.absent_mean, self.present_mean) + spread
        for _ in range(200):
            middle = 0.5 * (low + high)
            mass = 0.5 * _cdf(middle, self.absent_mean, self.absent_std)
            mass += 0.5 * _cdf(middle, self.present_mean, self.present_std)
            low, high = (middle, high) if mass < probability else (low, middle)
        return 0.5 * (low + high)


def score_law(phases: Sequence[tuple[Mixture, int]]) -> ScoreLaw:
    """The moments of the log-likelihood ratio summed over the steps of all phases, by quadrature on a grid."""
    moments = np.zeros(4)
    for mixture, steps in phases:
        sigma, top = mixture.sigma, float(np.max(mixture.sensitivities))
        points = max(4001, min(400_001, int((top / sigma + 24.0) * 100)))
        x = np.linspace(-12.0 * sigma, top + 12.0 * sigma, points)
        loss = mixture.log_ratio(x)
        absent = np.exp(-0.5 * (x / sigma) ** 2)
        absent /= absent.sum()
        present = _mixture_weights(mixture, x)
        for weights, at in ((absent, 0), (present, 2)):
            mean = float(weights @ loss)
            moments[at] += steps * mean
            moments[at + 1] += steps * float(weights @ (loss - mean) ** 2)
    return ScoreLaw(
        absent_mean=moments[0],
        absent_std=math.sqrt(max(moments[1], 1e-300)),
        present_mean=moments[2],
        present_std=math.sqrt(max(moments[3], 1e-300)),
    )


def end_to_end_law(phases: Sequence[tuple[Mixture, int]]) -> ScoreLaw:
    """The moments of what a planted group adds to the final model along its direction, and of the noise there."""
    noise = sum(steps * mixture.sigma**2 for mixture, steps in phases)
    mean = spread = 0.0
    for mixture, steps in phases:
        first = float(mixture.probabilities @ mixture.sensitivities)
        mean += steps * first
        spread += steps * (float(mixture.probabilities @ mixture.sensitivities**2) - first**2)
    return ScoreLaw(
        absent_mean=0.0,
        absent_std=math.sqrt(noise),
        present_mean=mean,
        present_std=math.sqrt(noise + spread),
    )


def design(law: ScoreLaw, canaries: int, delta: float, confidence: float) -> Design:
    """The guess count that is expected to show the largest epsilon at ``delta`` with ``canaries`` coins."""
    best: Design | None = None
    for fraction in _FRACTIONS:
        guesses = 2 * round(fraction * canaries / 2)
        if guesses < min(_LEAST_GUESSES, canaries) or guesses > canaries:
            continue
        candidate = promise(law, guesses, canaries, delta, confidence)
        if best is None or candidate.expected_epsilon > best.expected_epsilon:
            best = candidate
    if best is None:
        raise ValueError(f"{canaries} canaries are too few for any guess")
    return best


def promise(law: ScoreLaw, guesses: int, canaries: int, delta: float, confidence: float) -> Design:
    """What one guess count can be expected to show, and could show at best, at a confidence of its own."""
    correct = math.floor(guesses * law.accuracy(guesses, canaries))
    return Design(
        guesses=guesses,
        expected_epsilon=onerun.epsilon_lower(canaries, guesses, correct, delta, confidence),
        largest_epsilon=onerun.largest(canaries, guesses, delta, confidence),
    )


def _mixture_weights(mixture: Mixture, x: Floats) -> Floats:
    weights: Floats = np.zeros_like(x)
    for sensitivity, probability in zip(mixture.sensitivities, mixture.probabilities, strict=True):
        weights += probability * np.exp(-0.5 * ((x - sensitivity) / mixture.sigma) ** 2)
    weights /= weights.sum()
    return weights


def _cdf(x: float, mean: float, std: float) -> float:
    return float(ndtr((x - mean) / std))
