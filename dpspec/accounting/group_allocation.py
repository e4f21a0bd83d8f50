"""Random allocation of k members with one gradient: the distribution of the likelihood ratio, above and below.

The ratio of an epoch of t steps is k! / t^k times the coefficient of y^k in a product of t independent, identically
distributed random polynomials of y (Theorem 2 of ``docs/explanation/proofs/random-allocation.md``), here cut after
degree k:

    1 + h_1(z) y + h_2(z) y^2 / 2! + ... + h_k(z) y^k / k!,    h_c(z) = exp(c z / sigma - c^2 / (2 sigma^2)),

with a standard normal z. The product comes by doubling, and each factor is replaced by one on few outcomes. The ratio
is linear in the coefficients of a factor, given all others, with factors that are not negative. So a factor is *below*
in convex order if outcomes are merged into their mean, and *above* if coefficients become comonotone and each one
moves, within a cell of equal probability, to two points with the same mean (Theorem 3 there).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from dpspec.accounting.convex_laws import LIGHTEST, Law, by_doubling, pair_blocks, place
from dpspec.accounting.densities import LogRatio
from dpspec.accounting.grid import SMALLEST
from dpspec.accounting.numerics import EPS, Floats, Index

#: Outcomes from below, and cells from above for one member (fewer in proportion to 1 / sqrt(members)).
_OUTCOMES, _CELLS = 1280, 1250

#: Intervals of z from below.
_SLICES = 1600

#: Normal numbers beyond this have no mass in float64.
FARTHEST = 37.0

#: From above, no outcome is lighter, so that products do not underflow.
_FLOOR = 1e-300

#: The minimum number of bins.
_BINS = 1 << 16

#: The bits of 1.0.
_BITS_OF_ONE = 0x3FF << 52

#: Up to this ratio of their shares, all coefficients of a cell move together.
_TOGETHER = 1.3

#: Shares are rounded down by this, and larger errors of a cell count as a doubled cell.
_SAFE = 1e-7


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A random polynomial of degree k on finitely many outcomes.

    Attributes:
        masses: (n,) probabilities of the outcomes.
        values: (k, n) coefficients of y, ..., y^k; the constant term is 1.
        off: c times this bounds the relative error of the coefficient of y^c.
    """

    masses: Floats
    values: Floats
    off: float


@functools.lru_cache(maxsize=64)
def group_laws(steps: int, sigma: float, depth: float, members: int, *, exact: bool) -> tuple[Law, Law]:
    """The ratio's distribution without the group, from above and from below.

    Args:
        steps: t.
        sigma: standard deviation of the noise in clip norms.
        depth: tails of a total mass of e^-depth under either distribution are cut.
        members: k.
        exact: whether the first is above; otherwise it is an estimate, the second one.
    """
    log_tail = -depth - math.log(64.0 * steps)
    edge = min(math.sqrt(-2.0 * log_tail), FARTHEST)
    top = min(members / sigma + edge, FARTHEST)
    cells = int(_CELLS / math.sqrt(members))
    lowest = _step_from_below(np.linspace(-edge, top, _SLICES + 1), sigma, members)
    below = by_doubling(lowest, steps, lambda a, b, last: _merged(a, b, last=last))
    above = below
    if exact:
        highest = _step_from_above(np.linspace(-edge, top, cells + 1), sigma, members)
        above = by_doubling(highest, steps, lambda a, b, last: _spread(a, b, cells, last=last))
    # With the group, each of its used steps has a mean of at most k.
    lost = math.exp(math.log(steps) + float(log_ndtr(members / sigma - top))) * (1.0 + 1e-9)
    laws = []
    for total, upper in ((above, True), (below, False)):
        with np.errstate(divide="ignore"):
            log_ratio = np.log(total.values[-1])
        log_ratio = log_ratio + math.lgamma(members + 1.0) - members * math.log(steps)
        order = np.argsort(log_ratio)
        size = float(np.max(np.abs(log_ratio[np.isfinite(log_ratio)])))
        off = members * total.off + 16.0 * EPS * (1.0 + size + members * math.log(steps))
        laws.append(Law(np.exp(log_ratio)[order], total.masses[order], upper, lost if upper else 0.0, off))
    return laws[0], laws[1]


