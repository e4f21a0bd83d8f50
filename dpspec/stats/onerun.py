"""Auditing with one training run: how many of many independent coins an attack guesses right.

Each of m canaries (a record, or a group of records when the audit is about groups) is planted or left out by its own
fair coin. An attack that sees the release guesses r of the coins, a number fixed before the coins are seen, and v
guesses are right. Under (epsilon, delta)-differential privacy in both directions, Steinke, Nasr & Jagielski (2023,
"Privacy Auditing with One (1) Training Run", Theorem 5.2 and Corollary 5.4) bound the chance of so many:

    P[V >= v] <= beta + 2 m delta alpha,
    beta  = P[W >= v],                              W ~ Bin(r, q), q = 1 / (1 + e^-epsilon),
    alpha = max over 1 <= i <= v of P[v > W >= v - i] / i.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

_FIRST_TERMS = 1024


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """A valid p-value for the null "(epsilon, delta)-DP per canary": min(1, beta + 2 m delta alpha).

    Errs upwards only (it is a bound on the tail). Raises ``ValueError`` unless 0 <= correct <= guesses <= canaries,
    epsilon >= 0 and 0 <= delta <= 1.

    >>> round(p_value(100, 100, 75, math.log(3), 0.0), 3)
    0.553
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"need 0 <= correct <= guesses <= canaries, got {correct}, {guesses}, {canaries}")
    if not epsilon >= 0.0 or not 0.0 <= delta <= 1.0:
        raise ValueError(f"need epsilon >= 0 and 0 <= delta <= 1, got {epsilon}, {delta}")
    if correct == 0:
        return 1.0
    # The chance of a wrong guess keeps its digits where q itself rounds to 1.
    wrong = float(special.expit(-epsilon))
    beta = float(special.betaincc(guesses - correct + 1, correct, wrong))
    if delta == 0.0:
        return min(1.0, beta)
    return min(1.0, beta + 2.0 * canaries * delta * _alpha(guesses, correct, epsilon))


def epsilon_lower(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest epsilon rejected at level 1 - confidence, from below; 0 when not even epsilon = 0 is rejected.

    With probability at least ``confidence`` the true epsilon at ``delta`` is no smaller. Bisection on the p-value,
    which does not decrease in epsilon below one half; the end that is rejected is returned.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    level = 1.0 - confidence

    def rejected(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) <= level

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2.0 * high
    while high - low > 1e-10 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def largest(canaries: int, guesses: int, delta: float, confidence: float) -> float:
    """The power of the design: the lower bound on epsilon that ``guesses`` right guesses out of as many give."""
    return epsilon_lower(canaries, guesses, guesses, delta, confidence)


def _alpha(guesses: int, correct: int, epsilon: float) -> float:
    """max over 1 <= i <= correct of P[correct > W >= correct - i] / i, W ~ Bin(guesses, 1 / (1 + e^-epsilon)).

    No i beyond the reciprocal of a value already reached can win, so that far fewer than ``correct`` terms are summed.
    """
    log_right, log_wrong = special.log_expit(epsilon), special.log_expit(-epsilon)
    terms = min(correct, _FIRST_TERMS)
    while True:
        i = np.arange(1, terms + 1, dtype=np.float64)
        w = correct - i
        log_choose = special.gammaln(guesses + 1) - special.gammaln(w + 1) - special.gammaln(guesses - w + 1)
        mass = np.exp(log_choose + w * log_right + (guesses - w) * log_wrong)
        alpha = float(np.max(np.cumsum(mass) / i))
        if terms == correct or alpha * terms >= 1.0:
            # gammaln loses up to 1e-16 times its size, which must not make the p-value too small.
            return alpha * (1.0 + 1e-15 * (1.0 + guesses * math.log(guesses + 2.0)))
        terms = min(correct, 4 * terms)
