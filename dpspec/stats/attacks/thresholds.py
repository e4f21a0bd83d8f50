"""Auditing with many training runs, at a threshold fixed in advance or chosen on the same runs.

The attack answers "present" in ``true_positives`` of the ``present`` and in ``false_positives`` of the ``absent`` runs.
The test needs one lower Clopper-Pearson bound on the true-positive rate and one upper bound on the false-positive rate,
each at half the level ("Thresholds" in ``docs/explanation/proofs/independent-runs.md``). Chosen thresholds leave 0, 1,
2, 4, 8, ... errors on one side (Bonferroni).

>>> ranked = outcomes([3.1, 0.2, 2.7, 0.9] * 20, [1, 0, 1, 0] * 20)  # the scores separate the runs
>>> round(epsilon_lower(ranked, 1e-5, 0.95), 3), round(fixed_epsilon_lower(40, 40, 40, 0, 1e-5, 0.95), 3)
(1.764, 2.337)
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dpspec.accounting import crossing
from dpspec.stats import binomial
from dpspec.stats.attacks import curve_lines

#: ln of the smallest false-positive rate at which the probabilities of both errors are compared.
_LEAST_LOG_RATE = -690.0


def fixed_curve_p_value(
    present: int, absent: int, true_positives: int, false_positives: int, points: Sequence[curve_lines.Point]
) -> float:
    """Smallest level at which the two Clopper-Pearson bounds exclude (epsilon, delta)-DP at some point, from above.

    For one point this is the maximum over rates (tpr, fpr) that the null allows of
    2 min(P[Bin(present, tpr) >= true_positives], P[Bin(absent, fpr) <= false_positives]). Along the edge of the null
    the first rises with fpr and the second falls; bisection finds their crossing. The minimum over points needs no
    correction: one pair of bounds excludes any of them. It is 1 without points.
    """
    # P[Bin(absent, fpr) <= false_positives] is at least half of ``least`` at ``best_fpr``
    least, best_fpr = 1.0, binomial.upper(false_positives, absent, 0.5)

    def from_present(fpr: float, epsilon: float, delta: float) -> float:
        # The largest true-positive rate that (epsilon, delta)-DP allows.
        exponent = min(epsilon, 700.0)
        rising = math.exp(exponent) * fpr + delta
        flat = 1.0 - math.exp(-exponent) * (1.0 - fpr - delta)
        return binomial.at_least(true_positives, present, min(1.0, max(0.0, min(rising, flat))))

    def from_absent(fpr: float) -> float:
        return binomial.at_most(false_positives, absent, fpr)

    for epsilon, delta in points:
        curve_lines.require_privacy(epsilon, delta)
        if 2.0 * from_present(best_fpr, epsilon, delta) >= least:
            continue  # the p-value of this point is at least ``least``

        def log_ratio(log_fpr: float, epsilon: float = epsilon, delta: float = delta) -> float:
            """ln of the ratio of the falling to the rising probability, at the logarithm of a false-positive rate."""
            fpr = math.exp(log_fpr)
            rising, falling = from_present(fpr, epsilon, delta), from_absent(fpr)
            if falling == 0.0:
                return -math.inf
            return math.log(falling) - math.log(rising) if rising > 0.0 else math.inf

        if log_ratio(_LEAST_LOG_RATE) < 0.0 or log_ratio(0.0) >= 0.0:
            continue
        low, high = map(math.exp, crossing(log_ratio, _LEAST_LOG_RATE, 0.0, within=1e-12))
        # The minimum is smaller to the left of low and to the right of high; between them this is an upper bound.
        p_value = 2.0 * min(from_present(high, epsilon, delta), from_absent(low))
        if p_value < least:
            least, best_fpr = p_value, low
    return least


def fixed_epsilon_lower(
    present: int, absent: int, true_positives: int, false_positives: int, delta: float, confidence: float
) -> float:
    """Largest epsilon that the two Clopper-Pearson bounds exclude, or 0.

    max(ln((tpr - delta) / fpr), ln((1 - fpr - delta) / (1 - tpr))) at the lower bound of tpr and the upper bound of
    fpr.
    """
    one_sided = 1.0 - (1.0 - confidence) / 2.0
    tpr = binomial.lower(true_positives, present, one_sided)
    fpr = binomial.upper(false_positives, absent, one_sided)
    ratios = ((tpr - delta) / fpr, (1.0 - fpr - delta) / (1.0 - tpr))
    return max((math.log(r) * (1.0 - 1e-12) for r in ratios if r > 1.0), default=0.0)


def fixed_largest(present: int, absent: int, delta: float, confidence: float) -> float:
    return fixed_epsilon_lower(present, absent, present, 0, delta, confidence)


#: Source of evidence and bounds of this kind.
SOURCE = "Clopper & Pearson 1934 at order statistics, Bonferroni over error counts fixed in advance"


def outcomes(scores: npt.ArrayLike, present: npt.ArrayLike) -> str:
    """Present ("1") and absent ("0") runs by ascending score (n,); ties against the attack, present first."""
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(present, dtype=bool)
    if values.ndim != 1 or values.shape != coins.shape or np.isnan(values).any():
        raise ValueError("scores and present must be vectors of equal length, without NaN")
    return "".join("1" if coins[i] else "0" for i in np.lexsort((~coins, values)))


def p_value(outcomes: str, points: Sequence[curve_lines.Point]) -> float:
    tried = list(_tried(outcomes))
    least = min((fixed_curve_p_value(*counts, points) for counts in tried), default=1.0)
    return min(1.0, max(1, len(tried)) * least)


def epsilon_lower(outcomes: str, delta: float, confidence: float) -> float:
    """Largest lower bound on epsilon at ``delta`` over the thresholds, jointly valid at ``confidence``."""
    tried = list(_tried(outcomes))
    confidence_of_each = 1.0 - (1.0 - confidence) / max(1, len(tried))
    return max((fixed_epsilon_lower(*counts, delta, confidence_of_each) for counts in tried), default=0.0)


def largest(present: int, absent: int, delta: float, confidence: float) -> float:
    return epsilon_lower(absent * "0" + present * "1", delta, confidence)


def _tried(outcomes: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield the present and absent runs, and the true and false positives, at each threshold."""
    if set(outcomes) - {"0", "1"}:
        raise ValueError("outcomes must be a string of 0 and 1")
    present, absent = outcomes.count("1"), outcomes.count("0")
    if not present or not absent:
        return
    ranks = {coin: [i for i, c in enumerate(outcomes) if c == coin] for coin in "01"}
    for false in _few(absent):
        above = len(outcomes) - 1 - ranks["0"][absent - 1 - false]
        yield present, absent, above - false, false
    for missed in _few(present):
        below = ranks["1"][missed]
        yield present, absent, present - missed, absent - (below - missed)


def _few(runs: int) -> list[int]:
    return [0, *(2**k for k in range(runs.bit_length()) if 2**k < runs)]
