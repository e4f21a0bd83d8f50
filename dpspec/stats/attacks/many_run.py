"""Auditing with many training runs: an attack's two error rates, each estimated on independent runs.

By a rule fixed in advance, the attack answers "present" in ``true_positives`` of the ``present`` and in
``false_positives`` of the ``absent`` runs. (epsilon, delta)-DP implies (Kairouz, Oh & Viswanath 2015)

    tpr <= e^epsilon fpr + delta   and   1 - fpr <= e^epsilon (1 - tpr) + delta.

So one lower Clopper-Pearson bound on tpr and one upper bound on fpr, each at half the level, suffice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpspec.accounting import bisect
from dpspec.stats import binomial
from dpspec.stats.attacks import curve_lines

#: Source of evidence and bounds of this kind.
SOURCE = "Clopper & Pearson 1934; Kairouz, Oh & Viswanath 2015"


def p_value(
    present: int, absent: int, true_positives: int, false_positives: int, epsilon: float, delta: float
) -> float:
    """Smallest level at which the two Clopper-Pearson bounds exclude (epsilon, delta)-DP, from above.

    This is the maximum over rates (tpr, fpr) that the null allows of
    2 min(P[Bin(present, tpr) >= true_positives], P[Bin(absent, fpr) <= false_positives]). Along the edge of the null
    the first rises with fpr and the second falls; bisection finds their crossing.
    """
    if not epsilon >= 0.0 or not 0.0 <= delta <= 1.0:
        raise ValueError(f"need epsilon >= 0 and 0 <= delta <= 1, got {epsilon}, {delta}")

    def from_present(fpr: float) -> float:
        # The largest true-positive rate that (epsilon, delta)-DP allows.
        exponent = min(epsilon, 700.0)
        rising = math.exp(exponent) * fpr + delta
        flat = 1.0 - math.exp(-exponent) * (1.0 - fpr - delta)
        return binomial.at_least(true_positives, present, min(1.0, max(0.0, min(rising, flat))))

    def from_absent(fpr: float) -> float:
        return binomial.at_most(false_positives, absent, fpr)

    if from_present(0.0) >= from_absent(0.0) or from_present(1.0) <= from_absent(1.0):
        return 1.0
    low, high = bisect(
        lambda fpr: from_present(fpr) < from_absent(fpr),
        0.0,
        1.0,
        enough=lambda low, high: high - low <= 1e-12 * high or high <= 1e-300,
    )
    # The minimum is smaller to the left of low and to the right of high; between them this is an upper bound.
    return min(1.0, 2.0 * min(from_present(high), from_absent(low)))


def curve_p_value(
    present: int, absent: int, true_positives: int, false_positives: int, points: Sequence[curve_lines.Point]
) -> float:
    """The minimum over ``points``, without correction: one pair of bounds excludes any of them; 1 without points."""
    counts = (present, absent, true_positives, false_positives)
    return min((p_value(*counts, epsilon, delta) for epsilon, delta in points), default=1.0)


def epsilon_lower(
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


def largest(present: int, absent: int, delta: float, confidence: float) -> float:
    return epsilon_lower(present, absent, present, 0, delta, confidence)
