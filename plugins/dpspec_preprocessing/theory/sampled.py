"""Divergence of steps that sample one record, proved for gradients in every direction.

A step draws one of n records and adds noise of standard deviation sigma to its gradient, of norm at most L. Neighbours
give

    A = (1 - q) P + q N(a),   B = (1 - q) P + q N(b),   q = 1 / n,   P the mean of N(g) over the other records,

all centres within 2 L of each other. With s = 2 L / sigma, z standard normal, u = q (e^(s z - s^2 / 2) - 1), r = 1 + u:

1. A and B are the means, over the other records g, of (1 - q) N(g) + q N(a) and of (1 - q) N(g) + q N(b), and
   hockey-stick divergences H_c are jointly convex. For each g, advanced joint convexity (Balle, Barthe & Gaboardi 2018,
   Theorem 2) gives H_c(A || B) <= q H_d(N(a) || (1 - w) N(g) + w N(b)) with d = 1 + (c - 1) / q, for all c >= 1. This
   is at most q H_d of two Gaussians s apart, which is E[(r - c)+]. The same holds for H_c(B || A).
2. E_B[(A / B)^m] - 1 = m (m - 1) integral_1^oo of c^(m - 2) H_c(A || B) + c^(-m - 1) H_c(B || A) dc (Sason & Verdu
   2016), hence at most E[r^m + r^(1 - m) - r - 1; u > 0], and that, since r^(1 - m) <= 1 - (m - 1) u + C(m, 2) u^2
   there, at most E[r^m - 1 - m u; u > 0] + C(m, 2) E[u^2; u > 0].
3. E[u] = 0, and r^m - 1 - m u >= C(m, 2) (1 - q)^(m - 2) u^2 for -q <= u < 0, so that the first expectation is at most
   E[r^m] - 1 - C(m, 2) (1 - q)^(m - 2) E[u^2; u < 0].
4. E[u^2] = q^2 (e^(s^2) - 1), and E[u^2; u > 0] is at most Phi(3 s / 2) times this.

E[r^m] belongs to one fixed pair, (1 - q) N(0) + q N(2 L) against N(0), as in accountants of Poisson sampling. It alone
is not an upper bound here: centers at the corners of a triangle of side 2 L exceed it. The added term at most doubles
it.

With k replaced records q = k / n, and N(a), N(b) denote any of their pairs: the same steps hold by convexity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from dpspec.accounting import gaussian_rdp, sampled_gaussian_integer_rdp

Array: TypeAlias = np.ndarray[Any, Any]


def divergences(largest: int, rate: float, effect: float) -> Array:
    """Divergence of one step at integer orders 2, 3, ..., ``largest``: ln(1 + excess) / (order - 1).

    Args:
        largest: Largest order.
        rate: q, above 0 and at most 1.
        effect: s = 2 L / sigma, above 0.

    Returns:
        Divergences, shape (largest - 1,).
    """
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

    Args:
        curve: e by integer order, from 2.
        slope: s, the smooth divergence divided by its order.
        order: a, above 1.
    """
    k = np.arange(math.floor(order) + 1, len(curve), dtype=np.float64)
    if not len(k):
        return math.inf
    values = order * (k - 1.0) / (k * (order - 1.0)) * np.asarray(curve)[k.astype(int)]
    values += slope * order * (k - 1.0) / (k - order)
    return float(values.min())
