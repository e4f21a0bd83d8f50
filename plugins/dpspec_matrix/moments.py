"""Moments of the likelihood ratio of Poisson samples with overlapping columns, for equal gradients.

Theorem M7 of ``docs/explanation/proofs/matrix.md``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln
from scipy.stats import binom

from dpspec.accounting import Floats

#: Orders of moments, until one has a larger epsilon than the one before.
_ORDERS = (2, 3, 4, 5, 6, 8, 11, 16, 22, 32)

#: Share of delta for records with many drawn steps, and of it for all steps of the slot.
_SHARE, _SHARE_OF_ALL = 0.1, 0.5

#: Largest number of steps in a block that is not the whole slot: the number of partitions.
_PERIOD = 64

#: Relative rounding of a kernel, and absolute and relative rounding of logarithms.
_KERNEL, _LOGARITHM = 1e-9, 1e-9


@dataclass(frozen=True, eq=False)
class Level:
    """One partition of a slot into intervals.

    Attributes:
        blocks: Number of the block of each step, ascending, (steps,).
        weights: g_B of each block, (blocks,), not negative.
    """

    blocks: npt.NDArray[np.int64]
    weights: Floats


#: Nested partitions from the finest to the coarsest, which has one block.
Family = tuple[Level, ...]


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Kernels of the slots of a schedule; the worst slot counts.

    Attributes:
        slots: For each slot, families of equal shares whose mean is at least C^T C / sigma^2, entry by entry.
        rate: Probability of each draw, below 1.
    """

    slots: tuple[tuple[Family, ...], ...]
    rate: float

    def epsilon(self, delta: float) -> float:
        """An upper bound of epsilon at ``delta``; present-first is the worse direction (Theorem 62)."""
        best = math.inf
        for order in _ORDERS:
            slots = [self._epsilon(families, order, delta) for families in self.slots]
            if max(slots) >= best:
                break
            best = max(slots)
        return max(0.0, best)

    def _epsilon(self, families: Sequence[Family], order: int, delta: float) -> float:
        most, omitted = _most_draws(families, self.rate, delta)
        polynomials: dict[tuple[object, ...], Polynomial] = {}
        logs = [_log_moment(family, order, self.rate, most, polynomials) for family in families]
        log_moment = math.fsum(logs) / len(logs)
        rounding = _LOGARITHM * (1.0 + max(polynomial.size for polynomial in polynomials.values()))
        conversion = (order - 1.0) * math.log1p(-1.0 / order) - math.log(order)
        return (log_moment + rounding + conversion - math.log(delta - omitted)) / (order - 1.0)


def toeplitz_families(lags: Floats) -> tuple[Family, ...]:
    """Families whose mean is at least ``lags[|s - t|]``, (steps,), not negative, for all steps s and t.

    The mean over all offsets of the partition into blocks of l steps is max(1 - lag / l, 0). A sum of these for
    l = 1, 2, 4, ... and of a constant is any convex and decreasing polygon with corners at these lags.
    """
    steps = len(lags)
    falling = np.maximum.accumulate(lags[::-1])[::-1]
    lengths = [1]
    while lengths[-1] < min(steps, _PERIOD):
        lengths.append(2 * lengths[-1])
    end = lengths[-1]
    constant = float(falling[end]) if end < steps else 0.0
    value, slope, weights = constant, 0.0, []
    for start, stop in reversed(list(zip([0, *lengths[:-1]], lengths, strict=True))):
        inside = np.arange(start, min(stop, steps))
        steeper = max(slope, float(((falling[inside] - value) / (stop - inside)).max(initial=0.0)))
        weights.append((steeper - slope) * stop)
        value, slope = value + steeper * (stop - start), steeper
    weights.reverse()
    indices = np.arange(steps)
    kernel = constant + sum(
        weight * np.maximum(1.0 - indices / length, 0.0) for weight, length in zip(weights, lengths, strict=True)
    )
    constant += float(np.maximum(falling - kernel, 0.0).max())  # rounding
    families = []
    for offset in range(end):
        levels = []
        for weight, length in zip(weights, lengths, strict=True):
            blocks = (indices + offset) // length
            levels.append(Level(blocks, np.full(int(blocks[-1]) + 1, weight * (1.0 + _KERNEL))))
        families.append((*levels, Level(np.zeros(steps, dtype=np.int64), np.array([constant * (1.0 + _KERNEL)]))))
    return tuple(families)


def tree_family(steps: npt.NDArray[np.int64], total: int, weight: float) -> Family:
    """The nodes of the binary tree over ``total`` steps that a row releases, each of this ``weight``.

    Args:
        steps: the slot's steps, ascending, counted from 0.
        total: number of rows.
        weight: the squared entry of C in units of the noise.
    """
    levels = []
    for height in range(total.bit_length()):
        blocks = steps >> height
        numbers = np.arange(int(blocks[-1]) + 1)
        released = (numbers % 2 == 0) & ((numbers + 1) << height <= total)
        levels.append(Level(blocks, np.where(released, weight * (1.0 + _KERNEL), 0.0)))
    return (*levels, Level(np.zeros(len(steps), dtype=np.int64), np.zeros(1)))


