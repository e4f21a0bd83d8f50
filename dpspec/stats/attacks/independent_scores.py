"""A lower bound on epsilon from several runs with canaries, if the canaries of a run score independently.

In each run the share q of all canaries with the lowest scores is guessed absent, and as many with the highest scores
are guessed present. Scores are functions of the release, so for any mechanism with (epsilon, delta)-DP per canary the
expected share of correct guesses is p <= (e^epsilon + delta / (2 q)) / (1 + e^epsilon):

    epsilon >= ln((p - delta / (2 q)) / (1 - p)).

Runs are independent, so p has an approximate t-interval over the runs. Rare dependence within a run invalidates it: if
a release is informative with probability g only, all runs look informative with probability g^runs, and epsilon at
delta is the epsilon of the informative part at delta / g. So two conditions are added:

* A chi-square test does not reject that the spread over the runs is at most the one of independent guesses. Because
  it removes wide spreads, the standard error is at least the one of independent guesses.
* The standard error of epsilon is at least h D / runs, where D = -d epsilon / d ln(delta) and h is the hazard rate of
  the normal distribution at the confidence. Then g^runs falls faster than the error of the interval rises, so that the
  error is largest at g = 1.

Few guesses say little about a small delta. So the delta is the smallest one with almost the largest expected share of
the true epsilon.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

from dpspec.accounting import gaussian
from dpspec.stats.attacks.curve_lines import mixture_quantiles

#: Source of the bound.
SOURCE = "Kairouz, Oh & Viswanath 2015, averaged over canaries; Student 1908"

#: Minimum number of runs, of canaries per run, and of wrong guesses.
LEAST_RUNS, LEAST_CANARIES, LEAST_WRONG = 20, 20, 20

#: Level of the test of the spread, and the power with which ``Conditional.detectable`` is detected.
LEVEL, POWER = 0.05, 0.9

#: Candidates for delta, and for the share of canaries that is guessed on each side.
_DELTAS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_SHARES = np.geomspace(0.005, 0.35, 40)

#: A smaller delta is preferred if its expected share of the truth is this part of the largest one.
_NEAR = 0.98


class NoBoundError(ValueError):
    """The conditional bound is missing, for the reason in the message."""


class Design(NamedTuple):
    """The share of canaries that is guessed on each side, and the delta of the bound."""

    share: float
    delta: float


class Conditional(NamedTuple):
    """A bound, its number of guesses, and the test of the spread.

    ``detectable`` is the correlation between two guesses of a run that the test detects with probability 0.9.
    """

    epsilon: float
    guesses: int
    p_value: float
    detectable: float


@lru_cache(maxsize=64)
def design(mu: float, runs: int, canaries: int, delta: float, confidence: float) -> Design:
    """The design for an expected ``mu`` of a Gaussian curve, at ``delta`` or a larger one.

    It is fixed before the guessed ``runs``, of ``canaries`` each. A wrong ``mu`` makes the bound small, not false.
    """
    guesses = 2.0 * _SHARES * runs * canaries
    right = special.ndtr(mixture_quantiles(_SHARES, mu)) / (2.0 * _SHARES)
    lower = right - float(special.stdtrit(runs - 1, confidence)) * np.sqrt(right * (1.0 - right) / guesses)
    candidates = []
    for larger_delta in (delta, *(candidate for candidate in _DELTAS if candidate > delta)):
        odds = (lower - larger_delta / (2.0 * _SHARES)) / (1.0 - lower)
        odds[guesses * (1.0 - right) < 2 * LEAST_WRONG] = 0.0
        best = int(odds.argmax())
        truth = float(gaussian.epsilon(larger_delta, mu)) if mu > 0.0 else 0.0
        shown = math.log(max(1.0, float(odds[best]))) / truth if truth > 0.0 else 0.0
        candidates.append((shown, Design(share=float(_SHARES[best]), delta=larger_delta)))
    enough = _NEAR * max(shown for shown, _ in candidates)
    return next(chosen for shown, chosen in candidates if shown >= enough)


def epsilon_lower(outcomes: Sequence[str], chosen: Design, confidence: float) -> Conditional:
    """Lower bound on epsilon at the delta of the design.

    Args:
        outcomes: Each run's inclusion bits by ascending score, ties in an order that is independent of the bits.
        chosen: The design, fixed before these runs.
        confidence: Confidence of the bound.

    Raises:
        NoBoundError: The test rejects, or there are too few runs, canaries or wrong guesses.
    """
    runs = len(outcomes)
    if runs < LEAST_RUNS or min(map(len, outcomes)) < LEAST_CANARIES:
        raise NoBoundError(f"it needs {LEAST_RUNS} runs with {LEAST_CANARIES} canaries each")
    sides = [max(1, math.floor(chosen.share * len(coins))) for coins in outcomes]
    pairs = zip(outcomes, sides, strict=True)
    right = np.array([coins[:side].count("0") + coins[-side:].count("1") for coins, side in pairs], dtype=np.float64)
    guesses_per_run = 2.0 * np.array(sides)
    guesses = int(guesses_per_run.sum())
    mean = float(right.sum()) / guesses
    if guesses * (1.0 - mean) < LEAST_WRONG:
        raise NoBoundError(f"fewer than {LEAST_WRONG} guesses are wrong")
    residuals = right - mean * guesses_per_run
    degrees = runs - 1
    p_value = float(special.chdtrc(degrees, float(np.sum(residuals**2 / guesses_per_run)) / (mean * (1.0 - mean))))
    if p_value <= LEVEL:
        raise NoBoundError(f"runs differ more than with independent scores (p = {p_value:.2g})")
    free = chosen.delta * sum(map(len, outcomes)) / guesses  # delta / (2 q)
    epsilon = 0.0
    if mean > free:
        slope = 1.0 / (mean - free) + 1.0 / (1.0 - mean)  # d epsilon / d p
        z = float(special.ndtri(confidence))
        hazard = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / (1.0 - confidence)
        least_error = hazard * free / (mean - free) / runs / slope
        independent = mean * (1.0 - mean) * guesses
        error = math.sqrt(max(independent, runs / degrees * float(residuals @ residuals))) / guesses
        lower = mean - float(special.stdtrit(degrees, confidence)) * max(error, least_error)
        epsilon = math.log(max(1.0, (lower - free) / (1.0 - lower)))
    ratio = float(special.chdtri(degrees, LEVEL) / special.chdtri(degrees, POWER))
    return Conditional(epsilon, guesses, p_value, detectable=(ratio - 1.0) / max(1.0, guesses / runs - 1.0))
