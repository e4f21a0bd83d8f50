"""Brute force: distributions of updates by enumerating batches, divergences by integration or enumeration."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp, ndtr

from dpspec.accounting import sampled_gaussian_integer_rdp
from dpspec_per_instance.bounds import entropic_mean
from dpspec_per_instance.mean_rule import plug_in

#: Maximum number of enumerated multisets.
MOST_MULTISETS = 3_000_000


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
    """Theorem 3.6 of D(first || second), over all multisets of updates; ``ValueError`` beyond ``MOST_MULTISETS``."""
    a, k = order, len(first.values)
    if math.comb(k + a - 1, a) > MOST_MULTISETS:
        raise ValueError(f"{k} distinct updates at order {a} are too many to enumerate: sample them")
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


def sampled(order, first, second, sigma, outer, inner, seed):
    """The plug-in estimate for two distributions, computed directly from the draws."""
    rng, a = np.random.default_rng(seed), order
    bases = second.values[rng.choice(len(second.values), outer, p=_masses(second))]
    drawn = first.values[rng.choice(len(first.values), (outer, inner, a), p=_masses(first))]
    v = drawn - bases[:, None, None, :]
    pairs = np.square(v.sum(axis=2)).sum(axis=-1) - np.square(v).sum(axis=(2, 3))
    return plug_in(pairs / (2.0 * sigma**2), a)


def _masses(law):
    masses = np.exp(law.log_masses)
    return masses / masses.sum()


def integer_divergence(orders, rate, ratio):
    """Theorem 3.2 as printed in the paper, at integer orders >= 2; ``orders`` and ``ratio`` broadcast.

    ln sum_k C(a, k) (1 - q)^(a - k) q^k e^(nu^2 (k^2 - k) / 2) / (a - 1).
    """
    a, nu = np.broadcast_arrays(np.asarray(orders, dtype=np.float64), np.asarray(ratio, dtype=np.float64))
    divergences = np.zeros(a.shape)
    some = nu > 0.0
    divergences[some] = sampled_gaussian_integer_rdp(a[some], rate, 1.0 / nu[some])
    return divergences


def largest_mean_change(norm, distances=()):
    """The largest change that a record makes to the mean of a batch, over all batches of X.

    norm: of the record's clipped gradient g. distances: |g - g_x| for every x in X. The largest of |g| (the empty
    batch, whose mean counts as 0) and |g - g_x| / 2 (batches of one); larger batches dilute more.
    """
    return float(max(norm, 0.5 * np.max(np.asarray(distances, dtype=np.float64), initial=0.0)))


def updates(gradients, rates, rule):
    """The distribution of U(batch): each row of ``gradients`` (n, d) has its probability; the empty mean is 0."""
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
    """The distributions of updates with and without the record."""
    gradients = [np.atleast_1d(np.asarray(g, dtype=np.float64)) for g in (*others, record)]
    rates = [q] * len(others) + [q if q_record is None else q_record]
    alone = Law(np.zeros((1, len(gradients[-1]))), np.zeros(1))
    without = updates(np.array(gradients[:-1]), rates[:-1], rule) if len(others) else alone
    return updates(np.array(gradients), rates, rule), without


def log_density(law, x, sigma):
    """The log-density of an update plus noise at points ``x`` (m, d)."""
    far = np.square(x[:, None, :] - law.values[None, :, :]).sum(-1)
    return logsumexp(law.log_masses - far / (2.0 * sigma**2), axis=1) - 0.5 * x.shape[1] * math.log(
        2.0 * math.pi * sigma**2
    )


def renyi(order, first, second, sigma):
    """D_order(first || second) of two distributions plus noise, by the trapezoidal rule in one or two dimensions."""
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
        """The distribution of the state before step t >= 2, (2,)."""
        law = self.start
        for row in self.rows[: t - 2]:
            law = law @ row
        return law

    def paths(self):
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
    divergences = [np.array([discrete(orders[0], first.start, second.start)])]
    masses = [np.zeros(1)]
    for t, (row, other) in enumerate(zip(first.rows, second.rows, strict=True), start=2):
        divergences.append(discrete(orders[t - 1], row, other))
        masses.append(np.log(over.before(t)))
    terms = zip(divergences, weights, masses, strict=True)
    return sum(float(entropic_mean(d, float(w), logs)) for d, w, logs in terms)


def amplified_stick(mu, q):
    """The exact hockey stick of (1 - q) N(0, 1) + q N(mu, 1) against N(0, 1): the part above its only crossing."""

    def delta(epsilon):
        crossing = (math.log(math.expm1(epsilon) + q) - math.log(q)) / mu + mu / 2
        return float((1 - q - math.exp(epsilon)) * ndtr(-crossing) + q * ndtr(mu - crossing))

    return delta


def classical(first, second, order):
    """Ordinary composition: the largest divergence of every step."""
    steps = [np.max(discrete(order, a, b)) for a, b in zip(first.rows, second.rows, strict=True)]
    return float(discrete(order, first.start, second.start) + sum(steps))
