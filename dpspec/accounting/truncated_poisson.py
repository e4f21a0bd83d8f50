"""Truncated Poisson batches: if more than ``cap`` records enter, a uniformly random subset of ``cap`` is kept.

``docs/explanation/proofs/truncated-poisson.md`` has a pair that dominates a step (Theorem 4) and one that is attained
(Theorem 5). If at most cap - k others enter, no record is displaced, and the sum moves by the j ~ Binomial(k, rate)
members drawn; if cap or more enter, by at most 2 i for i kept members; between these by at most 2 j.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc

from dpspec.accounting.densities import log_binomial, log_hypergeometric
from dpspec.accounting.grid import Atoms, Pair, TruncatedPair, discretize_from_above, discretize_from_below
from dpspec.accounting.mixture import Mixture, TruncatedMixture
from dpspec.accounting.numerics import EPS, SUM_TOLERANCE, Direction, Floats, inside, one_direction, positive, whole

#: ln of the largest tail of one case that may be cut off.
_HEAVIEST_TAIL = -0.7

#: Relative rounding error of a case's weight or profile.
_ROUNDED = 1e-12


#: The largest mass that weights and sums of cases may lose or add.
_BOOKS = 4.0 * _ROUNDED


class Revealed(Pair):
    """A step that first reveals one of several mixtures of Gaussians, and then its output.

    The case has the same distribution with the group and without, so delta(epsilon) = sum_i w_i delta_i(epsilon).
    Revealing a case that an adversary does not see gives an upper bound: forgetting it is a post-processing.

    Args:
        cases: (weight, mixture) each, of one sigma, weights above 0 and summing to one.
    """

    def __init__(self, cases: Sequence[tuple[float, Mixture]]) -> None:
        if not cases or any(not 0.0 < weight <= 1.0 for weight, _ in cases):
            raise ValueError("cases must have weights above 0 and at most 1")
        total = math.fsum(weight for weight, _ in cases)
        if abs(total - 1.0) > SUM_TOLERANCE:
            raise ValueError(f"weights of cases must sum to 1, got {total!r}")
        if len({pair.sigma for _, pair in cases}) != 1:
            raise ValueError("all cases must have the same sigma")
        self.cases = tuple((weight / total, pair) for weight, pair in cases)
        self.key = ("revealed", *((weight, pair.key) for weight, pair in self.cases))
        self.dominating_effect = max(pair.dominating_effect for _, pair in self.cases)

    def __repr__(self) -> str:
        return f"Revealed({', '.join(f'{weight:.3g}: {pair!r}' for weight, pair in self.cases)})"

    def largest_loss(self, direction: Direction) -> float:
        """The largest loss of any case."""
        return max(pair.largest_loss(direction) for _, pair in self.cases)

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The weighted sum of the cases' profiles."""
        each = [(math.log(weight), pair.log_delta_bounds(epsilon, direction)) for weight, pair in self.cases]
        low = float(np.logaddexp.reduce([log + bounds[0] for log, bounds in each]))
        high = float(np.logaddexp.reduce([log + bounds[1] for log, bounds in each]))
        return low - _ROUNDED, min(0.0, high + _ROUNDED)

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """Each case without the outcomes of little mass, by its weight."""
        parts = []
        for weight, pair in self.cases:
            edge, far = (min(log - math.log(weight), _HEAVIEST_TAIL) for log in (log_edge, log_far))
            parts.append((weight, pair.truncate(one_direction(direction), edge, far)))
        return _RevealedPart(tuple(parts))


