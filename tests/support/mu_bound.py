"""What a whole Gaussian curve shows of one run: the least mu that its test does not reject."""

from __future__ import annotations

from dpspec.stats.attacks import curve_lines
from dpspec.stats.attacks.one_run_curve import p_value


def mu_lower(canaries: int, guesses: int, correct: int, confidence: float) -> float:
    """A lower bound on the least mu for which the release is mu-GDP per canary; 0 when nothing is rejected.

    At or below that mu with probability at least ``confidence``, whatever the mechanism: the probability of as many
    right guesses is bounded for every smaller mu too. It says nothing of epsilon at one delta: a curve that is not
    Gaussian may have a smaller epsilon there.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")

    def rejected(mu: float) -> bool:
        return p_value(canaries, guesses, correct, curve_lines.gaussian(mu)) <= 1.0 - confidence

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high) and high < 100.0:
        low, high = high, 2.0 * high
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
