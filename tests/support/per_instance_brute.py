"""Brute force: distributions of updates by enumerating batches, and divergences by enumeration."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp, ndtr


class Law(NamedTuple):
    """A distribution of updates: ``values`` (k, d) and ``log_masses`` (k,)."""

    values: np.ndarray
    log_masses: np.ndarray


def merged(values, log_masses):
    """Merge equal updates of a distribution."""
    distinct, where = np.unique(np.asarray(values, dtype=np.float64), axis=0, return_inverse=True)
    logs = np.asarray(log_masses, dtype=np.float64)
    where = np.asarray(where).reshape(-1)
    return Law(distinct, np.array([logsumexp(logs[where == k]) for k in range(len(distinct))]))


def exact(order, first, second, sigma):
    """Theorem 3.6 of D(first || second), over all multisets of updates."""
    a, k = order, len(first.values)
    chosen = np.array(list(itertools.combinations_with_replacement(range(k), a)))
    counts = np.zeros((len(chosen), k))
    np.add.at(counts, (np.arange(len(chosen))[:, None], chosen), 1.0)
    log_weights = gammaln(a + 1.0) - gammaln(counts + 1.0).sum(axis=1) + counts @ first.log_masses
    total = 0.0
    for outer, log_mass in zip(second.values, second.log_masses, strict=True):
        v = first.values - outer
        pairs = np.square(counts @ v).sum(axis=1) - counts @ np.square(v).sum(axis=1)
        total += math.exp(log_mass) * float(logsumexp(log_weights + pairs / (2.0 * sigma**2)))
    return total / (a - 1.0)


def updates(gradients, q, rule):
    """The distribution of U(batch) of ``gradients`` (n,), each drawn with probability q; the empty mean is 0."""
    rows = np.asarray(gradients, dtype=np.float64).reshape(-1, 1)
    values, logs = [], []
    for coins in itertools.product((0, 1), repeat=len(rows)):
        total = np.asarray(coins, dtype=np.float64) @ rows
        values.append(total / max(1, sum(coins)) if rule == "mean" else total)
        logs.append(sum(math.log(q if coin else 1.0 - q) for coin in coins))
    return merged(np.array(values), np.array(logs))


def pair(others, record, q, rule):
    """The distributions of updates with and without the record."""
    return updates([*others, record], q, rule), updates(others, q, rule)


def amplified_stick(mu, q):
    """The exact hockey stick of (1 - q) N(0, 1) + q N(mu, 1) against N(0, 1): the part above its only crossing."""

    def delta(epsilon):
        crossing = (math.log(math.expm1(epsilon) + q) - math.log(q)) / mu + mu / 2
        return float((1 - q - math.exp(epsilon)) * ndtr(-crossing) + q * ndtr(mu - crossing))

    return delta
