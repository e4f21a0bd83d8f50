"""Truncated Poisson batches: Poisson ones, of which a uniformly random subset of ``cap`` records is kept if more enter.

``docs/explanation/proofs/truncated-poisson.md`` has the pair that dominates a step (Theorem 4) and one that is attained
(Theorem 5). A step reveals how full the batch is without the group:

* at most cap - k others enter: nobody is displaced, and the sum moves by the j ~ Binomial(k, rate) members drawn;
* cap or more enter: i members are kept and displace as many others, so that it moves by at most 2 i;
* between these, which is possible for k > 1 alone: by at most 2 j.
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

#: Full batches that are rarer than this are not treated apart.
_RARELY = 1e-9

#: A chance below this is taken to be this: what is smaller may have been lost to underflow.
_LEAST = 1e-290


@dataclass(frozen=True)
class TruncatedPoisson:
    """One step with batches of at most ``cap`` records, each entering at ``rate``, for groups of up to ``k`` records.

    Adjacency add-remove. Records that are replaced, or that count for nothing but keep their place in the batch, are
    not covered: the displaced records differ there.

    Attributes:
        k: the largest group.
        rate: the Poisson sampling rate.
        cap: the largest batch.
        n: the largest number of records of the smaller dataset of a pair.
        sigma: the noise's standard deviation in clip norms, > 0.
        fewest: the smallest such number, 0 if omitted: the bound is the tighter the closer it is to ``n``.

    Raises:
        ValueError: naming the argument.
    """

    k: int
    rate: float
    cap: int
    n: int
    sigma: float
    fewest: int = 0

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("cap", 1), ("n", 0), ("fewest", 0)):
            whole(name, getattr(self, name), least)
        if self.fewest > self.n:
            raise ValueError(f"fewest must be at most n, got {self.fewest!r} and {self.n!r}")
        inside("rate", self.rate, one=True)
        positive("sigma", self.sigma)

    @property
    def displacing(self) -> float:
        """P[Binomial(n, rate) > cap - k], rounded up: the probability that the group may displace others."""
        if self.n <= self.cap - self.k:
            return 0.0
        return min(1.0, max(_LEAST, binomial_tail(self.n, self.rate, self.cap - self.k + 1) * (1.0 + _BETA)))

    @property
    def full(self) -> float:
        """P[Binomial(fewest, rate) >= cap], rounded down: the probability that others fill a batch; 0 if below 1e-9."""
        value = binomial_tail(self.fewest, self.rate, self.cap) * (1.0 - _BETA)
        return value if value > _RARELY else 0.0

    def above(self) -> Mixture | Revealed:
        """A pair that dominates the step, for all datasets of which the smaller has ``fewest`` to ``n`` records."""
        roomy, chance = Mixture.poisson(self.k, self.rate, self.sigma), self.displacing
        if chance == 0.0:
            return roomy
        full = min(self.full, chance)
        j = np.arange(self.k + 1, dtype=np.float64)
        cases = [(1.0 - chance, roomy)]
        if full > 0.0:
            cases.append((full, Mixture(2.0 * j, _probabilities(self.tails_when_full()), self.sigma)))
        drawn = Mixture.poisson(self.k, self.rate, 0.5 * self.sigma)
        cases.append((chance - full, Mixture(2.0 * drawn.sensitivities, drawn.probabilities, self.sigma)))
        cases = [(weight, pair) for weight, pair in cases if weight > 0.0]
        return cases[0][1] if len(cases) == 1 else Revealed(cases)

    def tails_when_full(self) -> Floats:
        """Bounds of P[i >= a given that others fill the batch], (k,) for a = 1..k, of i members kept, from above.

        P[B' >= cap + a] P[Hypergeometric(cap of fewest + k, k) >= a] / P[B >= cap], with B ~ Binomial(fewest, rate) and
        B' ~ Binomial(fewest + k, rate), and never more than P[Binomial(k, rate) >= a].
        """
        alike = np.exp(log_hypergeometric(self.k, self.fewest, self.cap))
        found = []
        for a in range(1, self.k + 1):
            entered = binomial_tail(self.fewest + self.k, self.rate, self.cap + a)
            kept = math.fsum(alike[a:]) * entered / binomial_tail(self.fewest, self.rate, self.cap)
            found.append(min(1.0, kept * (1.0 + 4.0 * _BETA), binomial_tail(self.k, self.rate, a) * (1.0 + _BETA)))
        return np.array(found)

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


def _probabilities(tails: Floats) -> Floats:
    """P[i = a], (k + 1,) for a = 0..k, from P[i >= a], (k,) for a = 1..k, each of which is rounded up."""
    ends = np.concatenate(([1.0], np.minimum.accumulate(tails), [0.0]))
    return np.asarray(ends[:-1] - ends[1:], dtype=np.float64)
