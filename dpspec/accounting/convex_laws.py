"""Distributions of sums of independent, non-negative numbers, on finitely many points, in convex order.

Above and below the exact distribution: Theorem 18 of ``docs/explanation/proofs/grids.md``. Masses are rounded outwards.
From above, mass beyond the highest point moves to it, and the difference in the mean is ``lost``, mass of the first
distribution of a pair at infinity; from below it is omitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dpspec.accounting.numerics import EPS, Floats

T = TypeVar("T")

#: Sums per block: few enough for the cache.
_SUMS = 1 << 16

#: Points of the uniform table in ln v, from which the points of a distribution are taken.
_FINE = 1 << 15

#: Atoms of the rough distributions that place points.
_ROUGH = 160

#: The share of points spread evenly over the range; the rest follows the mass.
_EVEN = 0.4

#: From below, lighter cells are omitted, as their means would be imprecise; a product below the second underflows.
LIGHTEST, _UNDERFLOW = 1e-290, 5e-324


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


class CellTable:
    """The cells between ascending, positive ``edges``, by the leading bits of numbers, which ascend with the number.

    >>> CellTable(np.array([1.0, 1.5, 4.0])).cells(np.array([0.0, 1.0, 1.2, 1.5, 3.0, 9.0])).tolist()
    [0, 1, 1, 2, 2, 3]
    """

    def __init__(self, edges: Floats) -> None:
        bits = edges.view(np.int64)
        self._shift = int(np.diff(bits).min()).bit_length() - 1  # no two edges have all bits but these in common
        bins = bits >> self._shift
        self._base = int(bins[0]) - 1
        self._cells_below = np.searchsorted(bins - self._base, np.arange(bins[-1] - self._base + 2)).astype(np.int32)
        self._ends = np.append(edges, np.inf)

    def cells(self, values: Floats) -> npt.NDArray[np.int32]:
        """For each of ``values`` (m,), not negative, the number of edges at or below it, (m,)."""
        bins = (values.view(np.int64) >> self._shift) - self._base
        cells: npt.NDArray[np.int32] = self._cells_below[np.clip(bins, 0, len(self._cells_below) - 1, out=bins)]
        cells += values >= self._ends[cells]
        return cells


def place(low: float, high: float, logs: Floats, masses: Floats, count: int) -> Floats:
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
    return np.asarray(np.exp(low + width * point_positions), dtype=np.float64)


def combine(left: Law, right: Law, count: int, log_little: float) -> Law:
    """The distribution of the sum of two independent numbers, on about ``count`` points.

    ``log_little``: ln of the mass that may be cut off at either end, under either distribution.
    """
    first, second = _rough(left), _rough(right)
    sums = np.add.outer(first[0], second[0]).ravel()
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
    edges = place(low, max(high, low + 1e-6), np.log(sums), weights, count)
    table, cells = CellTable(edges), len(edges) + 1
    mass, excess, terms = np.zeros(cells), np.zeros(cells), np.zeros(cells)
    bases = np.concatenate(([0.0], edges))
    for rows, columns, weights in pair_blocks(left, right):
        sums = np.add.outer(left.values[rows], right.values[columns]).ravel()
        masses = np.multiply.outer(left.masses[rows], weights).ravel()
        cell = table.cells(sums)
        mass += np.bincount(cell, weights=masses, minlength=cells)
        excess += np.bincount(cell, weights=masses * (sums - bases[cell]), minlength=cells)
        terms += np.bincount(cell, minlength=cells)
    if left.upper:
        return _above(left, right, edges, mass, excess, terms)
    # From below: each cell's mass in its mean, including the cells below the first point and above the last.
    used, rounding = mass > LIGHTEST, EPS * (8.0 + terms)
    means = bases[used] + excess[used] / mass[used]
    off = max(left.off, right.off) + 4.0 * float(rounding[used].max()) + 16.0 * EPS
    return Law(means, mass[used] * (1.0 - rounding[used]), False, 0.0, off)


def _rough(law: Law) -> tuple[Floats, Floats]:
    if len(law.values) <= _ROUGH:
        return law.values, law.masses
    starts = np.unique(np.linspace(0, len(law.values), _ROUGH, endpoint=False).astype(np.int64))
    masses = np.add.reduceat(law.masses, starts)
    means = np.add.reduceat(law.masses * law.values, starts) / np.maximum(masses, 1e-320)
    return np.asarray(means, dtype=np.float64), np.asarray(masses, dtype=np.float64)


class Weighted(Protocol):
    """Outcomes with ``masses`` (n,)."""

    @property
    def masses(self) -> Floats:
        """The probabilities."""


def pair_blocks(left: Weighted, right: Weighted) -> Iterator[tuple[slice, slice, Floats]]:
    """Blocks of pairs of outcomes: of ``left``, of ``right``, and weights of the latter; of a law and itself once."""
    rows = max(1, _SUMS // len(right.masses))
    for start in range(0, len(left.masses), rows):
        block = slice(start, start + rows)
        if left is not right:
            yield block, slice(None), right.masses
            continue
        weights = right.masses[start:].copy()
        weights[rows:] *= 2.0
        yield block, slice(start, None), weights


def _above(left: Law, right: Law, edges: Floats, mass: Floats, excess: Floats, terms: Floats) -> Law:
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
    lost = left.lost * float(right.masses.sum()) + right.lost * float(left.masses.sum())
    lost = (lost + float(excess[-1])) * (1.0 + 1e-9)
    lost += float(_UNDERFLOW * terms.sum()) * float(left.values[-1] + right.values[-1])
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