@dataclass(frozen=True, eq=False)
class _RevealedPart(TruncatedPair):
    """Truncated cases with their weights, on one grid."""

    cases: tuple[tuple[float, TruncatedMixture], ...]

    def table(self) -> tuple[Floats, Floats]:
        tables = [(math.log(weight), *part.table()) for weight, part in self.cases]
        losses = np.concatenate([losses for _, losses, _ in tables])
        return losses, np.concatenate([logs + log for log, _, logs in tables])

    def atoms(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Atoms, Atoms]:
        """The weighted measures of all cases, on the grid of the heaviest."""
        above: list[tuple[float, Atoms]] = []
        below: list[tuple[float, Atoms]] = []
        align = None
        for weight, part in sorted(self.cases, key=lambda case: -case[0]):
            cells = part.cells(spacing, tilts, widest, limit // len(self.cases), align)
            if align is None:
                align = cells[0].lowest if part.direction == "present-first" else -cells[0].lowest
            above.append((weight * (1.0 + _ROUNDED), discretize_from_above(cells[0])))
            below.append((weight * (1.0 - _ROUNDED), discretize_from_below(cells[1])))
        return _weighted(above).closed(_BOOKS), _weighted(below).at_most_one(_BOOKS)


def _weighted(measures: Sequence[tuple[float, Atoms]]) -> Atoms:
    """The weighted sum of measures on grids that differ by whole steps."""
    spacing = measures[0][1].spacing
    first = min((atoms for _, atoms in measures), key=lambda atoms: atoms.lowest)
    gaps = np.array([atoms.lowest - first.lowest for _, atoms in measures])
    offsets = np.rint(gaps / spacing).astype(np.int64)
    index = np.concatenate([atoms.index + offset for offset, (_, atoms) in zip(offsets, measures, strict=True)])
    nodes, place = np.unique(index, return_inverse=True)
    masses = np.bincount(place, weights=np.concatenate([weight * atoms.masses for weight, atoms in measures]))
    misfit = float(np.max(np.abs(gaps - spacing * offsets)))
    return Atoms(
        lowest=first.lowest,
        spacing=spacing,
        index=nodes,
        masses=np.asarray(masses, dtype=np.float64),
        infinity=min(1.0, math.fsum(weight * atoms.infinity for weight, atoms in measures)),
        shift=max(atoms.shift for _, atoms in measures)
        + misfit
        + 8.0 * EPS * (abs(first.lowest) + spacing * nodes[-1]),
    )


#: Relative error charged for the incomplete beta function, whose accuracy is 1e-12 (tested with mpmath).
_BETA = 1e-9

#: Full batches rarer than this are not a separate case.
_RARELY = 1e-9

#: A smaller probability counts as this, as underflow may have reduced it.
_SMALLEST = 1e-290


@dataclass(frozen=True)
class TruncatedPoisson:
    """One step with batches of at most ``cap`` records, each entering at ``rate``, for groups of up to ``k`` records.

    For add-remove adjacency only: replaced or null records displace other records.

    Attributes:
        k: the largest group.
        rate: the Poisson sampling rate.
        cap: the largest batch.
        n: the largest number of records of the smaller dataset of a pair.
        sigma: the noise's standard deviation in clip norms, > 0.
        fewest: the smallest such number, 0 if omitted: the bound is the tighter the closer it is to ``n``.
    """

    k: int
    rate: float
    cap: int
    n: int
    sigma: float
    fewest: int = 0

    def __post_init__(self) -> None:
        for name, smallest in (("k", 1), ("cap", 1), ("n", 0), ("fewest", 0)):
            whole(name, getattr(self, name), smallest)
        if self.fewest > self.n:
            raise ValueError(f"fewest must be at most n, got {self.fewest!r} and {self.n!r}")
        inside("rate", self.rate, one=True)
        positive("sigma", self.sigma)

    @property
    def displacing(self) -> float:
        """P[Binomial(n, rate) > cap - k], rounded up: the probability that the group may displace others."""
        if self.n <= self.cap - self.k:
            return 0.0
        return min(1.0, max(_SMALLEST, binomial_tail(self.n, self.rate, self.cap - self.k + 1) * (1.0 + _BETA)))

    def above(self) -> Mixture | Revealed:
        """A pair that dominates the step, for datasets whose smaller one has ``fewest`` to ``n`` records."""
        roomy, chance = Mixture.poisson(self.k, self.rate, self.sigma), self.displacing
        if chance == 0.0:
            return roomy
        # P[Binomial(fewest, rate) >= cap], rounded down: the probability that others fill a batch
        full = binomial_tail(self.fewest, self.rate, self.cap) * (1.0 - _BETA)
        full = min(full, chance) if full > _RARELY else 0.0
        j = np.arange(self.k + 1, dtype=np.float64)
        cases = [(1.0 - chance, roomy)]
        if full > 0.0:
            ends = np.concatenate(([1.0], np.minimum.accumulate(self.tails_when_full()), [0.0]))
            cases.append((full, Mixture(2.0 * j, ends[:-1] - ends[1:], self.sigma)))
        drawn = Mixture.poisson(self.k, self.rate, 0.5 * self.sigma)
        cases.append((chance - full, Mixture(2.0 * drawn.sensitivities, drawn.probabilities, self.sigma)))
        cases = [(weight, pair) for weight, pair in cases if weight > 0.0]
        return cases[0][1] if len(cases) == 1 else Revealed(cases)

    def tails_when_full(self) -> Floats:
        """Upper bounds of P[i >= a given that others fill the batch], (k,) for a = 1..k, of i members kept.

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
        """The pair of the step for some data of n and n + k records, with probabilities of members rounded down."""
        chances = self.kept()
        chances[1:] *= 1.0 - _BETA
        chances[0] = 1.0 - math.fsum(chances[1:])
        return Mixture(np.arange(len(chances), dtype=np.float64), chances, self.sigma)

    def kept(self) -> Floats:
        """P[i = a] that a members of the group are in the batch, (k + 1,) for a = 0..k."""
        drawn = np.append(np.zeros(self.k), 1.0) if self.rate == 1.0 else np.exp(log_binomial(self.k, self.rate))
        room = np.array([1.0 - binomial_tail(self.n, self.rate, self.cap - a + 1) for a in range(self.k + 1)])
        chances: Floats = drawn * room
        full = binomial_tail(self.n + self.k, self.rate, self.cap + 1)
        if full > 0.0 and self.cap <= self.n:
            alike = np.exp(log_hypergeometric(self.k, self.n, self.cap))
            chances[: len(alike)] += full * alike
        # a full batch larger than n certainly holds some members; this bound ignores them
        chances[0] = max(0.0, 1.0 - math.fsum(chances[1:]))
        return chances


def binomial_tail(n: int, rate: float, count: int) -> float:
    """P[Binomial(n, rate) >= count], by the incomplete beta function, to a relative 1e-12."""
    if count <= 0:
        return 1.0
    return 0.0 if count > n else float(betainc(count, n - count + 1, rate))