def _means(z: Floats, sigma: float, members: int) -> tuple[Floats, Floats, Floats]:
    """Mass (n,) of each interval between neighbors of ``z``, means of the coefficients (k, n), relative errors (n,)."""
    shifted = [LogRatio(np.array([c / sigma]), np.zeros(1)).masses(z[:-1], z[1:]) for c in range(1, members + 1)]
    log_mass = shifted[0].none
    with np.errstate(invalid="ignore"):
        means = np.array([np.exp(mass.group - log_mass) / math.factorial(c) for c, mass in enumerate(shifted, 1)])
    error = np.max([mass.group_error + mass.none_error for mass in shifted], axis=0)
    reach = float(np.max(np.abs(z[np.isfinite(z)]))) + members / sigma
    return np.exp(log_mass), means, error + 64.0 * EPS * (1.0 + reach * reach)


def _step_from_below(z: Floats, sigma: float, members: int) -> Coefficients:
    """One step: each interval of z in its mean, the tails omitted."""
    mass, means, error = _means(z, sigma, members)
    used = error < 1e-6
    return Coefficients(mass[used] * (1.0 - error[used]), means[:, used], 2.0 * float(error[used].max()))


def _step_from_above(z: Floats, sigma: float, members: int) -> Coefficients:
    """One step: each interval of z at two points, and what lies beyond the last point on it."""
    mass, means, error = _means(np.concatenate(([-np.inf], z)), sigma, members)
    count = np.arange(1.0, members + 1.0)[:, None]
    factorial = np.array([math.factorial(c) for c in range(1, members + 1)], dtype=np.float64)[:, None]
    points = np.exp((z - 0.5 * count / sigma) * (count / sigma)) / factorial
    bottom = np.concatenate((np.zeros((members, 1)), points[:, :-1] * (1.0 - error[1:])), axis=1)
    gain = means - bottom
    # relative errors of the mean, as ones of the gain
    step = _corners(mass, bottom, points * (1.0 + error), gain, 4.0 * error * np.max(means / gain, axis=0))
    off = step.off
    beyond = math.exp(float(log_ndtr(-z[-1]))) * (1.0 + 1e-12)
    return Coefficients(np.append(step.masses, beyond), np.column_stack((step.values, points[:, -1])), off)


def _products(left: Coefficients, right: Coefficients) -> Iterator[tuple[Floats, Floats]]:
    """All pairs of outcomes, in blocks that fit in a cache; a pair of two outcomes of one distribution mostly once.

    Yields:
        (m,) masses and (k, m) coefficients of y, ..., y^k.
    """
    degree = len(left.values)
    for rows, columns, weights in pair_blocks(left, right):
        first, second = left.values[:, rows, None], right.values[:, None, columns]
        values = first + second
        for power in range(1, degree):
            for i in range(power):
                values[power] += first[i] * second[power - 1 - i]
        yield np.multiply.outer(left.masses[rows], weights).ravel(), values.reshape(degree, -1)


def _rounding(left: Coefficients, right: Coefficients) -> float:
    """``off`` of the products."""
    return max(left.off, right.off) + EPS * (4.0 + len(left.values))


@dataclass(frozen=True, eq=False)
class _Bins:
    """Bins of non-negative numbers: equal float64 bits without the last ``shift``, which ascend with the number.

    Bin 0 has all numbers below the bits ``base``.
    """

    shift: int
    base: int
    count: int

    @classmethod
    def between(cls, low: float, high: float) -> _Bins:
        """Up to 2 _BINS bins, from ``low`` above 0 to ``high``; larger numbers have none."""
        first, last = np.array([low, high]).view(np.int64).tolist()
        shift = max(0, math.ceil(math.log2((last - first) / _BINS + 1.0)))
        base = first >> shift
        return cls(shift, base, (last >> shift) - base + 2)

    def of(self, numbers: Floats) -> Index:
        """The number's bin, (n,)."""
        return np.asarray(np.maximum((numbers.view(np.int64) >> self.shift) - (self.base - 1), 0), dtype=np.int64)

    def starts(self, bins: Index) -> Floats:
        """The smallest number in each bin, (n,)."""
        return np.where(bins > 0, (bins + (self.base - 1) << self.shift).view(np.float64), 0.0)


def _ends(left: Coefficients, right: Coefficients) -> tuple[Floats, Floats]:
    """Of each coefficient of the products, (k,), a rough lower end of its positive values, and an upper end of all."""
    both = np.concatenate((left.values, right.values), axis=1)
    lows = np.min(both, axis=1, where=both > 0.0, initial=math.inf)
    first, second = left.values.max(axis=1), right.values.max(axis=1)
    highs = first + second
    for power in range(1, len(highs)):
        highs[power] += first[:power] @ second[:power][::-1]
    highs *= 1.0 + 1e-9
    return np.minimum(lows, highs), highs


