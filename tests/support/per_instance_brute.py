"""The slow obvious way: laws of updates by listing batches, and divergences by integration or by listing paths."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.special import logsumexp

from dpspec_per_instance.tuples import Law, merged


def updates(gradients, rates, rule):
    """The law of U(batch): each row of ``gradients`` (n, d) enters with its probability; the empty mean is 0."""
    rows = np.asarray(gradients, dtype=np.float64)
    rows = rows.reshape(len(rows), -1)
    values, logs = [], []
    for coins in itertools.product((0, 1), repeat=len(rows)):
        mass = math.prod(q if c else 1.0 - q for c, q in zip(coins, rates, strict=True))
        if mass == 0.0:
            continue
        total = np.asarray(coins, dtype=np.float64) @ rows
        values.append(total / max(1, sum(coins)) if rule == "mean" else total)
        logs.append(math.log(mass))
    return merged(np.array(values), np.array(logs))


def pair(others, record, q, rule, q_record=None):
    """The laws of updates with the record, and without it."""
    gradients = [np.atleast_1d(np.asarray(g, dtype=np.float64)) for g in (*others, record)]
    rates = [q] * len(others) + [q if q_record is None else q_record]
    alone = Law(np.zeros((1, len(gradients[-1]))), np.zeros(1))
    without = updates(np.array(gradients[:-1]), rates[:-1], rule) if len(others) else alone
    return updates(np.array(gradients), rates, rule), without


def log_density(law, x, sigma):
    """Of the law's update plus noise, at points ``x`` (m, d)."""
    far = np.square(x[:, None, :] - law.values[None, :, :]).sum(-1)
    return logsumexp(law.log_masses - far / (2.0 * sigma**2), axis=1) - 0.5 * x.shape[1] * math.log(
        2.0 * math.pi * sigma**2
    )


def renyi(order, first, second, sigma):
    """D_order(first || second) of two laws plus noise, by the trapezoidal rule on a grid in one or two dimensions."""
    points = np.concatenate([first.values, second.values])
    low, high = points.min(0), points.max(0)
    reach = (high - low) * order + 13.0 * sigma
    step = sigma / (24.0 if points.shape[1] == 1 else 5.0)
    axes = [np.arange(a - r, b + r, step) for a, b, r in zip(low, high, reach, strict=True)]
    x = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], axis=1)
    found = order * log_density(first, x, sigma) + (1.0 - order) * log_density(second, x, sigma)
    return float((logsumexp(found) + len(axes) * math.log(step)) / (order - 1.0))


class Chain:
    """A Markov chain on two states: ``start`` (2,), ``rows`` per later step (2, 2)."""

    def __init__(self, start, *rows):
        self.start = np.asarray(start, dtype=np.float64)
        self.rows = [np.asarray(row, dtype=np.float64) for row in rows]

    @property
    def steps(self):
        return 1 + len(self.rows)

    def before(self, t):
        """The law of the state before step t >= 2, (2,)."""
        law = self.start
        for row in self.rows[: t - 2]:
            law = law @ row
        return law

    def paths(self):
        """The probability of every path."""
        found = []
        for path in itertools.product(range(len(self.start)), repeat=self.steps):
            mass = self.start[path[0]]
            for row, (a, b) in zip(self.rows, itertools.pairwise(path), strict=True):
                mass = mass * row[a, b]
            found.append(mass)
        return np.array(found)


def discrete(order, p, q):
    """D_order(p || q) of two discrete laws, last axis."""
    return logsumexp(order * np.log(p) + (1.0 - order) * np.log(q), axis=-1) / (order - 1.0)


def chain_bound(first, second, over, orders, weights):
    """Theorem 3.3's sum with the expectation over ``over`` (the right one is ``first``)."""
    from dpspec_per_instance.composition import composed

    divergences = [np.array([discrete(orders[0], first.start, second.start)])]
    masses = [np.zeros(1)]
    for t, (row, other) in enumerate(zip(first.rows, second.rows, strict=True), start=2):
        divergences.append(discrete(orders[t - 1], row, other))
        masses.append(np.log(over.before(t)))
    return composed(divergences, weights, masses)


def classical(first, second, order):
    """Ordinary composition: the largest divergence of every step."""
    steps = [np.max(discrete(order, a, b)) for a, b in zip(first.rows, second.rows, strict=True)]
    return float(discrete(order, first.start, second.start) + sum(steps))
