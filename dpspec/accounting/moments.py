"""Moments of the likelihood ratio of a Gaussian mixture pair, in excess of one, for any real power.

With l the log-likelihood ratio of Q = N(0, 1) and P = sum_j p_j N(a_j, 1), w = e^l - 1 and E_Q[w] = 0,

    E_Q[(P/Q)^s] - 1 = E_Q[g(w)],   g(w) = (1 + w)^s - 1 - s w >= 0 for s > 1 and for s < 0,

so nothing cancels between outputs and a moment that exceeds one by 1e-20 has as many digits as any other. Everything
is in log space. The integrand is analytic, so the trapezoid rule converges exponentially in one over its step: the
step is halved until two results agree to 5e-13, which leaves far less. The rule runs over the outputs where the
integrand is within e^-120 of its largest bound, found by bisecting the line on upper bounds that use that l is convex.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import EPS, Floats
from dpspec.accounting.excess import log_excess_power

#: Outputs whose integrand is e^-120 of the largest are left out.
_CUT = 120.0

#: Two steps of the trapezoid rule must agree to this, relative to the moment or to its logarithm where that is larger.
_AGREE = 5e-13

#: Cells of a window are at most this wide; for negative powers there are at least so many of them.
_CELL, _CELLS = 1.0, 24

#: The trapezoid rule's first step, and how often it may be halved.
_STEP, _HALVINGS = 0.5, 24

#: Components times outputs that are worked on at once, and the most outputs for one moment.
_BLOCK, _MOST = 1 << 21, 1 << 24

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def log_excess(powers: Floats, shifts: Floats, log_weights: Floats) -> Floats:
    """ln(E_Q[(P/Q)^s] - 1) for each power s > 1 or s < 0, shape (n,).

    shifts, log_weights: a_j >= 0 and ln p_j in units of the noise, shape (n, m), one pair per power; equal rows may be
    broadcast views. Relative error of the excess below 1e-11, of its logarithm below 1e-12 where that exceeds 1; -inf
    where it is 0 in float64. Raises ``ArithmeticError`` where the integral would need more than 16 million outputs.
    """
    result = np.full(powers.shape, -np.inf)
    weighted = log_weights > -np.inf
    largest = np.max(np.where(weighted, shifts, 0.0), axis=1, initial=0.0)
    moving = np.flatnonzero(largest > 0.0)
    group = max(1, (1 << 14) // max(1, shifts.shape[1]))
    for start in range(0, len(moving), group):
        at = moving[start : start + group]
        result[at] = _Moments(powers[at], shifts[at], log_weights[at]).solve()
    return result


@dataclass(frozen=True, eq=False)
class _Moments:
    """Some powers with their pairs; arrays of points carry the row that they belong to."""

    powers: Floats
    shifts: Floats
    logs: Floats

    def solve(self) -> Floats:
        left, right, row = self._windows()
        width = np.bincount(row, weights=right - left, minlength=len(self.powers))
        step = np.minimum(_STEP, width / (2.0 * _CELLS))
        step = np.exp2(np.floor(np.log2(step)))  # so that halved steps meet earlier points exactly
        total = self._sum(left, right, row, step, odd=False)
        answer = total + np.log(step)
        open_rows = np.ones(len(self.powers), dtype=bool)
        for _ in range(_HALVINGS):
            step = np.where(open_rows, 0.5 * step, step)
            keep = open_rows[row]
            if np.max(width[open_rows] / step[open_rows]) > _MOST:
                break
            more = self._sum(left[keep], right[keep], row[keep], step, odd=True)
            total = np.where(open_rows, np.logaddexp(total, more), total)
            finer = np.where(open_rows, total + np.log(step), answer)
            with np.errstate(invalid="ignore"):
                near = np.abs(finer - answer) <= _AGREE * np.maximum(1.0, finer)
            answer = finer
            open_rows &= ~(near | np.isneginf(finer))
            if not open_rows.any():
                return np.asarray(answer - _LOG_ROOT_TWO_PI, dtype=np.float64)
        s, top = float(self.powers[open_rows][0]), float(self.shifts[open_rows].max())
        raise ArithmeticError(f"the moment of order {s:g} needs too many points for shifts of up to {top:g} sigma")

    def _windows(self) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
        """The cells (left, right, row) that matter, ordered by row and place."""
        n = len(self.powers)
        used = self.logs > -np.inf
        top = np.where(used, self.shifts, 0.0).max(axis=1)
        reach = math.sqrt(2.0 * _CUT) + 1.0
        row = np.arange(n)
        left = np.minimum(0.0, self.powers * top) - reach
        right = np.maximum(top, self.powers * top) + reach
        best = np.full(n, -np.inf)
        while True:
            lower, upper = self._bounds(left, right, row)
            np.maximum.at(best, row, lower)
            keep = upper >= best[row] - _CUT - 64.0 * EPS * np.abs(best[row])
            left, right, row = left[keep], right[keep], row[keep]
            few = np.bincount(row, minlength=n) < _CELLS
            split = (right - left > _CELL) | (few & (self.powers < 0.0))[row]
            if not split.any():
                order = np.lexsort((left, row))
                return left[order], right[order], row[order]
            middle = 0.5 * (left + right)
            left = np.concatenate((left, middle[split]))
            right = np.concatenate((np.where(split, middle, right), right[split]))
            row = np.concatenate((row, row[split]))

    def _bounds(self, left: Floats, right: Floats, row: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Of the largest of z^s, 1 and |s| z under the normal density, z = P/Q: a value reached, and an upper bound."""
        s = self.powers[row]
        low, slope_low = self._ratio(left, row)
        high, slope_high = self._ratio(right, row)
        weight = np.log(np.abs(s))
        reached = np.full(len(left), -np.inf)
        for z, loss in ((left, low), (right, high)):
            reached = np.maximum(reached, np.maximum(np.maximum(s * loss, 0.0), weight + loss) - 0.5 * np.square(z))
        chord = (high - low) / (right - left)
        rising = np.where(s > 0.0, _peak(s * low, s * chord, left, left, right), -np.inf)
        # s l is concave for negative s: it lies below its tangents
        first = _peak(s * low, s * slope_low, left, left, right)
        second = _peak(s * high, s * slope_high, right, left, right)
        falling = np.where(s < 0.0, np.minimum(first, second), -np.inf)
        linear = weight + _peak(low, chord, left, left, right)
        return reached, np.maximum.reduce([rising, falling, linear, _peak(0.0 * low, 0.0 * low, left, left, right)])

    def _sum(self, left: Floats, right: Floats, row: npt.NDArray[np.int64], step: Floats, *, odd: bool) -> Floats:
        """ln of the sum of the integrand over multiples (or odd multiples) of ``step`` in the cells, per row."""
        result = np.full(len(self.powers), -np.inf)
        stride = step[row] * (2.0 if odd else 1.0)
        offset = step[row] if odd else 0.0 * stride
        begin = np.ceil((left - offset) / stride)
        count = (np.ceil((right - offset) / stride) - begin).astype(np.int64)
        limit = max(1, _BLOCK // self.shifts.shape[1])
        ends = np.cumsum(count)
        cell = 0
        while cell < len(count):
            base = ends[cell] - count[cell]
            stop = max(cell + 1, int(np.searchsorted(ends, base + limit, side="right")))
            part = slice(cell, stop)
            many = count[part]
            index = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
            z = np.repeat(offset[part], many) + (np.repeat(begin[part], many) + index) * np.repeat(stride[part], many)
            owner = np.repeat(row[part], many)
            values = self._integrand(z, owner)
            starts = np.flatnonzero(np.diff(owner, prepend=-1))
            if len(starts):
                peak = np.maximum.reduceat(values, starts)
                peak[np.isneginf(peak)] = 0.0
                spans = np.diff(np.append(starts, len(values)))
                with np.errstate(divide="ignore"):
                    sums = peak + np.log(np.add.reduceat(np.exp(values - np.repeat(peak, spans)), starts))
                result[owner[starts]] = np.logaddexp(result[owner[starts]], sums)
            cell = stop
        return result

    def _ratio(self, z: Floats, row: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """l and l' at ``z``."""
        value, slope = np.empty_like(z), np.empty_like(z)
        size = max(1, _BLOCK // self.shifts.shape[1])
        for start in range(0, len(z), size):
            part = slice(start, start + size)
            shifts = self.shifts[row[part]]
            terms = shifts * (z[part, None] - 0.5 * shifts) + self.logs[row[part]]
            top = terms.max(axis=1)
            np.exp(terms - top[:, None], out=terms)
            total = terms.sum(axis=1)
            value[part] = top + np.log(total)
            slope[part] = np.sum(terms * shifts, axis=1) / total
        return value, slope

    def _integrand(self, z: Floats, row: npt.NDArray[np.int64]) -> Floats:
        """ln of g(w) times e^(-z^2/2)."""
        shifts, logs = self.shifts[row], self.logs[row]
        exponents = shifts * (z[:, None] - 0.5 * shifts)
        terms = exponents + logs
        top = terms.max(axis=1)
        loss = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
        near = np.abs(loss) < 0.5  # here l is better taken from w, which has no rounding error near 0
        change = np.expm1(np.minimum(loss, 700.0))
        weights = np.exp(logs[near])
        change[near] = np.sum(weights * np.expm1(np.minimum(exponents[near], 700.0)), axis=1)
        loss[near] = np.log1p(change[near])
        return log_excess_power(self.powers[row], loss, change) - 0.5 * np.square(z)


def _peak(value: Floats, slope: Floats, at: Floats, left: Floats, right: Floats) -> Floats:
    """The largest of ``value + slope (z - at) - z^2 / 2`` over z in [left, right]."""
    z = np.clip(slope, left, right)
    return np.asarray(value + slope * (z - at) - 0.5 * np.square(z), dtype=np.float64)
