"""Distributions of sums of independent, non-negative numbers on finitely many points, above and below in convex order.

Theorem 19 of ``docs/explanation/proofs/grids.md``. Masses are rounded outwards. From above, mass beyond the highest
point moves to it, and the difference in the mean is ``lost``, mass of the first distribution at infinity; from below it
is omitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpspec.accounting.numerics import EPS, Floats

#: Sums per block: few enough for the cache.
_BLOCK = 1 << 16

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
    """Points e^(low + width * k) for the k in ``places``, ascending from 0, and the ``cell`` (.,) of each k."""

    low: float
    width: float
    places: npt.NDArray[np.int64]
    cell: npt.NDArray[np.int64]

    @property
    def values(self) -> Floats:
        return np.asarray(np.exp(self.low + self.width * self.places), dtype=np.float64)

    def cells(self, values: Floats, edges: Floats) -> npt.NDArray[np.int64]:
        """For each value the number of ``edges`` at or below it, (m,)."""
        with np.errstate(divide="ignore"):
            logs = np.log(values)
        place = np.clip((logs - self.low) / self.width, -1.0, float(self.places[-1]) + 1.0)
        guess = self.cell[np.floor(place).astype(np.int64) + 1]
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
    at = np.interp(np.linspace(0.0, rising[-1], count), rising, np.linspace(0.0, _FINE, bins + 1))
    places = np.unique(np.concatenate(([0, _FINE], np.rint(at).astype(np.int64))))
    cell = np.concatenate(([0], np.searchsorted(places, np.arange(_FINE + 2), side="right")))
    return Points(low, width, places, cell)


def combine(one: Law, other: Law, join: np.ufunc, count: int, log_little: float) -> Law:
    """The distribution of the sum (``np.add``) or product of two independent numbers, on about ``count`` points.

    Products keep the convex order, as no number is negative. ``log_little``: ln of the mass that may be cut off at
    either end, under either distribution.
    """
    first, second = _rough(one), _rough(other)
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
    for rows, others, weights in _blocks(one, other):
        sums = join.outer(one.values[rows], other.values[others]).ravel()
        masses = np.multiply.outer(one.masses[rows], weights).ravel()
        cell = points.cells(sums, edges)
        mass += np.bincount(cell, weights=masses, minlength=cells)
        excess += np.bincount(cell, weights=masses * (sums - bases[cell]), minlength=cells)
        terms += np.bincount(cell, minlength=cells)
    if one.upper:
        return _above(one, other, join, edges, mass, excess, terms)
    # From below: each cell's mass in its mean, including the cells below the first point and above the last.
    used, rounding = mass > _LIGHTEST, EPS * (8.0 + terms)
    means = bases[used] + excess[used] / mass[used]
    off = max(one.off, other.off) + 4.0 * float(rounding[used].max()) + 16.0 * EPS
    if join is not np.add:
        off += min(one.off, other.off)
    return Law(means, mass[used] * (1.0 - rounding[used]), False, 0.0, off)


def _rough(law: Law) -> tuple[Floats, Floats]:
    if len(law.values) <= _ROUGH:
        return law.values, law.masses
    starts = np.unique(np.linspace(0, len(law.values), _ROUGH, endpoint=False).astype(np.int64))
    masses = np.add.reduceat(law.masses, starts)
    means = np.add.reduceat(law.masses * law.values, starts) / np.maximum(masses, 1e-320)
    return np.asarray(means, dtype=np.float64), np.asarray(masses, dtype=np.float64)


def _blocks(one: Law, other: Law) -> Iterator[tuple[slice, slice, Floats]]:
    """Blocks of pairs of points: of ``one``, of ``other``, and weights of the latter; of a law and itself once."""
    rows = max(1, _BLOCK // len(other.values))
    for start in range(0, len(one.values), rows):
        block = slice(start, start + rows)
        if one is not other:
            yield block, slice(None), other.masses
            continue
        weights = other.masses[start:].copy()
        weights[rows:] *= 2.0
        yield block, slice(start, None), weights


def _above(one: Law, other: Law, join: np.ufunc, edges: Floats, mass: Floats, excess: Floats, terms: Floats) -> Law:
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
        lost = one.lost * float(other.masses.sum()) + other.lost * float(one.masses.sum())
    else:
        means = float(one.masses @ one.values), float(other.masses @ other.values)
        lost = one.lost * means[1] + other.lost * means[0] + one.lost * other.lost
    lost = (lost + float(excess[-1])) * (1.0 + 1e-9)
    lost += float(_UNDERFLOW * terms.sum()) * float(join(one.values[-1], other.values[-1]))
    used = masses > 0.0
    return Law(values[used], masses[used], True, lost)


def sum_of(law: Law, times: int, count: int, log_little: float) -> Law:
    total: Law | None = None
    power = law
    while True:
        if times & 1:
            total = power if total is None else combine(total, power, np.add, count, log_little)
        times >>= 1
        if not times:
            assert total is not None
            return total
        power = combine(power, power, np.add, count, log_little)


def merged(laws: Sequence[Law]) -> Law:
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


def power_of(polynomial: Coefficients, times: int, count: int) -> Coefficients:
    """The product of ``times`` independent copies up to degree k, on about ``count`` outcomes, by doubling.

    Outcomes are merged, masses rounded down: each step is a post-processing, and some outcomes are omitted.
    """
    total: Coefficients | None = None
    while True:
        odd, times = times & 1, times >> 1
        if odd:
            total = polynomial if total is None else _product(total, polynomial, count, last=not times)
        if not times:
            assert total is not None
            return total
        polynomial = _product(polynomial, polynomial, count, last=times == 1 and total is None)


def _product(one: Coefficients, other: Coefficients, count: int, *, last: bool) -> Coefficients:
    """Merge outcomes by c_1 + (k! c_k)^(1/k), which separates the usual sums and the large ones; ``last``: by c_k."""
    degree = len(one.values) - 1
    masses = np.multiply.outer(one.masses, other.masses).ravel()
    kept = masses > _LIGHTEST
    values = [masses[kept]]
    for power in range(1, degree + 1):
        terms = (np.multiply.outer(one.values[i], other.values[power - i]) for i in range(power + 1))
        values.append(np.asarray(sum(terms), dtype=np.float64).ravel()[kept])
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
    off = max(one.off, other.off) + 4.0 * float(rounding.max()) + 16.0 * EPS
    return Coefficients(mass[used] * (1.0 - rounding), np.array([np.ones(int(used.sum())), *means]), off)
