"""Auditing with one training run: the number of independent coins that an attack guesses right.

Each of m canaries is inserted by an independent fair coin. An attack guesses r of the coins, and v guesses are right
(Steinke, Nasr & Jagielski 2023). If the release is (epsilon, delta)-DP with respect to each coin, then with
W ~ Bin(r, q), q = 1 / (1 + e^-epsilon), by Theorem 6 of ``docs/explanation/proofs/one-run.md``,

    P[V >= v] <= beta + m delta beta (1 - beta) / (v P[W = v]),    beta = P[W >= v].
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import special

from dpspec.accounting import bisect_by_margin

#: Source of evidence and bounds of this kind.
SOURCE = "Steinke, Nasr & Jagielski 2023, Theorem 5.2, with the exact correction for delta > 0"

#: Bound on the relative error of gammaln, added to the log of the correction.
_ROUNDING = 1e-15


@lru_cache(maxsize=1 << 16)  # searches over several guess counts repeat the same arguments
def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """P-value of the null "(epsilon, delta)-DP per canary", rounded up.

    >>> round(p_value(100, 100, 75, math.log(3), 0.0), 3)
    0.553
    """
    beta = independent(canaries, guesses, correct, epsilon, delta)
    return min(1.0, beta + _correction(canaries, guesses, correct, epsilon, delta, beta)) if beta < 1.0 else 1.0


def rejects(canaries: int, guesses: int, correct: int, epsilon: float, delta: float, level: float) -> bool:
    beta = independent(canaries, guesses, correct, epsilon, delta)
    return beta <= level and beta + _correction(canaries, guesses, correct, epsilon, delta, beta) <= level


def independent(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The first term of the bound, beta = P[W >= correct]."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"need 0 <= correct <= guesses <= canaries, got {correct}, {guesses}, {canaries}")
    if not epsilon >= 0.0 or not 0.0 <= delta <= 1.0:
        raise ValueError(f"need epsilon >= 0 and 0 <= delta <= 1, got {epsilon}, {delta}")
    if correct == 0:
        return 1.0
    # The probability of a wrong guess keeps its precision if q rounds to 1.
    return float(special.betaincc(guesses - correct + 1, correct, special.expit(-epsilon)))


def correction(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The second term of the bound, m delta beta (1 - beta) / (v P[W = v]), at most 1."""
    return _correction(
        canaries, guesses, correct, epsilon, delta, independent(canaries, guesses, correct, epsilon, delta)
    )


def _correction(canaries: int, guesses: int, correct: int, epsilon: float, delta: float, beta: float) -> float:
    if delta == 0.0 or correct == 0:
        return 0.0
    rest = float(special.betainc(guesses - correct + 1, correct, special.expit(-epsilon)))
    if rest == 0.0:
        return 0.0
    log_correction = (
        math.log(canaries * delta / correct) + math.log(rest) + _log_tail_ratio(guesses, correct, epsilon, beta)
    )
    return math.exp(min(0.0, log_correction))


def epsilon_lower(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    level = 1.0 - confidence

    def rejected(epsilon: float) -> bool:
        return rejects(canaries, guesses, correct, epsilon, delta, level)

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2.0 * high

    def margin(epsilon: float) -> float:
        """Nonnegative if epsilon is rejected; as normal scores, which are nearly linear in epsilon."""
        return float(special.ndtri(level) - special.ndtri(p_value(canaries, guesses, correct, epsilon, delta)))

    return bisect_by_margin(margin, low, high, relative=1e-10)[0]


def _log_tail_ratio(guesses: int, correct: int, epsilon: float, beta: float) -> float:
    """Upper bound on ln(beta / P[W = correct]).

    If beta underflows, 1 / (1 - rho) is an upper bound, where rho is the ratio of the first two terms of the tail.
    """
    choose = special.gammaln(guesses + 1) - special.gammaln(correct + 1) - special.gammaln(guesses - correct + 1)
    log_mass = choose + correct * special.log_expit(epsilon) + (guesses - correct) * special.log_expit(-epsilon)
    if beta > 1e-280:
        size = guesses * (1.0 + math.log(guesses + 1.0) + epsilon)
        return math.log(beta) - float(log_mass) + _ROUNDING * size
    return -math.log1p(-(guesses - correct) / (correct + 1.0) * math.exp(epsilon))
