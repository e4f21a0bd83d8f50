"""Smaller statements of the paper with numbers in them: sampling a smooth mechanism, and bounds on truncation."""

from __future__ import annotations

import math


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


def logistic(radius: float) -> tuple[float, float]:
    """L and mu of the logistic loss for ||x|| <= 1, ||theta|| <= R: 1 / (1 + e^-R) and that plus R / 4."""
    bound = 1.0 / (1.0 + math.exp(-radius))
    return bound, bound + radius / 4.0


def squared(radius: float) -> tuple[float, float]:
    """L and mu of (theta x - y)^2 / 2 for ||x|| <= 1, |y| <= 1, ||theta|| <= R: R + 1 and 2 R + 1."""
    return radius + 1.0, 2.0 * radius + 1.0
