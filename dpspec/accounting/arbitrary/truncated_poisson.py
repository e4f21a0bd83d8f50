"""Truncated Poisson batches: Poisson ones, of which a uniformly random subset of ``cap`` records is kept if more enter.

*What dominates a step, records added or removed.* Let n be the records of the smaller data set, m ~ Binomial(n, q) how
many of them enter, j ~ Binomial(k, q) how many of the k members of the group, all independent. Without the group the
batch is U, a uniformly random subset of min(m, cap) of those that entered. With it i <= j members are kept, and of the
others a uniformly random subset of U: all of it where m + j <= cap, else cap - i of them. So both data sets can share
U. With the group the sum has i contributions more than that of U, and where m + j > cap also i - max(0, cap - m) fewer:

* m <= cap - k: nobody is displaced, i = j, and the sum moves by at most j clip norms;
* m > cap - k: it moves by at most 2 i <= 2 j.

Which of the two it is depends on the others alone. Whoever is told it, and who entered, and U, knows where the sum lies
without the group, and telling more bounds what is told (joint convexity). Given all that, the sum moves by a vector of
length at most j or 2 j, with j ~ Binomial(k, q) as before: a mixture that is dominated by the scalar one of just these
lengths (Ganesh 2024, Lemma 2.9 and the proof of Theorem 3.1). So with P = P[Binomial(n, q) > cap - k] a step is
dominated by the pair that reveals the case,

    1 - P: N(0, sigma^2) against N(j, sigma^2);    P: N(0, sigma^2) against N(2 j, sigma^2).

The second case dominates the first, so that the pair grows with P, and P with n: it holds of all data sets of which the
smaller has n records *or fewer*. For one record, Ganesh 2025 (arXiv:2508.15089) has the same with the second rate
multiplied by the chance that a drawn record is kept, which is near one wherever P is small. Records that are replaced,
or that count for nothing but keep their place in the batch, are not covered: who is displaced differs there.

*What is attained.* Give all others gradients of 0 and all members the same one, of the clip norm. Then a step shows
N(0, sigma^2) without the group and N(i, sigma^2) with it, steps being independent. As all records of a full batch are
alike, with M ~ Binomial(n + k, q),

    P[i = a] = P[M > cap] Hypergeometric(a; cap of n + k, k) + P[j = a] P[m <= cap - a].

What the mechanism leaks at worst lies between the two, which differ by little more than T P over T steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc

from dpspec.accounting.arbitrary.revealed import Revealed
from dpspec.accounting.mixture.masses import log_binomial, log_hypergeometric
from dpspec.accounting.mixture.mixture import Mixture
from dpspec.accounting.numerics.floats import Floats, inside, positive, whole

#: What is charged for the accuracy of the incomplete beta function, relatively; it keeps 1e-12 (tested with mpmath).
_BETA = 1e-9

#: A chance below this is taken to be this: what is smaller may have been lost to underflow.
_LEAST = 1e-290


@dataclass(frozen=True)
class TruncatedPoisson:
    """One step with batches of at most ``cap`` records, each entering at ``rate``, for groups of up to ``k`` records.

    n: the records of the smaller data set of the pair. sigma: the noise's deviation in clip norms, > 0. Adjacency
    add-remove. See the module. Raises ``ValueError`` naming the argument.
    """

    k: int
    rate: float
    cap: int
    n: int
    sigma: float

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("cap", 1), ("n", 0)):
            whole(name, getattr(self, name), least)
        inside("rate", self.rate, one=True)
        positive("sigma", self.sigma)

    @property
    def displacing(self) -> float:
        """P[Binomial(n, rate) > cap - k], rounded up: the chance that the group may displace others."""
        if self.n <= self.cap - self.k:
            return 0.0
        return min(1.0, max(_LEAST, binomial_tail(self.n, self.rate, self.cap - self.k + 1) * (1.0 + _BETA)))

    def above(self) -> Mixture | Revealed:
        """A pair that dominates the step, for all data sets of which the smaller has ``n`` records or fewer."""
        roomy, chance = Mixture.poisson(self.k, self.rate, self.sigma), self.displacing
        if chance == 0.0:
            return roomy
        tight = Mixture.poisson(self.k, self.rate, 0.5 * self.sigma)
        full = Mixture(2.0 * tight.sensitivities, tight.probabilities, self.sigma)
        return full if chance == 1.0 else Revealed([(1.0 - chance, roomy), (chance, full)])

    def attained(self) -> Mixture:
        """A pair that the step has for some data of n and n + k records, the chances of members rounded down."""
        chances = self.kept()
        chances[1:] *= 1.0 - _BETA
        chances[0] = 1.0 - math.fsum(chances[1:])
        return Mixture(np.arange(len(chances), dtype=np.float64), chances, self.sigma)

    def kept(self) -> Floats:
        """P[i = a] that a members of the group are in the batch, (k + 1,) for a = 0..k."""
        a = np.arange(self.k + 1)
        drawn = np.zeros(self.k + 1)
        if self.rate == 1.0:
            drawn[-1] = 1.0
        else:
            drawn[:] = np.exp(log_binomial(self.k, self.rate))
        room = np.array([1.0 - binomial_tail(self.n, self.rate, self.cap - int(one) + 1) for one in a])
        chances: Floats = drawn * room
        full = binomial_tail(self.n + self.k, self.rate, self.cap + 1)
        if full > 0.0 and self.cap <= self.n:
            alike = np.exp(log_hypergeometric(self.k, self.n, self.cap))
            chances[: len(alike)] += full * alike
        # in a full batch of more than there are others some members are certain; here none is counted
        chances[0] = max(0.0, 1.0 - math.fsum(chances[1:]))
        return chances


def binomial_tail(n: int, rate: float, least: int) -> float:
    """P[Binomial(n, rate) >= least], by the incomplete beta function, to a relative 1e-12."""
    if least <= 0:
        return 1.0
    return 0.0 if least > n else float(betainc(least, n - least + 1, rate))
