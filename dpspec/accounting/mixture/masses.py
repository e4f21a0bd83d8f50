"""Probabilities of intervals under the pair of a mixture, in log space, with bounds on their rounding error.

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

from dpspec.accounting.mixture.log_ratio import LogRatio
from dpspec.accounting.numerics.floats import EPS, LOG_ROOT_TWO_PI, Floats, gauss_rule

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
