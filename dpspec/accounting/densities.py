"""The log-likelihood ratio of a mixture of Gaussians, its slope, and its inverse, vectorised.

In units of sigma, with shifts a_j = c_j / sigma >= 0 and weights p_j,

    l(z) = ln sum_j p_j exp(a_j z - a_j^2 / 2)

is increasing and convex, from ln p(c = 0) to infinity. Newton on l itself crawls near its lower end; with the zero
component taken out, l+(z) = ln sum_{a_j > 0} ... has a slope between the least and the largest positive shift, and
l(z) = x is the same as l+(z) = ln(e^x - p_0).

Probabilities of intervals under the pair of a mixture, in log space, with bounds on their rounding error.

Everything is in units of sigma. Differences are always taken between the smaller tails, so that an interval of width
h loses about 1e-16 / h of relative precision and no more.

How many of k group members a batch holds has binomial or hypergeometric log-probabilities, without gammaln: a relative
error of 1e-10 in a weight moves epsilon by T times as much after T steps, which rules out differences of log-gamma
values at the size of a data set. Ratios of neighbouring weights are exact to rounding; the anchor is either an exact ln
p_0 (where that is not small) or the sum to one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, logsumexp

from dpspec.accounting.numerics import EPS, LOG_ROOT_TWO_PI, Floats, gauss_rule

#: Components times points that are worked on at once: small enough for the cache.
_BLOCK = 1 << 15


#: From this many components on, a block leaves out those whose posterior mass in it is below e^``_NEGLIGIBLE``.
_MANY = 24


_NEGLIGIBLE = math.log(1e-20)


#: Points of the table that starts Newton on a long array.
_TABLE = 2049


@dataclass(frozen=True, eq=False)
class LogRatio:
    """l and its inverse for ``shifts`` (m,), ascending, and ``log_weights`` (m,); in units of sigma."""

    shifts: Floats
    log_weights: Floats

    @property
    def log_zero(self) -> float:
        """ln p(c = 0), the infimum of l; -inf without a zero component."""
        return float(self.log_weights[0]) if self.shifts[0] == 0.0 else -math.inf

    def __call__(self, z: Floats) -> Floats:
        """l(z), same shape as ``z``."""
        return self._ordered(z, slope=False)[0]

    def with_slope(self, z: Floats) -> tuple[Floats, Floats]:
        """l(z) and l'(z), the posterior mean of the shift."""
        return self._ordered(z, slope=True)

    def with_noise(self, z: Floats) -> tuple[Floats, Floats]:
        """l(z) at ascending ``z`` (n,), and bounds on its rounding error there."""
        values, _, noise = self._blocks(z, slope=False, size=True)
        return values, noise

    def inverse(self, loss: Floats) -> Floats:
        """The z with l(z) = ``loss``; -inf where ``loss`` is at or below ln p(c = 0).

        Newton from a table of the inverse; five steps at most reach rounding error on any array tried, and the loop
        ends only when a step no longer changes anything that matters.
        """
        flat = np.ravel(loss)
        if self.shifts[-1] == 0.0:  # no shift at all: the ratio is one everywhere
            return np.where(np.asarray(loss) > 0.0, np.inf, -np.inf)
        target, positive = self._above_zero(flat)
        result = np.full(flat.shape, -np.inf)
        inner = np.isfinite(target)
        result[inner] = positive._solve(target[inner])
        result[target == np.inf] = np.inf
        return result.reshape(np.shape(loss))

    def _above_zero(self, loss: Floats) -> tuple[Floats, LogRatio]:
        """ln(e^loss - p_0), and the ratio without the zero component."""
        if self.shifts[0] > 0.0:
            return loss, self
        gap = loss - self.log_zero
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            small = np.log(np.expm1(np.clip(gap, 0.0, 30.0)))
            target = self.log_zero + np.where(gap > 30.0, gap + np.log1p(-np.exp(-np.maximum(gap, 1.0))), small)
        return target, LogRatio(self.shifts[1:], self.log_weights[1:])

    def _solve(self, target: Floats) -> Floats:
        if target.size == 0:
            return target
        if target.size > _TABLE:
            ends = self._newton(self._start(np.array([target.min(), target.max()])), (target.min(), target.max()))
            start = self._table(ends, target)
        else:
            start = self._start(target)
        return self._newton(start, target)

    def _start(self, target: Floats) -> Floats:
        """A point right of the root: each component alone is a lower bound of the sum."""
        best = np.empty_like(target)
        rows = max(1, _BLOCK // len(self.shifts))
        offsets = 0.5 * self.shifts - self.log_weights / self.shifts
        for start in range(0, len(target), rows):
            best[start : start + rows] = (target[start : start + rows, None] / self.shifts + offsets).min(axis=1)
        return best

    def _table(self, ends: Floats, target: Floats) -> Floats:
        """Cubic Hermite interpolation of the inverse between tabulated points."""
        knots = np.linspace(ends[0] - 1e-9, ends[1] + 1e-9, _TABLE)
        values, slopes = self.with_slope(knots)
        knot = np.clip(np.searchsorted(values, target) - 1, 0, _TABLE - 2)
        width = values[knot + 1] - values[knot]
        t = (target - values[knot]) / width
        rise = (1.0 / slopes[knot]) * width
        fall = (1.0 / slopes[knot + 1]) * width
        run = knots[knot + 1] - knots[knot]
        return np.asarray(
            knots[knot] + t * (rise + t * (3.0 * run - 2.0 * rise - fall + t * (rise + fall - 2.0 * run))),
            dtype=np.float64,
        )

    def _newton(self, z: Floats, target: Floats | tuple[float, float]) -> Floats:
        goal = np.asarray(target, dtype=np.float64)
        for _ in range(100):
            value, slope = self.with_slope(z)
            step = (value - goal) / slope
            z = z - step
            if np.all(np.abs(step) <= 1e-8 * (1.0 + np.abs(z))):  # quadratic: the step just made was the last needed
                break
        return z

    def _ordered(self, z: Floats, *, slope: bool) -> tuple[Floats, Floats]:
        shape = np.shape(z)
        flat = np.ravel(np.asarray(z, dtype=np.float64))
        if len(self.shifts) < _MANY or bool(np.all(flat[1:] >= flat[:-1])):
            values, slopes, _ = self._blocks(flat, slope=slope)
            return values.reshape(shape), slopes.reshape(shape)
        order = np.argsort(flat)
        values, slopes = np.empty_like(flat), np.empty_like(flat)
        values[order], slopes[order], _ = self._blocks(flat[order], slope=slope)
        return values.reshape(shape), slopes.reshape(shape)

    def _blocks(self, z: Floats, *, slope: bool, size: bool = False) -> tuple[Floats, Floats, Floats]:
        values, slopes, sizes = np.empty_like(z), np.empty_like(z), np.empty_like(z)
        rows = max(256, _BLOCK // len(self.shifts))
        for start in range(0, len(z), rows):
            block = slice(start, start + rows)
            part = self.relevant(z[block], z[block])
            values[block], slopes[block], sizes[block] = part._block(z[block], slope=slope or size, size=size)
        return values, slopes, sizes

    def _block(self, z: Floats, *, slope: bool, size: bool) -> tuple[Floats, Floats, Floats]:
        """l, l' and a bound on the rounding error of l (the last two if asked for), at few outputs."""
        if self.shifts[0] == 0.0 and len(self.shifts) > 1:
            # what the zero component leaves is added to it as it is: where it is small, no digit of it is lost
            zero = float(self.log_weights[0])
            shifted, slopes, noise = LogRatio(self.shifts[1:], self.log_weights[1:])._block(z, slope=slope, size=size)
            more = np.logaddexp(0.0, shifted - zero)
            share = -np.expm1(-more) if slope or size else more
            if size:
                noise = 8.0 * EPS * (abs(zero) + more) + share * (noise + 8.0 * EPS * (abs(zero) + np.abs(shifted)))
            return zero + more, slopes * share, noise
        exponents = (z[None, :] - 0.5 * self.shifts[:, None]) * self.shifts[:, None] + self.log_weights[:, None]
        sizes = np.abs(self.log_weights) + 0.5 * np.square(self.shifts)
        if len(self.shifts) == 1:
            slopes = np.full(z.shape, self.shifts[0])
            return exponents[0], slopes, EPS * (4.0 + 4.0 * (sizes[0] + self.shifts[0] * np.abs(z)))
        top = exponents.max(axis=0)
        np.subtract(exponents, top, out=exponents)
        np.exp(exponents, out=exponents)
        total = exponents.sum(axis=0)
        slopes = (self.shifts @ exponents) / total if slope else total
        noise = total
        if size:  # each term's own error, as it counts in the sum
            noise = EPS * (32.0 + 4.0 * ((sizes @ exponents) / total + slopes * np.abs(z)))
        return top + np.log(total), slopes, noise

    def relevant(self, low: Floats, high: Floats) -> LogRatio:
        """The components that matter for every z, or interval, from ``low[0]`` to ``high[-1]``; both ascending.

        The posterior of the shift given z has monotone likelihood ratio in z: its lower tail is heaviest at the first
        point, its upper tail at the last. Of an interval without an end, a component on its inside has half of its
        weight there, and any other at most all of it. What is left out is below 1e-19 of the whole everywhere.
        """
        count = len(self.shifts)
        if count < _MANY:
            return self
        first, last = float(low[0]), float(high[-1])
        room = _NEGLIGIBLE - math.log(count)
        begin, end = 0, count
        if math.isfinite(first):
            logs = (first - 0.5 * self.shifts) * self.shifts + self.log_weights
            begin = int(np.argmax(logs > logs.max() + room))
        elif math.isfinite(high[0]) and (inside := int(np.searchsorted(self.shifts, high[0], side="right"))):
            floor = float(self.log_weights[:inside].max()) - 0.7
            begin = int(np.argmax(self.log_weights > floor + room))
        if math.isfinite(last):
            if last != first:
                logs = (last - 0.5 * self.shifts) * self.shifts + self.log_weights
            end -= int(np.argmax(logs[::-1] > logs.max() + room))
        elif math.isfinite(low[-1]) and (inside := int(np.searchsorted(self.shifts, low[-1]))) < count:
            floor = float(self.log_weights[inside:].max()) - 0.7
            end -= int(np.argmax(self.log_weights[::-1] > floor + room))
        return LogRatio(self.shifts[begin:end], self.log_weights[begin:end])


#: Above this ln p_0 the weights are anchored at p_0, below it they are normalised from their mode.
_ANCHOR = -30.0


def log_binomial(k: int, q: float) -> Floats:
    """ln P[Binomial(k, q) = j] for j = 0..k; shape (k + 1,). Rate 0 < q < 1."""
    j = np.arange(k, dtype=np.float64)
    ratios = np.log((k - j) / (j + 1.0)) + (math.log(q) - math.log1p(-q))
    return _from_ratios(ratios, k * math.log1p(-q))


def log_hypergeometric(k: int, n: int, batch_size: int) -> Floats:
    """ln P[Hypergeometric = j], j = 0..min(k, batch_size): ``batch_size`` balls drawn from k black and n white ones.

    Needs batch_size <= n, so that j = 0 is possible. p_0 is the product over i = 1..k of 1 - batch_size / (n + i), and
    p_{j+1} / p_j = (k - j) (batch_size - j) / ((j + 1) (n - batch_size + j + 1)).
    """
    i = np.arange(1, k + 1, dtype=np.float64)
    log_zero = float(np.sum(np.log1p(-batch_size / (n + i))))
    j = np.arange(min(k, batch_size), dtype=np.float64)
    ratios = np.log((k - j) / (j + 1.0)) + np.log((batch_size - j) / (n - batch_size + j + 1.0))
    return _from_ratios(ratios, log_zero)


def _from_ratios(ratios: Floats, log_zero: float) -> Floats:
    if log_zero > _ANCHOR:
        return log_zero + np.concatenate(([0.0], _running(ratios)))
    mode = int(np.sum(ratios > 0.0))  # ratios fall with j: the weights rise, then fall
    down = -_running(ratios[:mode][::-1])[::-1]
    logs = np.concatenate((down, [0.0], _running(ratios[mode:])))
    return np.asarray(logs - logsumexp(logs), dtype=np.float64)


def _running(values: Floats) -> Floats:
    """Cumulative sums with the rounding error of each addition carried along (Neumaier), (n,) for (n,)."""
    total = carry = 0.0
    sums = []
    for value in values.tolist():
        grown = total + value
        carry += (total - grown) + value if abs(total) >= abs(value) else (value - grown) + total
        total = grown
        sums.append(total + carry)
    return np.array(sums, dtype=np.float64)


#: Elements of a component-by-interval table that are held at once.
_CHUNK = 1 << 19


#: Cells worked on at once by quadrature.
_CELLS = 1 << 15


#: Gauss-Legendre with four points: the error relative to a Gaussian factor is below 5.6e-10 (h Z)^8 <= 1e-16
#: where h is the cell's width and Z bounds 2 and the distance to every component's mean.
_GAUSS_REACH = 0.143


_NODES, _WEIGHTS = gauss_rule(4)


def normal_mass(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """ln(Phi(high) - Phi(low)) for low <= high, and a bound on its absolute error.

    The error is that of log_ndtr, taken as 2 (8 + z^2) units in the last place, over 1 - (smaller tail / larger). An
    interval too narrow to tell its ends apart is given twice the mass that it can have, with an error of one.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        flip = low + high > 0.0
        near, far = np.where(flip, -low, high), np.where(flip, -high, low)
        tail = log_ndtr(near)
        share = -np.expm1(np.minimum(log_ndtr(far) - tail, 0.0))
        blur = 2.0 * EPS * (8.0 + np.square(np.minimum(near, 0.0)))
        unresolved = share <= blur
        mass = tail + np.log(np.where(unresolved, 2.0 * blur, share))
        error = np.where(unresolved, 1.0, blur / share)
        # intervals that hold nothing, and those that reach to minus infinity or hold everything
        empty = near <= far
    return np.where(empty, -np.inf, mass), np.where(empty | np.isnan(error), 0.0, error)


def mixture_mass(ratio: LogRatio, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """ln of the mixture's probability of [low, high] (n,), and a bound on its absolute error."""
    result, errors = np.empty(low.shape), np.empty(low.shape)
    rows = max(1, _CHUNK // len(ratio.shifts))
    for start in range(0, len(result), rows):
        block = slice(start, start + rows)
        part = ratio.relevant(low[block], high[block])
        terms, error = normal_mass(low[None, block] - part.shifts[:, None], high[None, block] - part.shifts[:, None])
        terms += part.log_weights[:, None]
        top = terms.max(axis=0)
        top[np.isneginf(top)] = 0.0
        np.exp(np.subtract(terms, top, out=terms), out=terms)
        total = terms.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            result[block] = top + np.log(total)
            shares = np.sum(terms * error, axis=0) / total
        errors[block] = np.where(total > 0.0, shares, 0.0) + 8.0 * EPS
    return result, errors


def upper_tail(ratio: LogRatio, z: float) -> float:
    """ln of the mixture's probability beyond ``z``."""
    return float(np.logaddexp.reduce(ratio.log_weights + log_ndtr(ratio.shifts - z)))


def lower_tail(ratio: LogRatio, z: float) -> float:
    """ln of the mixture's probability below ``z``."""
    return float(np.logaddexp.reduce(ratio.log_weights + log_ndtr(z - ratio.shifts)))


class CellMasses(NamedTuple):
    """What ``Cells`` wants to know of each cell; the fields are described there."""

    mass: Floats
    excess: Floats
    error: Floats
    slip: Floats

    def joined(self, other: CellMasses, start: int = 0) -> CellMasses:
        """These cells followed by ``other`` from its cell ``start`` on."""
        return CellMasses(*(np.concatenate((a, b[start:])) for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class Masses:
    """ln of the masses of intervals with the group and without, with bounds on the errors of the logarithms."""

    group: Floats
    none: Floats
    group_error: Floats
    none_error: Floats

    @classmethod
    def of(cls, ratio: LogRatio, low: Floats, high: Floats) -> Masses:
        """By differences of tails, component by component."""
        group, group_error = mixture_mass(ratio, low, high)
        none, none_error = normal_mass(low, high)
        return cls(group, none, group_error, none_error + 8.0 * EPS)

    def first(self, present: bool) -> tuple[float, float]:
        """The first interval's mass under the first distribution, rounded down and rounded up."""
        log, error = (self.group, self.group_error) if present else (self.none, self.none_error)
        value, slack = math.exp(float(log[0])), min(1.0, 4.0 * float(error[0]))
        return value * (1.0 - slack), value * (1.0 + slack)

    def cells(self, base: Floats, widths: Floats, noise: Floats, *, present: bool) -> CellMasses:
        """As cells whose l lies in [base, base + widths]."""
        first, second = (self.group, self.none) if present else (self.none, self.group)
        node = base if present else -base - widths
        rounding = 4.0 * EPS * (2.0 + np.abs(first) + np.abs(second) + np.abs(node))
        rounding[~np.isfinite(rounding)] = 0.0
        error = 2.0 * ((self.group_error if present else self.none_error) + noise + rounding)
        slip = 2.0 * (self.group_error + self.none_error + noise + rounding)
        mass = np.exp(first)
        with np.errstate(invalid="ignore"):
            gap = np.where(np.isneginf(second), -np.inf, second + node - first)
        return CellMasses(mass, -mass * np.expm1(np.minimum(gap, 700.0)), error, slip)


def cell_masses(
    ratio: LogRatio, z: Floats, base: Floats, widths: Floats, noise: Floats, *, present: bool
) -> CellMasses:
    """The cells between consecutive ``z`` (n + 1,), whose l lies in [base, base + widths] (n,) up to ``noise``.

    Narrow cells by quadrature of the densities, whose errors are common to both masses and cancel in the difference;
    wide ones by differences of tails.
    """
    count = len(z) - 1
    result = CellMasses(*(np.empty(count) for _ in range(4)))
    for start in range(0, count, _CELLS):
        block = np.arange(start, min(start + _CELLS, count))
        low, high = z[block], z[block + 1]
        part = ratio.relevant(low, high)
        reach = np.maximum(2.0, np.maximum(np.abs(low), np.abs(high)))
        reach = np.maximum(reach, np.maximum(part.shifts[-1] - low, high - part.shifts[0]))
        narrow = (high - low) * reach <= _GAUSS_REACH
        for here, wide in ((block[narrow], False), (block[~narrow], True)):
            if here.size == 0:
                continue
            ends = (z[here], z[here + 1])
            if wide:
                values = Masses.of(ratio, *ends).cells(base[here], widths[here], noise[here], present=present)
            else:
                values = _quadrature(ratio, *ends, base[here], widths[here], noise[here], present=present)
            for target, source in zip(result, values, strict=True):
                target[here] = source
    return result


def _quadrature(
    ratio: LogRatio, low: Floats, high: Floats, base: Floats, widths: Floats, noise: Floats, *, present: bool
) -> CellMasses:
    width = high - low
    points = low[:, None] + width[:, None] * _NODES
    losses = ratio(points)
    exponent = -0.5 * np.square(points) - LOG_ROOT_TWO_PI
    if present:
        exponent += losses
        gap = base[:, None] - losses
    else:
        gap = losses - (base + widths)[:, None]
    density = np.exp(exponent)
    density *= width[:, None] * _WEIGHTS
    error = 2.0 * noise + EPS * (40.0 + 2.0 * np.square(np.maximum(np.abs(low), np.abs(high))))
    return CellMasses(density.sum(axis=1), -(density * np.expm1(gap)).sum(axis=1), error, 2.0 * noise)