def _rough_root(values: Floats, degree: int) -> Floats:
    """About values^(1 / degree), to a few percent: float64 has nearly the logarithm in its bits."""
    return ((values.view(np.int64) - _BITS_OF_ONE) // degree + _BITS_OF_ONE).view(np.float64)


def _merged(left: Coefficients, right: Coefficients, *, last: bool) -> Coefficients:
    """From below: outcomes merged by c_1 + (k! c_k)^(1/k), which separates usual and large sums; ``last``: by c_k."""
    degree = len(left.values)

    def key(values: Floats) -> Floats:
        root = values[-1] if last else values[0] + _rough_root(math.factorial(degree) * values[-1], degree)
        return np.asarray(root, dtype=np.float64)

    low, high = map(key, _ends(left, right))
    bins = _Bins.between(float(low), float(high) * 1.1)
    mass, terms, sums = np.zeros(bins.count), np.zeros(bins.count), np.zeros((degree, bins.count))
    for masses, values in _products(left, right):
        masses[masses <= LIGHTEST] = 0.0
        bin_of = bins.of(key(values))
        np.add.at(mass, bin_of, masses)
        np.add.at(terms, bin_of, 1.0)
        for sum_of_bins, value in zip(sums, values, strict=True):
            np.add.at(sum_of_bins, bin_of, masses * value)
    heavy = np.flatnonzero(mass)
    logs = np.log(np.maximum(bins.starts(heavy), float(low)))
    tilted = mass[heavy] + sums[-1, heavy] / float(sums[-1].sum())
    points = place(float(logs[0]), float(logs[-1]) + 1e-9, logs, tilted, _OUTCOMES)
    starts = np.unique(np.minimum(np.searchsorted(logs, np.log(points)), len(logs) - 1))
    mass, terms, sums = (np.add.reduceat(of_bins[..., heavy], starts, axis=-1) for of_bins in (mass, terms, sums))
    used = mass > LIGHTEST
    rounding = EPS * (8.0 + terms[used])
    off = _rounding(left, right) + 4.0 * float(rounding.max())
    return Coefficients(mass[used] * (1.0 - rounding), sums[:, used] / mass[used], off)


def _spread(left: Coefficients, right: Coefficients, cells: int, *, last: bool) -> Coefficients:
    """From above: comonotone coefficients, in cells of equal probability, each moved to two points.

    ``last``: only the coefficient of y^k matters, and only it is returned.
    """
    powers = range(len(left.values) - 1 if last else 0, len(left.values))
    lows, highs = (ends.tolist() for ends in _ends(left, right))
    marginals = [_BinnedMarginal(_Bins.between(lows[power], highs[power])) for power in powers]
    for masses, values in _products(left, right):
        masses = np.maximum(masses * (1.0 + 4.0 * EPS), _FLOOR)
        for marginal, power in zip(marginals, powers, strict=True):
            marginal.add(values[power], masses)
    under, over = _cuts(marginals[0].means, cells)
    total = marginals[0].means.under[-1]
    ends_under, ends_over = np.concatenate(([0.0], under, [total])), np.concatenate(([total], over, [0.0]))
    lower_half = ends_under[1:] <= ends_over[:-1]
    cell_mass = np.where(lower_half, np.diff(ends_under), -np.diff(ends_over)).astype(np.float64)
    contents = [marginal.above(under, over).cells(under, over, cell_mass) for marginal in marginals]
    low, high, gain, error, mismatch = (np.array(rows) for rows in zip(*contents, strict=True))
    cell_mass *= 1.0 + 2.0 * mismatch.max(axis=0)
    spread = _corners(cell_mass, low, high, gain, error.max(axis=0))
    return replace(spread, off=_rounding(left, right) + spread.off)


class _BinnedMarginal:
    """Sums of one coefficient's outcomes in bins."""

    def __init__(self, bins: _Bins) -> None:
        self._bins = bins
        self._mass, self._excess, self._terms = (np.zeros(bins.count) for _ in range(3))

    def add(self, values: Floats, masses: Floats) -> None:
        """Add outcomes of ``masses`` (m,) above 0, with the ``values`` (m,) of the coefficient."""
        bin_of = self._bins.of(values)
        np.add.at(self._mass, bin_of, masses)
        np.add.at(self._terms, bin_of, 1.0)
        np.add.at(self._excess, bin_of, masses * (values - self._bins.starts(bin_of)))

    @functools.cached_property
    def means(self) -> _Marginal:
        """The distribution of the means of all bins."""
        used = np.flatnonzero(self._mass)
        starts, last = self._bins.starts(used), np.nextafter(self._bins.starts(used + 1), 0.0)
        means = np.clip(starts + self._excess[used] / self._mass[used], starts, last)
        return _Marginal.of(means, self._mass[used], self._terms[used], used)

    def above(self, under: Floats, over: Floats) -> _Marginal:
        """A distribution above this one: bins with a cut, and the first and the last one, are moved to their ends."""
        marginal, is_split = self.means, np.zeros(self._bins.count, dtype=bool)
        while True:
            ends = marginal.bins[np.concatenate(([0, len(marginal.values) - 1], marginal.cut_index(under, over)))]
            if ends.max() < 0:
                return marginal
            is_split[ends[ends >= 0]] = True
            marginal = self._split(np.flatnonzero(is_split))

    def _split(self, split: Index) -> _Marginal:
        starts, ends = self._bins.starts(split), self._bins.starts(split + 1)
        mass, terms = self._mass[split], self._terms[split]
        excess = (self._excess[split] + SMALLEST * terms) / mass  # products may underflow
        share = np.minimum(excess / (ends - starts), 1.0)
        slack = EPS * (8.0 + 2.0 * terms)
        means, removed = self.means, np.searchsorted(self.means.bins, split)
        positions = np.repeat(removed - np.arange(len(split)), 2)

        def replaced(of_bins: Floats, first: Floats, second: Floats) -> Floats:
            both = np.column_stack((first, second)).ravel()
            return np.insert(np.delete(of_bins, removed), positions, both)

        return _Marginal.of(
            replaced(means.values, starts, ends),
            replaced(means.masses, mass * (1.0 - share + slack), mass * share * (1.0 + slack)),
            replaced(means.terms, terms, terms),
            np.insert(np.delete(means.bins, removed), positions, -1),
        )


@dataclass(frozen=True, eq=False)
class _Marginal:
    """The distribution of one coefficient.

    Attributes:
        values: (m,), ascending.
        masses: (m,), of the values.
        terms: (m,), the number of outcomes summed in a mass.
        bins: (m,), the bin with the value as its mean; -1 for an end of a bin.
        under: (m,) total mass up to each value, in extended precision where the platform has it.
        over: (m,) total mass from each value on.
    """

    values: Floats
    masses: Floats
    terms: Floats
    bins: Index
    under: npt.NDArray[np.longdouble]
    over: npt.NDArray[np.longdouble]

    @classmethod
    def of(cls, values: Floats, masses: Floats, terms: Floats, bins: Index) -> _Marginal:
        extended = masses.astype(np.longdouble)
        return cls(values, masses, terms, bins, np.cumsum(extended), np.cumsum(extended[::-1])[::-1])

    def cut_index(self, under: Floats, over: Floats) -> Index:
        """The index of the value at each cut (n - 1,), by the smaller of the masses ``under`` and ``over`` it."""
        last = len(self.values) - 1
        from_below = np.minimum(np.searchsorted(self.under, under), last)
        from_above = np.maximum(last - np.searchsorted(self.over[::-1], over), 0)
        return np.where(under < over, from_below, from_above)

    def cells(self, under: Floats, over: Floats, cell_mass: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """The conditional distribution in each cell.

        Args:
            under: (n - 1,) mass under each cut between cells.
            over: (n - 1,) mass over each cut.
            cell_mass: (n,) mass between neighboring cuts.

        Returns:
            Per cell, (n,): the lowest and the highest value, the mean less the lowest value, a bound on the relative
            error of that difference, and one on the relative difference of the mass from ``cell_mass``.
        """
        last = len(self.values) - 1
        cut_index = self.cut_index(under, over)
        # the part of the mass of the value at each cut that is under the cut
        remainder = np.where(under < over, under - self.under[cut_index], self.over[cut_index] - over)
        part = np.where(under < over, self.masses[cut_index] + remainder, remainder).astype(np.float64)
        part = np.clip(part, 0.0, self.masses[cut_index])
        ascending = np.lexsort((part, cut_index))
        cut_index, part = cut_index[ascending], part[ascending]
        begin, end = np.append(0, cut_index), np.append(cut_index, last)
        before, until = np.append(0.0, part), np.append(part, self.masses[last])
        low, high = self.values[begin], self.values[end]
        inner = begin < end
        starts = begin[inner]
        full, gain, blur, terms = np.zeros(len(low)), np.zeros(len(low)), np.zeros(len(low)), np.ones(len(low))
        if len(starts):
            span = slice(starts[0], last)
            masses, counts = self.masses[span], np.diff(np.append(starts, last))
            full[inner] = np.add.reduceat(masses, starts - starts[0])
            gains = masses * (self.values[span] - np.repeat(low[inner], counts))
            gain[inner] = np.add.reduceat(gains, starts - starts[0])
            terms[inner] = np.add.reduceat(self.terms[span], starts - starts[0])
            gain[inner] += SMALLEST * terms[inner]  # products may underflow
            # a mean is rounded
            blurs = np.where(self.bins[span] >= 0, masses * self.values[span], 0.0)
            blur[inner] = np.add.reduceat(blurs, starts - starts[0])
        gain += until * (high - low)
        mass = full - before + until
        error = EPS * (16.0 + 2.0 * terms) * (full + before + until) / np.maximum(mass, 1e-320)
        mismatch = np.abs(mass / cell_mass - 1.0) + error * mass / cell_mass
        error += 2.0 * EPS * blur / np.maximum(gain, 1e-320)
        return low, high, np.minimum(gain / np.maximum(mass, 1e-320), high - low), error, mismatch


def _cuts(marginal: _Marginal, cells: int) -> tuple[Floats, Floats]:
    """The mass under and over each cut between about ``cells`` cells, dense at large mass."""
    keys = np.log(np.maximum(marginal.values, marginal.values[marginal.values > 0.0][0]))
    tilted = marginal.masses * (1.0 + marginal.values / float(marginal.masses @ marginal.values))
    points = place(float(keys[0]), float(keys[-1]) + 1e-9, keys, tilted, cells)
    index = np.unique(np.searchsorted(keys, np.log(points)))
    index = index[(index > 0) & (index < len(keys))]
    # within a value, so that rounding moves no cut to another one
    half = 0.5 * marginal.masses[index]
    under, over = marginal.under[index] - half, marginal.over[index] - half
    # masses below the last digit of the sum make no cell
    distinct = np.append(True, np.where(under[1:] <= over[:-1], under[1:] > under[:-1], over[1:] < over[:-1]))
    return under[distinct], over[distinct]


def _corners(masses: Floats, low: Floats, high: Floats, gain: Floats, error: Floats) -> Coefficients:
    """Cells as two points each, or more if one coefficient's mean is much lower in the cell than another's.

    A coefficient with the mean low + gain becomes low + gain / s with the probability s, and low otherwise. For any s
    up to gain / (high - low) this is above the cell in convex order. A cell with an error above ``_SAFE`` counts at
    both ends in full.

    Args:
        masses: (n,) of the cells.
        low: (k, n) the lowest value of each coefficient.
        high: (k, n) the highest value.
        gain: (k, n) the mean less the lowest value.
        error: (n,) bound on the relative errors of ``masses`` and ``gain``.
    """
    width = high - low
    share = np.where(gain > 0.0, gain / np.where(width > 0.0, width, 1.0), 1.0)
    share = np.minimum(share, 1.0) * (1.0 - _SAFE - 4.0 * np.minimum(error, _SAFE))
    least = share.min(axis=0)
    precise = error <= _SAFE
    together = precise & (share.max(axis=0) <= _TOGETHER * least)
    masses = masses * (1.0 + 2.0 * np.minimum(error, 1.0) + 8.0 * EPS)
    outcomes = [(masses[~precise], ends[:, ~precise]) for ends in (low, high)]
    outcomes.append((masses[together] * (1.0 - least[together]), low[:, together]))
    outcomes.append((masses[together] * least[together], low[:, together] + gain[:, together] / least[together]))
    separate = precise & ~together
    masses, low, share, gain = masses[separate], low[:, separate], share[:, separate], gain[:, separate]
    rank = np.argsort(np.argsort(-share, axis=0), axis=0)
    bounds = np.concatenate((np.ones((1, len(masses))), -np.sort(-share, axis=0), np.zeros((1, len(masses)))))
    moved = low + gain / share
    outcomes += [(masses * (bounds[i] - bounds[i + 1]), np.where(rank < i, moved, low)) for i in range(len(share) + 1)]
    mass = np.concatenate([mass_of_outcome for mass_of_outcome, _ in outcomes])
    values = np.concatenate([values for _, values in outcomes], axis=1)
    off = 4.0 * float(np.max(error[precise], initial=0.0)) + 8.0 * EPS
    return Coefficients(np.maximum(mass, _FLOOR), values, off)
