"""Random allocation: each record is in exactly one of t steps, chosen uniformly and independently of all others.

One epoch of balls-in-bins batches (Chua et al. 2025, "Balls-and-Bins Sampling for DP-SGD"), or 1-out-of-t random
allocation (Feldman and Shenfeld 2025, "Privacy amplification by random allocation"). For one record, with Gaussian
noise and in units of the clip norm, this pair dominates the t sums, adaptive choices included:

    Q = N(0, sigma^2 I_t)    and    P = (1/t) sum_i N(e_i, sigma^2 I_t),    dP/dQ (x) = (1/t) sum_i W_i,

with W_i = exp((2 x_i - 1) / (2 sigma^2)) log-normal and independent under Q, and gradients of one direction attain it.
``docs/explanation/proofs/random-allocation.md`` has the pairs for groups (Theorems 2 and 3).

Sums and products of independent, non-negative numbers are distributions on finitely many points, above and below in
convex order: Theorem 18 of ``docs/explanation/proofs/grids.md``. Masses are rounded outwards. From above, mass beyond
the highest point moves to it, and the difference in the mean is ``lost``, mass of the first distribution at infinity;
from below it is omitted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dpspec.accounting.densities import LogRatio, Masses
from dpspec.accounting.grid import Bins, Cells, Pair, TruncatedPair, place_nodes_densely, span_grid
from dpspec.accounting.numerics import EPS, Direction, Floats, one_direction, positive, whole

T = TypeVar("T")

#: Points of the distribution of a sum, and slices of one log-normal number.
_POINTS, _SLICES = 1200, 1600

#: Tails are cut at multiples of this number of e-foldings, so that distributions can be reused.
_DEPTH = 60.0

#: The deepest cut in e-foldings and in standard deviations: masses are above 1e-300, and with the smallest noise no
#: number leaves float64.
_DEEPEST, _FARTHEST = 720.0, 37.0

#: More steps, or less noise, need too many points; with more noise the points are equal.
_MOST_STEPS, _SMALLEST_NOISE, _LARGEST_NOISE = 10**7, 0.1, 1e13


class RandomAllocation(Pair):
    """All ``steps`` t of one epoch as a single pair, for groups of up to ``members`` records, each in one step.

    For add-remove and zero-out adjacency. Attained for one record; for groups the pair of ``EqualMembers`` is.

    Args:
        steps: t, at most 10^7.
        sigma: the noise's standard deviation in clip norms, at most 1e13; sigma / members is at least 0.1.
        members: the group's size k, at most 4.
    """

    most_members = 4

    def __init__(self, steps: int, sigma: float, members: int = 1) -> None:
        self.steps, self.sigma = whole("steps", steps, 1), positive("sigma", sigma)
        self.members = whole("members", members, 1)
        if self.steps > _MOST_STEPS:
            raise ValueError(f"steps must be at most {_MOST_STEPS}, got {steps!r}")
        if self.sigma < _SMALLEST_NOISE * self.members:
            raise ValueError(f"sigma must be at least {_SMALLEST_NOISE} for each member, got {sigma!r}")
        if self.sigma > _LARGEST_NOISE:
            raise ValueError(f"sigma must be at most {_LARGEST_NOISE:g}, got {sigma!r}")
        if self.members > self.most_members:
            raise ValueError(f"members must be at most {self.most_members}, got {members!r}")
        self.key = (type(self).__name__, self.steps, self.sigma, self.members)
        # An adversary who knows the steps sees at most one Gaussian release of all members.
        self.dominating_effect = self.members / self.sigma
        if self.steps == 1:
            self.effect = self.dominating_effect

    def __repr__(self) -> str:
        group = f", {self.members} members" if self.members > 1 else ""
        return f"{type(self).__name__}(one of {self.steps} steps, sigma {self.sigma:g}{group})"

    def largest_loss(self, direction: Direction) -> float:
        """Infinite: losses are unbounded."""
        return math.inf

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The distribution of the ratio, whose cut tails have less than these masses under either distribution."""
        above, below = _group_laws(self.steps, self.sigma, self.members, _depth(log_edge, log_far))
        return _RatioPart(above, below, one_direction(direction))


