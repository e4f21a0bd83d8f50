"""One step of any update rule, by tuples of batches (Thudi et al., Theorem 3.6): exact for few updates, or sampled.

For a whole order a and any two data sets, with B a batch of the second argument's data set, B_1..B_a independent ones
of the first's, and v_i = U(B_i) - U(B),

    D_a(first || second) <= E_B ln E exp(sum_{i<j} <v_i, v_j> / sigma^2) / (a - 1).

No sampling amplification and no largest change: it charges how much updates spread, and does not vanish for equal data
sets. Useless for sums, whose spread grows with the batch; useful for means. The paper estimates it by a plug-in over 20
outer batches with 20 tuples each, which is biased downwards: an estimate, never a bound.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from dpspec.accounting.checks import Floats, positive, whole

SOURCE = "Thudi et al. 2024, Theorem 3.6"

#: More multisets than this are not listed.
MOST_MULTISETS = 3_000_000


class Law(NamedTuple):
    """A law of updates: ``values`` (k, d) and ``log_masses`` (k,)."""

    values: Floats
    log_masses: Floats


def merged(values: npt.ArrayLike, log_masses: npt.ArrayLike) -> Law:
    """The same law with equal updates put together."""
    distinct, where = np.unique(np.asarray(values, dtype=np.float64), axis=0, return_inverse=True)
    logs = np.asarray(log_masses, dtype=np.float64)
    where = np.asarray(where).reshape(-1)
    return Law(distinct, np.array([logsumexp(logs[where == k]) for k in range(len(distinct))]))


def exact(order: int, first: Law, second: Law, sigma: float) -> float:
    """The bound on D(first || second), by listing all multisets of updates; ``ValueError`` beyond a few million."""
    a, k = whole("order", order, 2), len(first.values)
    if math.comb(k + a - 1, a) > MOST_MULTISETS:
        raise ValueError(f"{k} distinct updates at order {a} are too many to list: sample them")
    chosen = np.array(list(combinations_with_replacement(range(k), a)))
    counts = np.zeros((len(chosen), k))
    np.add.at(counts, (np.arange(len(chosen))[:, None], chosen), 1.0)
    log_weights = gammaln(a + 1.0) - gammaln(counts + 1.0).sum(axis=1) + counts @ first.log_masses
    total = 0.0
    for outer, log_mass in zip(second.values, second.log_masses, strict=True):
        v = first.values - outer
        pairs = np.square(counts @ v).sum(axis=1) - counts @ np.square(v).sum(axis=1)
        total += math.exp(log_mass) * float(logsumexp(log_weights + pairs / (2.0 * positive("sigma", sigma) ** 2)))
    return total / (a - 1.0)


class Estimate(NamedTuple):
    """value: (...) the plug-in. inner_size: (...) the smallest effective number of tuples over outer batches."""

    value: Floats
    inner_size: Floats


def plug_in(exponents: npt.ArrayLike, order: int) -> Estimate:
    """The mean over outer batches of ln(mean over tuples).

    exponents: (outer, inner, ...), the sums of <v_i, v_j> / sigma^2. An inner size below about 5 says that a single
    tuple decides, and that the value is far too small.
    """
    e = np.asarray(exponents, dtype=np.float64)
    total = logsumexp(e, axis=1)
    value = np.mean(total - math.log(e.shape[1]), axis=0) / (whole("order", order, 2) - 1.0)
    sizes = np.exp(2.0 * total - logsumexp(2.0 * e, axis=1))
    return Estimate(np.asarray(value), np.asarray(np.min(sizes, axis=0)))


def sampled(order: int, first: Law, second: Law, sigma: float, outer: int, inner: int, seed: int) -> Estimate:
    """The plug-in for two given laws: the slow obvious way, one draw after the other."""
    rng, a = np.random.default_rng(seed), whole("order", order, 2)
    bases = second.values[rng.choice(len(second.values), outer, p=_masses(second))]
    drawn = first.values[rng.choice(len(first.values), (outer, inner, a), p=_masses(first))]
    v = drawn - bases[:, None, None, :]
    pairs = np.square(v.sum(axis=2)).sum(axis=-1) - np.square(v).sum(axis=(2, 3))
    return plug_in(pairs / (2.0 * sigma**2), a)


def _masses(law: Law) -> Floats:
    masses = np.exp(law.log_masses)
    return np.asarray(masses / masses.sum(), dtype=np.float64)
