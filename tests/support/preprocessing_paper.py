"""Statements of Hu, Sanyal & Schoelkopf 2024 that the product does not use, as printed or repaired, to test against."""

from __future__ import annotations

import math
from typing import NamedTuple

from dpspec_preprocessing.private import PrivateMechanism, composed_slope, group_divergence, rdp_slope, srdp_slope
from dpspec_preprocessing.published import printed_rdp, printed_srdp

#: Theorem 7's slope of the distance to the closest data set with a small gap, 1 / (12.2 / n).
_PRINTED_SLOPE = 12.2


def theorem_2_at(
    m: PrivateMechanism, order: float, tau: float, changed: float, p: float = 2.0, q: float = 2.0
) -> float:
    """max(T1(p), T2(q)) with the paper's curves, as the theorem states it; its limit p = 1 for constant curves."""
    if m.kind in ("laplace", "exponential"):
        return printed_rdp(m, order) + printed_srdp(m, order, tau, changed)

    def rdp(a: float) -> float:
        return printed_rdp(m, a)

    def srdp(a: float) -> float:
        return printed_srdp(m, a, tau, changed)

    first = (order * p - 1.0) / (p * (order - 1.0)) * srdp(order * p) + rdp((p * order - 1.0) / (p - 1.0))
    second = (order * q - 1.0) / (q * (order - 1.0)) * rdp(order * q) + srdp((q * order - 1.0) / (q - 1.0))
    return max(first, second)


def epsilon_of_line(slope: float, delta: float) -> float:
    """slope + 2 sqrt(slope ln(1 / delta)): the classical conversion of D(a) = slope a."""
    return slope + 2.0 * math.sqrt(slope * -math.log(delta))


def without_replacement(records: int, batch: int, k: int) -> float:
    """P = prod_{i < B} (n - k B + 1 - i) / (n - i): no index of a batch falls among k B - 1 given ones."""
    product = 1.0
    for i in range(batch):
        product *= max(0.0, records - k * batch + 1.0 - i) / (records - i)
    return product


def with_replacement(records: int, batch: int, k: int) -> float:
    """Lemma 2's (1 - (k B - 1) / n)^B, as printed."""
    return (1.0 - (k * batch - 1.0) / records) ** batch


def subsampled(value: float, records: int, batch: int, *, printed: bool = False) -> tuple[float, int]:
    """Lemma 2 for a quadratic smooth curve: the least 2 P value / k^2 + 2 (1 - P) value over k, and that k.

    value: the curve at tau, at most 1 / (order - 1). printed: with P for sampling with replacement, which is refuted
    for batches of more than one record.
    """
    share = with_replacement if printed else without_replacement
    best = (math.inf, 1)
    for k in range(1, (records - 1) // batch + 1):
        p = share(records, batch, k)
        best = min(best, (2.0 * p * value / k**2 + 2.0 * (1.0 - p) * value, k))
        if 2.0 * (1.0 - p) * value > best[0]:  # grows with k, and is a part of what follows
            break
    return best


def excess_risk(lipschitz: float, tail: float) -> float:
    """2 L sqrt(tail): what dropping directions of total variance ``tail`` costs. Proposition 8 prints 2 L tail."""
    return 2.0 * lipschitz * math.sqrt(tail)


class Theorem7(NamedTuple):
    """Its total epsilon, the order that its proof takes, and the largest delta that it states."""

    total: float
    order: float
    largest_delta: float


def theorem_7(m: PrivateMechanism, beta: float, epsilon: float, delta: float) -> Theorem7:
    """3 e sqrt(1.05 (1 + 12.2^2 mu^2 / (L^2 beta^2)) ln(1 / delta)) + e, as printed."""
    squared = 1.05 * (1.0 + (_PRINTED_SLOPE * m.reach / beta) ** 2)
    total = 3.0 * epsilon * math.sqrt(squared * math.log(1.0 / delta)) + epsilon
    order = 1.0 + math.sqrt(math.log(1.0 / delta) / squared) / epsilon
    return Theorem7(total, order, math.exp(-(epsilon**2) * squared))


def printed_gap_distance(gap: float, beta: float, records: int) -> float:
    """Theorem 7's number of records to be replaced before the eigengap is below ``beta``."""
    return max(0.0, (gap - beta) / (_PRINTED_SLOPE / records))


def printed_refusal(distance: float, delta: float, epsilon: float) -> float:
    """Proposition 8's bound on the probability of a refusal, half of the truth for the algorithm's own threshold."""
    return math.exp(-distance * epsilon) / (2.0 * delta)


def tested_total(m: PrivateMechanism, tau: float, changed: float, epsilon: float, delta: float) -> float:
    """c + 2 sqrt(c ln(1 / delta)) + epsilon for a line of slope c behind a test of ``epsilon``, at distance ``tau``."""
    slope = min(composed_slope(rdp_slope(m), srdp_slope(m, tau)), group_divergence(m, 2.0, changed) / 2.0)
    return slope + 2.0 * math.sqrt(slope * math.log(1.0 / delta)) + epsilon


def tested_gap_total(m: PrivateMechanism, beta: float, epsilon: float, delta: float) -> float:
    """That for a projection and noisy full gradients: the smooth share at gap ``beta`` less the margin 4 / n."""
    e = 4.0 / m.records
    return tested_total(m, m.records * min(1.0, e / (beta - e)), m.records, epsilon, delta)