class EqualMembers(RandomAllocation):
    """An epoch in which all members of a group have one gradient, of the clip norm, and all other records none.

    Outcomes are merged and the rarest omitted, so only the lower end of an interval bounds the loss of these neighbors.

    Args:
        steps: as for ``RandomAllocation``.
        sigma: as for ``RandomAllocation``.
        members: the group's size k, at most 16.
    """

    most_members = 16
    has_estimated_upper_end = True

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The merged outcomes."""
        below = _equal_members(self.steps, self.sigma, self.members, _depth(log_edge, log_far))
        return _RatioPart(replace(below, upper=True), below, one_direction(direction))


def _depth(log_edge: float, log_far: float) -> float:
    """The e-foldings at which tails are cut."""
    return min(_DEPTH * math.ceil(-min(log_edge, log_far, -1.0) / _DEPTH), _DEEPEST)


@dataclass(frozen=True, eq=False)
class _RatioPart(TruncatedPair):
    """A pair by its likelihood ratio's distribution under Q, mean 1, from above and from below in convex order."""

    above: Law
    below: Law
    direction: Direction

    def table(self) -> tuple[Floats, Floats]:
        bins = self._bins(self.below)
        return bins.loss, np.asarray(np.log(bins.mass), dtype=np.float64)

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        above, below = self._bins(self.above), self._bins(self.below)
        ends = np.concatenate((above.loss, below.loss))
        lowest, steps = span_grid(float(ends.min()) - spacing, float(ends.max()) + spacing, spacing)
        index = place_nodes_densely(*self.table(), lowest, spacing, steps, tilts, widest, limit)
        return above.cells(lowest, spacing, index)[0], below.cells(lowest, spacing, index)[1]

    def _bins(self, law: Law) -> Bins:
        """The points of a distribution as outcomes of one loss each."""
        present = self.direction == "present-first"
        used = (law.values > 0.0) & (law.masses > 1e-300)
        if present:
            used &= law.masses * law.values > 1e-300
        values, masses = law.values[used], law.masses[used]
        loss = np.log(values) if present else -np.log(values)
        shift = law.off + 8.0 * EPS * (1.0 + float(np.max(np.abs(loss))))
        infinite_loss_mass = law.lost if present else float(law.masses[law.values == 0.0].sum())
        small = float(np.sum(1e-300 * (1.0 + law.values[(law.values > 0.0) & ~used])))
        return Bins(
            mass=masses * values if present else masses,
            loss=loss,
            low=loss - shift,
            high=loss + shift,
            error=np.full(len(loss), 16.0 * EPS + law.off),
            loss_error=np.full(len(loss), shift),
            above=(infinite_loss_mass + small) * (1.0 + 1e-12) if law.upper else 0.0,
        )