def _most_draws(families: Sequence[Family], rate: float, delta: float) -> tuple[tuple[int, ...], float]:
    """For each level, the largest number of draws in a block that counts, and a bound of the omitted probability."""
    steps, depth = len(families[0][0].blocks), len(families[0])
    windows = []
    for index in range(depth):
        longest = max(int(np.bincount(family[index].blocks).max()) for family in families)
        # different offsets share windows: a shorter one at an end is inside of a full one
        number = min(steps, sum(len(np.unique(family[index].blocks)) for family in families))
        windows.append((longest, 1 if index == depth - 1 else number))
    budget, most, omitted = _SHARE * delta, [], 0.0
    for index, (length, number) in enumerate(windows):
        share = _SHARE_OF_ALL if index == depth - 1 else (1.0 - _SHARE_OF_ALL) / (depth - 1) / number
        draws = min(length, int(binom.isf(share * budget, length, rate)) + 1)
        most.append(draws)
        if draws < length:
            omitted += float(binom.sf(draws, length, rate)) * number * (1.0 + 1e-6)
    return tuple(most), omitted


@dataclass(frozen=True, eq=False)
class Polynomial:
    """Logarithms of the masses of the numbers of draws in a block, of all replicas, up to the largest number.

    Attributes:
        size: The largest absolute logarithm on the way to these.
    """

    number: int
    logs: Floats
    size: float


def _log_moment(
    family: Family, order: int, rate: float, most: Sequence[int], polynomials: dict[tuple[object, ...], Polynomial]
) -> float:
    """ln of E exp(sum_B g_B (n_B^2 - S(n_B)) / 2) over numbers of draws n_B of at most ``order * most`` per block."""

    def known(key: tuple[object, ...], make: Callable[[], tuple[Floats, float]]) -> Polynomial:
        if key not in polynomials:
            polynomial = make()  # may add others
            polynomials[key] = Polynomial(len(polynomials), *polynomial)
        return polynomials[key]

    def step() -> tuple[Floats, float]:
        count = np.arange(order + 1.0)
        logs = gammaln(order + 1.0) - gammaln(count + 1.0) - gammaln(order - count + 1.0)
        logs += count * math.log(rate) + (order - count) * math.log1p(-rate)
        return logs, float(np.abs(logs).max())

    def product(left: Polynomial, right: Polynomial, draws: int) -> tuple[Floats, float]:
        logs = _convolve(left.logs, right.logs)[: order * draws + 1]
        return logs, max(left.size, right.size, float(np.abs(logs).max()))

    def power(child: Polynomial, times: int, draws: int) -> Polynomial:
        if times == 1:
            return child
        half = power(child, times // 2, draws)
        twice = known((half.number, half.number, draws), functools.partial(product, half, half, draws))
        if times % 2 == 0:
            return twice
        return known((twice.number, child.number, draws), functools.partial(product, twice, child, draws))

    def block(children: Sequence[Polynomial], weight: float, draws: int) -> tuple[Floats, float]:
        runs = [power(child, len(list(equal)), draws) for child, equal in groupby(children)]
        union = runs[0]
        for run in runs[1:]:
            union = Polynomial(-1, *product(union, run, draws))
        count = np.arange(min(len(union.logs), order * draws + 1))
        times, remainder = np.divmod(count, order)
        pairs = (count * count - (order - remainder) * times * times - remainder * (times + 1) ** 2) / 2.0
        logs = union.logs[: len(count)] + weight * pairs
        return logs, max(union.size, float(np.abs(logs).max()))

    current, starts = [known((), step)] * len(family[0].blocks), np.arange(len(family[0].blocks))
    for level, draws in zip(family, most, strict=True):
        parents = level.blocks[starts]
        firsts = np.flatnonzero(np.diff(parents, prepend=parents[0] - 1))
        merged = []
        for first, last in pairwise([*firsts.tolist(), len(current)]):
            children, weight = current[first:last], float(level.weights[parents[first]])
            key = (*(child.number for child in children), weight, draws, "block")
            merged.append(known(key, functools.partial(block, children, weight, draws)))
        current, starts = merged, starts[firsts]
    (root,) = current
    return float(np.logaddexp.reduce(root.logs))


def _convolve(left: Floats, right: Floats) -> Floats:
    """Logarithms of the convolution of two sequences of logarithms."""
    short, long = sorted((left, right), key=len)
    table = np.full((len(short), len(short) + len(long) - 1), -np.inf)
    for index, value in enumerate(short):
        table[index, index : index + len(long)] = value + long
    largest = table.max(axis=0)
    return np.asarray(largest + np.log(np.exp(table - largest).sum(axis=0)), dtype=np.float64)
