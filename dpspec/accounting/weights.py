"""How many of k group members a batch holds: binomial and hypergeometric log-probabilities without gammaln.

A relative error of 1e-10 in a weight moves epsilon by T times as much after T steps, which rules out differences of
log-gamma values at the size of a data set. Ratios of neighbouring weights are exact to rounding; the anchor is either
an exact ln p_0 (where that is not small) or the sum to one.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from dpspec.accounting.checks import Floats

#: Above this ln p_0 the weights are anchored at p_0, below it they are normalised from their mode.
_ANCHOR = -30.0


def binomial(k: int, q: float) -> Floats:
    """ln P[Binomial(k, q) = j] for j = 0..k; shape (k + 1,). Rate 0 < q < 1."""
    j = np.arange(k, dtype=np.float64)
    ratios = np.log((k - j) / (j + 1.0)) + (math.log(q) - math.log1p(-q))
    return _from_ratios(ratios, k * math.log1p(-q))


def hypergeometric(k: int, n: int, batch_size: int) -> Floats:
    """ln P[Hypergeometric = j], j = 0..min(k, batch_size): ``batch_size`` balls drawn from k black and n white ones.

    Needs batch_size <= n, so that j = 0 is possible. p_0 is the product over i = 1..k of 1 - batch_size / (n + i), and
    p_{j+1} / p_j = (k - j) (batch_size - j) / ((j + 1) (n - batch_size + j + 1)).
    """
    i = np.arange(1, k + 1, dtype=np.float64)
    log_zero = float(np.sum(np.log1p(-batch_size / (n + i))))
    j = np.arange(min(k, batch_size), dtype=np.float64)
    ratios = np.log((k - j) / (j + 1.0)) + np.log((batch_size - j) / (n - batch_size + j + 1.0))
    return _from_ratios(ratios, log_zero)


def _from_ratios(ratios: Floats, log_zero: float) -> Floats:
    if log_zero > _ANCHOR:
        return log_zero + np.concatenate(([0.0], _running(ratios)))
    mode = int(np.sum(ratios > 0.0))  # ratios fall with j: the weights rise, then fall
    down = -_running(ratios[:mode][::-1])[::-1]
    logs = np.concatenate((down, [0.0], _running(ratios[mode:])))
    return np.asarray(logs - logsumexp(logs), dtype=np.float64)


def _running(values: Floats) -> Floats:
    """Cumulative sums with the rounding error of each addition carried along (Neumaier), (n,) for (n,)."""
    total = carry = 0.0
    sums = []
    for value in values.tolist():
        grown = total + value
        carry += (total - grown) + value if abs(total) >= abs(value) else (value - grown) + total
        total = grown
        sums.append(total + carry)
    return np.array(sums, dtype=np.float64)
