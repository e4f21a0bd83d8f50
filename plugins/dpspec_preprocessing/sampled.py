"""Divergence of steps that sample one record, proved in ``docs/explanation/proofs/preprocessing.md``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from dpspec.accounting import gaussian_rdp, sampled_gaussian_integer_rdp

Array: TypeAlias = np.ndarray[Any, Any]


def divergences(largest: int, rate: float, effect: float) -> Array:
    """Divergence of one step at integer orders 2 to ``largest``, shape (largest - 1,): ln(1 + excess) / (order - 1)."""
    orders = np.arange(2.0, largest + 1.0)
    if rate == 1.0:
        return gaussian_rdp(orders, effect)
    logs = (orders - 1.0) * sampled_gaussian_integer_rdp(orders, rate, 1.0 / effect)
    excess = logs + np.log(-np.expm1(-logs))  # ln(E[r^m] - 1)
    above = 0.5 * (1.0 + math.erf(1.5 * effect / math.sqrt(2.0)))
    share = above - np.exp((orders - 2.0) * math.log1p(-rate)) * (1.0 - above)
    variance = effect**2 + math.log(-math.expm1(-(effect**2)))
    added = np.log(0.5 * orders * (orders - 1.0) * share) + 2.0 * math.log(rate) + variance
    return np.asarray(np.logaddexp(0.0, np.logaddexp(excess, added)) / (orders - 1.0), dtype=np.float64)


def compose_sampled(curve: Sequence[float], slope: float, order: float) -> float:
    """Minimum of Theorem 2's T2 at q = k / a over integer orders k > a, for a curve e at integer orders.

    The minimum over k of a (k - 1) / (k (a - 1)) e(k) + s a (k - 1) / (k - a); infinite beyond the curve's end.
    """
    k = np.arange(math.floor(order) + 1, len(curve), dtype=np.float64)
    if not len(k):
        return math.inf
    values = order * (k - 1.0) / (k * (order - 1.0)) * np.asarray(curve)[k.astype(int)]
    values += slope * order * (k - 1.0) / (k - order)
    return float(values.min())