@functools.lru_cache(maxsize=64)
def _group_laws(steps: int, sigma: float, members: int, depth: float) -> tuple[Law, Law]:
    """The ratio's distribution for a group (Theorem 2), over all ways of members to share steps."""
    above: list[Law] = []
    below: list[Law] = []
    for log_weight, shares in _sharings(members, steps):
        blocks = [steps // len(shares) + (i < steps % len(shares)) for i in range(len(shares))]
        pairs = [_laws(length, sigma / share, depth) for length, share in zip(blocks, shares, strict=True)]
        for products, laws in zip((above, below), zip(*pairs, strict=True), strict=True):
            product = laws[0]
            for law in laws[1:]:
                product = combine(product, law, np.multiply, _POINTS, -depth - 20.0)
            products.append(product.scaled(math.exp(log_weight)))
    return merged(above), merged(below)


def _sharings(members: int, steps: int) -> list[tuple[float, tuple[int, ...]]]:
    """The ways of members to share steps: ln of the probability, and the members in each used step, descending.

    k! / prod_i c_i! / prod_c (sets of size c)! ways, each of probability t (t - 1) ... (t - b + 1) / t^k.
    """
    sharings = []
    for shares in _partitions(members, members):
        if len(shares) > steps:
            continue
        ways = math.factorial(members)
        for size in set(shares):
            ways //= math.factorial(size) ** shares.count(size) * math.factorial(shares.count(size))
        log_steps = math.fsum(math.log1p(-i / steps) for i in range(len(shares)))
        sharings.append((math.log(ways) + log_steps - (members - len(shares)) * math.log(steps), shares))
    return sharings


def _partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    if total == 0:
        yield ()
    for part in range(min(total, largest), 0, -1):
        yield from ((part, *smaller_parts) for smaller_parts in _partitions(total - part, part))


@functools.lru_cache(maxsize=64)
def _equal_members(steps: int, sigma: float, members: int, depth: float) -> Law:
    """The ratio's distribution for members of one gradient, merged into finitely many outcomes (Theorem 3)."""
    log_tail = -depth - math.log(64.0 * steps)
    edge, a = math.sqrt(-2.0 * log_tail), 1.0 / sigma
    z = np.linspace(max(-edge, -_FARTHEST), min(members * a + edge, _FARTHEST), _SLICES + 1)
    shifted_masses = [Masses.of(LogRatio(np.array([c * a]), np.zeros(1)), z[:-1], z[1:]) for c in range(1, members + 1)]
    log_mass = shifted_masses[0].none
    powers = [np.exp(shifted.group - log_mass) / math.factorial(c) for c, shifted in enumerate(shifted_masses, 1)]
    doubt = np.max([shifted.group_error + shifted.none_error for shifted in shifted_masses], axis=0)
    doubt += 64.0 * EPS * (1.0 + (edge + members * a) ** 2)
    used = doubt < 1e-6
    one_step = Coefficients(
        np.exp(log_mass[used]) * (1.0 - doubt[used]),
        np.array([np.ones(int(used.sum())), *(power[used] for power in powers)]),
        2.0 * float(doubt[used].max()),
    )
    # merged outcomes are a post-processing, and masses are rounded down
    total = by_doubling(one_step, steps, lambda a, b, last: _product(a, b, _POINTS, last=last))
    # k! [x^k] / t^k, in logarithms as t^k may leave float64
    log_ratio = np.log(total.values[-1]) + math.lgamma(members + 1.0) - members * math.log(steps)
    order = np.argsort(log_ratio)
    off = members * total.off + 16.0 * EPS * (1.0 + float(np.abs(log_ratio).max()) + members * math.log(steps))
    return Law(np.exp(log_ratio)[order], total.masses[order], False, 0.0, off)


@functools.lru_cache(maxsize=64)
def _laws(steps: int, sigma: float, depth: float) -> tuple[Law, Law]:
    """The distribution of (W_1 + ... + W_t) / t under Q from above and from below, tails cut at a total e^-depth."""
    log_little, a = -depth - math.log(64.0 * (1.0 + math.log2(steps))), 1.0 / sigma
    # first of W = exp(a z - a^2 / 2), z standard normal
    edge = math.sqrt(-2.0 * (log_little - math.log(steps)))
    z = np.linspace(max(-edge, -_FARTHEST), min(a + edge, _FARTHEST), _SLICES + 1)
    ratio = LogRatio(np.array([a]), np.zeros(1))
    ends = np.concatenate(([-np.inf], z, [np.inf]))
    masses = Masses.of(ratio, ends[:-1], ends[1:])
    mean, mass = np.exp(masses.group), np.exp(masses.none)
    doubt = np.minimum(masses.group_error + masses.none_error + 64.0 * EPS * (1.0 + edge * edge), 1.0)
    points = np.exp(a * z - 0.5 * a * a)
    values = np.concatenate(([0.0], points))
    widths = np.diff(values)
    share = np.clip((mean[:-1] - values[:-1] * mass[:-1]) / widths, 0.0, mass[:-1])
    slack = mass[:-1] * doubt[:-1] * (1.0 + values[1:] / widths)
    upper = np.zeros(len(values))
    upper[:-1] += mass[:-1] - share + slack
    upper[1:] += share + slack
    upper[-1] += mass[-1] * (1.0 + doubt[-1])
    lost = float(mean[-1] * (1.0 + doubt[-1]))
    inner = slice(1, -1)
    below = Law(
        mean[inner] / mass[inner], mass[inner] * (1.0 - doubt[inner]), False, 0.0, float(2.0 * doubt[inner].max())
    )
    sums = [
        by_doubling(law, steps, lambda left, right, _: combine(left, right, np.add, _POINTS, log_little))
        for law in (Law(values, upper, True, lost), below)
    ]
    high, low = (replace(law, values=law.values / steps, lost=law.lost / steps, off=law.off + EPS) for law in sums)
    return high, low


#: Sums per block: few enough for the cache.
_SUMS = 1 << 16

#: Points of the uniform table in ln v, from which the points of a distribution are taken.
_FINE = 1 << 15

#: Atoms of the rough distributions that place points.
_ROUGH = 160

#: The share of points spread evenly over the range; the rest follows the mass.
_EVEN = 0.4

#: From below, lighter cells are omitted, as their means would be imprecise; a product below the second underflows.
_LIGHTEST, _UNDERFLOW = 1e-290, 5e-324


@dataclass(frozen=True, eq=False)
class Law:
    """A distribution: ``masses`` (n,) on ``values`` (n,), ascending and not negative.

    ``upper``: whether it is above in convex order. ``lost``: the exact mean less this one, rounded up; 0 from below.
    ``off``: a bound on the relative error of values other than 0.
    """

    values: Floats
    masses: Floats
    upper: bool
    lost: float = 0.0
    off: float = 0.0

    def scaled(self, weight: float) -> Law:
        """All masses times ``weight``, which is accurate to 1e-12, rounded outwards."""
        factor = weight * (1.0 + 1e-12 if self.upper else 1.0 - 1e-12)
        return replace(self, masses=self.masses * factor, lost=self.lost * factor)


@dataclass(frozen=True, eq=False)
class Points:
    """Points e^(low + width * k) for the k in ``node_numbers``, ascending from 0, and the ``cell`` (.,) of each k."""

    low: float
    width: float
    node_numbers: npt.NDArray[np.int64]
    cell: npt.NDArray[np.int64]

    @property
    def values(self) -> Floats:
        """The points, ascending."""
        return np.asarray(np.exp(self.low + self.width * self.node_numbers), dtype=np.float64)

    def cells(self, values: Floats, edges: Floats) -> npt.NDArray[np.int64]:
        """For each value the number of ``edges`` at or below it, (m,)."""
        with np.errstate(divide="ignore"):
            logs = np.log(values)
        position = np.clip((logs - self.low) / self.width, -1.0, float(self.node_numbers[-1]) + 1.0)
        guess = self.cell[np.floor(position).astype(np.int64) + 1]
        guess -= values < edges[np.maximum(guess - 1, 0)]
        guess = np.maximum(guess, 0)
        guess += values >= np.append(edges, np.inf)[guess]
        return guess


def place(low: float, high: float, logs: Floats, masses: Floats, count: int) -> Points:
    """About ``count`` points from e^low to e^high, as dense as the cube root of the density of ``masses`` at ``logs``.

    Moving a mass between two points costs in proportion to the square of their distance.
    """
    width = (high - low) / _FINE
    bins = 400
    density, _ = np.histogram(logs, bins=bins, range=(low, high), weights=masses)
    smooth = np.convolve(np.cbrt(density), np.ones(5) / 5.0, mode="same")
    share = _EVEN / bins + (1.0 - _EVEN) * smooth / max(float(smooth.sum()), 1e-300)
    rising = np.concatenate(([0.0], np.cumsum(share)))
    positions = np.interp(np.linspace(0.0, rising[-1], count), rising, np.linspace(0.0, _FINE, bins + 1))
    point_positions = np.unique(np.concatenate(([0, _FINE], np.rint(positions).astype(np.int64))))
    cell = np.concatenate(([0], np.searchsorted(point_positions, np.arange(_FINE + 2), side="right")))
    return Points(low, width, point_positions, cell)


def combine(left: Law, right: Law, join: np.ufunc, count: int, log_little: float) -> Law:
    """The distribution of the sum (``np.add``) or product of two independent numbers, on about ``count`` points.

    Products keep the convex order, as no number is negative. ``log_little``: ln of the mass that may be cut off at
    either end, under either distribution.
    """
    first, second = _rough(left), _rough(right)
    sums = join.outer(first[0], second[0]).ravel()
    masses = np.multiply.outer(first[1], second[1]).ravel()
    positive = sums > 0.0
    sums, masses = sums[positive], masses[positive]
    order = np.argsort(sums)
    sums, masses = sums[order], masses[order]
    little = math.exp(log_little)
    mean = float(masses @ sums)
    begin = int(np.searchsorted(np.cumsum(masses), little))
    end = int(np.searchsorted(-np.cumsum((masses * sums)[::-1])[::-1], -little * mean))
    low = math.log(float(sums[max(0, begin - 1)])) - 1e-9
    high = math.log(float(sums[min(end, len(sums) - 1)])) + 1e-3
    weights = masses * (1.0 + sums / mean)
    points = place(low, max(high, low + 1e-6), np.log(sums), weights, count)
    edges = points.values
    cells = len(edges) + 1
    mass, excess, terms = np.zeros(cells), np.zeros(cells), np.zeros(cells)
    bases = np.concatenate(([0.0], edges))
    for rows, columns, weights in _blocks(left, right):
        sums = join.outer(left.values[rows], right.values[columns]).ravel()
        masses = np.multiply.outer(left.masses[rows], weights).ravel()
        cell = points.cells(sums, edges)
        mass += np.bincount(cell, weights=masses, minlength=cells)
        excess += np.bincount(cell, weights=masses * (sums - bases[cell]), minlength=cells)
        terms += np.bincount(cell, minlength=cells)
    if left.upper:
        return _above(left, right, join, edges, mass, excess, terms)
    # From below: each cell's mass in its mean, including the cells below the first point and above the last.
    used, rounding = mass > _LIGHTEST, EPS * (8.0 + terms)
    means = bases[used] + excess[used] / mass[used]
    off = max(left.off, right.off) + 4.0 * float(rounding[used].max()) + 16.0 * EPS
    if join is not np.add:
        off += min(left.off, right.off)
    return Law(means, mass[used] * (1.0 - rounding[used]), False, 0.0, off)


def _rough(law: Law) -> tuple[Floats, Floats]:
    if len(law.values) <= _ROUGH:
        return law.values, law.masses
    starts = np.unique(np.linspace(0, len(law.values), _ROUGH, endpoint=False).astype(np.int64))
    masses = np.add.reduceat(law.masses, starts)
    means = np.add.reduceat(law.masses * law.values, starts) / np.maximum(masses, 1e-320)
    return np.asarray(means, dtype=np.float64), np.asarray(masses, dtype=np.float64)


def _blocks(left: Law, right: Law) -> Iterator[tuple[slice, slice, Floats]]:
    """Blocks of pairs of points: of ``left``, of ``right``, and weights of the latter; of a law and itself once."""
    rows = max(1, _SUMS // len(right.values))
    for start in range(0, len(left.values), rows):
        block = slice(start, start + rows)
        if left is not right:
            yield block, slice(None), right.masses
            continue
        weights = right.masses[start:].copy()
        weights[rows:] *= 2.0
        yield block, slice(start, None), weights


def _above(left: Law, right: Law, join: np.ufunc, edges: Floats, mass: Floats, excess: Floats, terms: Floats) -> Law:
    """Each cell's mass on its two ends, 0 being the lowest; mass from the last point on, on it."""
    rounding = EPS * (8.0 + terms)
    values = np.concatenate(([0.0], edges))
    widths = np.diff(values)
    share = np.clip(excess[:-1] / widths, 0.0, mass[:-1])
    doubt = mass[:-1] * (8.0 * EPS * values[1:] / widths + 2.0 * rounding[:-1])
    masses = np.zeros(len(values))
    masses[:-1] += mass[:-1] - share + doubt
    masses[1:] += share + doubt
    masses[-1] += mass[-1]
    masses *= 1.0 + 2.0 * float(rounding[-1]) + 8.0 * EPS
    if join is np.add:
        lost = left.lost * float(right.masses.sum()) + right.lost * float(left.masses.sum())
    else:
        means = float(left.masses @ left.values), float(right.masses @ right.values)
        lost = left.lost * means[1] + right.lost * means[0] + left.lost * right.lost
    lost = (lost + float(excess[-1])) * (1.0 + 1e-9)
    lost += float(_UNDERFLOW * terms.sum()) * float(join(left.values[-1], right.values[-1]))
    used = masses > 0.0
    return Law(values[used], masses[used], True, lost)


def by_doubling(item: T, times: int, join: Callable[[T, T, bool], T]) -> T:
    """``times`` independent copies of ``item``; ``join`` also receives whether its result is the last one."""
    total: T | None = None
    while True:
        odd, times = times & 1, times >> 1
        if odd:
            total = item if total is None else join(total, item, not times)
        if not times:
            assert total is not None
            return total
        item = join(item, item, times == 1 and total is None)


def merged(laws: Sequence[Law]) -> Law:
    """The mixture whose members these laws are, already weighted."""
    values, masses = np.concatenate([law.values for law in laws]), np.concatenate([law.masses for law in laws])
    order = np.argsort(values)
    lost = math.fsum(law.lost for law in laws) * (1.0 + 4.0 * EPS)
    return Law(values[order], masses[order], laws[0].upper, lost, max(law.off for law in laws))


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A random polynomial of degree k on finitely many outcomes: ``masses`` (n,), and mean coefficients (k + 1, n).

    The first coefficient is 1; j times ``off`` bounds the relative error of the coefficient of x^j.
    """

    masses: Floats
    values: Floats
    off: float


def _product(left: Coefficients, right: Coefficients, count: int, *, last: bool) -> Coefficients:
    """Up to degree k, on about ``count`` outcomes, merged by c_1 + (k! c_k)^(1/k), which separates the usual sums and
    the large ones; ``last``: by c_k.
    """
    degree = len(left.values) - 1
    masses = np.multiply.outer(left.masses, right.masses).ravel()
    heavy = masses > _LIGHTEST
    values = [masses[heavy]]
    for power in range(1, degree + 1):
        terms = (np.multiply.outer(left.values[i], right.values[power - i]) for i in range(power + 1))
        values.append(np.asarray(sum(terms), dtype=np.float64).ravel()[heavy])
    masses = values[0]
    keys = (np.log(values[-1]) + math.lgamma(degree + 1.0)) / degree
    if not last:
        keys = np.logaddexp(np.log(values[1]), keys)
    weights = masses * (1.0 + values[-1] / float(masses @ values[-1]))
    points = place(float(keys.min()), float(keys.max()) + 1e-9, keys, weights, count)
    cell = np.searchsorted(np.log(points.values), keys, side="right")
    terms_in = np.bincount(cell)
    mass = np.bincount(cell, weights=masses)
    used = mass > _LIGHTEST
    rounding = EPS * (8.0 + 2.0 * degree + terms_in[used])
    means = [np.bincount(cell, weights=masses * value)[used] / mass[used] for value in values[1:]]
    off = max(left.off, right.off) + 4.0 * float(rounding.max()) + 16.0 * EPS
    return Coefficients(mass[used] * (1.0 - rounding), np.array([np.ones(int(used.sum())), *means]), off)
