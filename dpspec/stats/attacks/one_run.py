"""Auditing with one training run: how many of many independent coins an attack guesses right.

Each of m canaries (a record, or a group of records when the audit is about groups) is planted or left out by its own
fair coin. An attack that sees the release guesses r of the coins, a number fixed before the coins are seen, and v
guesses are right (Steinke, Nasr & Jagielski 2023, "Privacy Auditing with One (1) Training Run"). If the release is
(epsilon, delta)-DP when any one coin is flipped, either way, then with W ~ Bin(r, q), q = 1 / (1 + e^-epsilon),

    P[V >= v] <= beta + m delta beta (1 - beta) / (v P[W = v]),    beta = P[W >= v].

Proof. Let p_d be the chance of d wrong guesses, and M(t | s) that of answer t when the coins are s. Sum the DP
inequality M(t | s) - e^epsilon M(t | s with coin j flipped) <= its slack over all s, all j and all t that guess coin j
right: a pair (s, t) with d wrong guesses comes up r - d times on the left and d times on the right, so that

    sum over d of max(0, (r - d) p_d - e^epsilon (d + 1) p_(d+1)) <= m delta.

The binomial masses b_d of r - W meet every term with equality 0. So p is a multiple of b plus, for each d, the term's
excess times the solution b_0, ..., b_d (rest 0) over (r - d) b_d; with sum p = 1, excess 1 at d adds to P[V >= v]
exactly (1 - beta) B(d) / ((r - d) b_d) if d <= r - v, and beta (1 - B(d)) / ((r - d) b_d) otherwise, B the sums of b.
As b is log-concave the first rises and the second falls with d: the largest is at d = r - v, where they agree.

For delta = 0 this is their Theorem 5.2. For delta > 0 it replaces their correction 2 m delta max_i P[v > W >= v - i]/i,
which mechanisms can exceed where v is small (m = r = 2, v = 1, epsilon = 1.5, delta = 0.05: 0.9776 is reached, 0.9734
stated), and which is several times larger where tests are made. Averaging over coins is the idea of Mahloujifar,
Melis & Chaudhuri 2025. Wherever the bound is below 1 some mechanism reaches it: the p of the proof meets the reversed
inequalities too. So it rises with epsilon and delta and falls with v, as what it bounds does.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import special

from dpspec.accounting import bisect_by_margin

#: What evidence and bounds of this kind name as their source.
SOURCE = "Steinke, Nasr & Jagielski 2023, Theorem 5.2, with the exact correction for delta > 0"

#: gammaln is off by a few units in the last place: this much of its size is added to the correction's logarithm.
_ROUNDING = 1e-15


@lru_cache(maxsize=1 << 16)  # searches over several guess counts come back to the same numbers again and again
def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """A valid p-value for the null "(epsilon, delta)-DP per canary": the bound of the module's docstring, at most 1.

    Errs upwards only. Raises ``ValueError`` unless 0 <= correct <= guesses <= canaries, epsilon >= 0 and
    0 <= delta <= 1.

    >>> round(p_value(100, 100, 75, math.log(3), 0.0), 3)
    0.553
    """
    beta = independent(canaries, guesses, correct, epsilon, delta)
    return min(1.0, beta + _correction(canaries, guesses, correct, epsilon, delta, beta)) if beta < 1.0 else 1.0


def rejects(canaries: int, guesses: int, correct: int, epsilon: float, delta: float, level: float) -> bool:
    """Whether :func:`p_value` is at most ``level``, below 1; the second term is not asked for where the first is more.

    Raises as that does.
    """
    beta = independent(canaries, guesses, correct, epsilon, delta)
    return beta <= level and beta + _correction(canaries, guesses, correct, epsilon, delta, beta) <= level


def independent(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The first term of the bound: beta = P[W >= correct], what independent guesses reach at delta = 0."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"need 0 <= correct <= guesses <= canaries, got {correct}, {guesses}, {canaries}")
    if not epsilon >= 0.0 or not 0.0 <= delta <= 1.0:
        raise ValueError(f"need epsilon >= 0 and 0 <= delta <= 1, got {epsilon}, {delta}")
    if correct == 0:
        return 1.0
    # The chance of a wrong guess keeps its digits where q itself rounds to 1.
    return float(special.betaincc(guesses - correct + 1, correct, special.expit(-epsilon)))


def correction(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The second term of the bound, what delta > 0 adds: m delta beta (1 - beta) / (v P[W = v]), at most 1."""
    return _correction(
        canaries, guesses, correct, epsilon, delta, independent(canaries, guesses, correct, epsilon, delta)
    )


def _correction(canaries: int, guesses: int, correct: int, epsilon: float, delta: float, beta: float) -> float:
    """:func:`correction`, where ``beta`` is known."""
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
    """The largest epsilon rejected at level 1 - confidence, from below; 0 when not even epsilon = 0 is rejected.

    With probability at least ``confidence`` the true epsilon at ``delta`` is no smaller. Bisection on the p-value,
    which rises with epsilon; the end that is rejected is returned.
    """
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
        """0 or more where epsilon is rejected; in standard deviations of a normal law, where it is nearly a line."""
        return float(special.ndtri(level) - special.ndtri(p_value(canaries, guesses, correct, epsilon, delta)))

    return bisect_by_margin(margin, low, high, relative=1e-10)[0]


def _log_tail_ratio(guesses: int, correct: int, epsilon: float, beta: float) -> float:
    """ln(beta / P[W = correct]), W ~ Bin(guesses, 1 / (1 + e^-epsilon)), beta = P[W >= correct], not too small.

    Where the tail is too small to be divided by, its terms shrink faster than by their first ratio rho, and
    1 / (1 - rho) is no smaller.
    """
    choose = special.gammaln(guesses + 1) - special.gammaln(correct + 1) - special.gammaln(guesses - correct + 1)
    log_mass = choose + correct * special.log_expit(epsilon) + (guesses - correct) * special.log_expit(-epsilon)
    if beta > 1e-280:
        size = guesses * (1.0 + math.log(guesses + 1.0) + epsilon)
        return math.log(beta) - float(log_mass) + _ROUNDING * size
    return -math.log1p(-(guesses - correct) / (correct + 1.0) * math.exp(epsilon))
