"""Moments of the likelihood ratio of one step, in excess of one, for any real power.

With w the ratio less 1, whose mean is 0 under the second distribution,

    E[(1 + w)^s] - 1 = E[g(w)],   g(w) = (1 + w)^s - 1 - s w >= 0 for s > 1 and for s < 0,

so nothing cancels between outputs, and a moment that exceeds one by 1e-20 has full precision. All in log space.

*A Gaussian mixture pair.* The trapezoid rule, whose step is halved until two results agree to 5e-13, over the outputs
whose integrand is within e^-120 of its largest bound.

*A sampled Laplace pair.* Gauss's rule over the loss l of the unsampled pair (see ``laplace``), w = q (e^l - 1), in
panels that shrink towards both ends and are halved until two results agree to 5e-13.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from dpspec.accounting.numerics import EPS, LOG_ROOT_TWO_PI, Floats, gauss_rule

#: Terms of the series of g in w, and the largest |w| and |s w| for it.
_TERMS, _SMALL = 16, 0.05


def log_excess_power(power: Floats, loss: Floats, change: Floats) -> Floats:
    """ln g(w) at w = ``change`` = e^``loss`` - 1 for the powers s > 1 or s < 0; arrays of one shape.

    If |w| and |s w| are small, g is its Taylor series. Else, with r = 1 + s w > 0, g = r (e^d - 1) for d = s l - ln r;
    with r <= 0 its two parts have the same sign. ``change`` may be capped if ``loss`` is above 700; -inf at w = 0.
    """
    s, w = power, change
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        small = (np.abs(w) < _SMALL) & (np.abs(s * w) < _SMALL)
        # r - 1, or for s > 0 r e^-l - 1 = -(s - 1) (e^-l - 1), which is precise near s = 1
        shift = np.where(s > 0.0, -(s - 1.0) * np.expm1(-loss), s * w)
        log_r, growth = np.log1p(shift), np.where(s > 0.0, s - 1.0, s) * loss
        gap = growth - log_r
        log_r += np.where(s > 0.0, loss, 0.0)
        log_gap = np.log(np.expm1(np.minimum(gap, 30.0)))
        wide = gap > 30.0
        log_gap[wide] = gap[wide] + np.log1p(-np.exp(-gap[wide]))
        result = log_r + log_gap
        # r <= 0: s > 1 and w < 0, or s < 0 and w > 0
        negative = ~(shift > -1.0)
        if negative.any():
            result[negative] = _log_excess_of_parts(s[negative], loss[negative], w[negative])
        # the series by Horner's rule; -inf at w = 0
        s, w = s[small], w[small]
        tail = np.ones_like(w)
        for j in range(_TERMS, 2, -1):
            tail = 1.0 + (s - (j - 1.0)) / j * w * tail
        result[small] = np.log(0.5 * s * (s - 1.0)) + 2.0 * np.log(np.abs(w)) + np.log(tail)
    return np.asarray(result, dtype=np.float64)


def _log_excess_of_parts(s: Floats, loss: Floats, w: Floats) -> Floats:
    """ln g(w) for r <= 0, where the two parts of g have the same sign."""
    plain = np.log(np.expm1(np.minimum(s * loss, 700.0)) - s * w)
    steep = (
        np.log(np.abs(s)) + loss + np.log1p((np.exp(np.minimum(s * loss, 0.0)) - 1.0 + s) * np.exp(-loss) / np.abs(s))
    )
    return np.where((s < 0.0) & (loss > 30.0), steep, plain)


#: Outputs whose integrand is below e^-120 of the largest are omitted.
_CUT = 120.0

#: Two results must agree to this, relative to the moment or to its logarithm if that is larger.
_AGREE = 5e-13

#: The maximum width of a window's cells, and their minimum number for negative powers.
_CELL, _CELLS = 1.0, 24

#: The trapezoid rule's first step, and the maximum number of its halvings.
_STEP, _HALVINGS = 0.5, 24

#: Components times outputs per block, and the maximum number of outputs for one moment.
_BLOCK, _MOST = 1 << 21, 1 << 24


def log_gaussian_excess(powers: Floats, shifts: Floats, log_weights: Floats) -> Floats:
    """ln(E_Q[(P/Q)^s] - 1), (n,), for Q = N(0, 1) and P = sum_j p_j N(a_j, 1); -inf if the excess is 0 in float64.

    One power s > 1 or s < 0, and one row of a_j >= 0 and ln p_j, (n, m), each. The relative error of the excess is
    below 1e-11, of its logarithm below 1e-12 if that exceeds 1. ``ArithmeticError``: too many outputs.
    """
    result = np.full(powers.shape, -np.inf)
    weighted = log_weights > -np.inf
    largest = np.max(np.where(weighted, shifts, 0.0), axis=1, initial=0.0)
    moving = np.flatnonzero(largest > 0.0)
    group = max(1, (1 << 14) // max(1, shifts.shape[1]))
    for start in range(0, len(moving), group):
        rows = moving[start : start + group]
        result[rows] = _Moments(powers[rows], shifts[rows], log_weights[rows]).solve()
    return result


#: Farthest output, in sigma, at which cells of a width near 1 keep their digits.
_FARTHEST = 1e9


@dataclass(frozen=True, eq=False)
class _Moments:
    """Powers with their pairs; arrays of points carry the row of their power."""

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
            odd_sum = self._sum(left[keep], right[keep], row[keep], step, odd=True)
            total = np.where(open_rows, np.logaddexp(total, odd_sum), total)
            finer = np.where(open_rows, total + np.log(step), answer)
            with np.errstate(invalid="ignore"):
                settled = np.abs(finer - answer) <= _AGREE * np.maximum(1.0, finer)
            answer = finer
            open_rows &= ~(settled | np.isneginf(finer))
            if not open_rows.any():
                return np.asarray(answer - LOG_ROOT_TWO_PI, dtype=np.float64)
        raise self._too_many(float(self.powers[open_rows][0]))

    def _too_many(self, power: float) -> ArithmeticError:
        top = float(self.shifts.max())
        return ArithmeticError(f"the moment of order {power:g} needs too many points for shifts of up to {top:g} sigma")

    def _windows(self) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
        """The relevant cells (left, right, row), ordered by row and place."""
        n = len(self.powers)
        used = self.logs > -np.inf
        top = np.where(used, self.shifts, 0.0).max(axis=1)
        reach = math.sqrt(2.0 * _CUT) + 1.0
        row = np.arange(n)
        left = np.minimum(0.0, self.powers * top) - reach
        right = np.maximum(top, self.powers * top) + reach
        best = np.full(n, -np.inf)
        if float(np.max(np.maximum(right, -left))) > _FARTHEST:
            raise self._too_many(float(self.powers[int(np.argmax(np.maximum(right, -left)))]))
        while True:
            lower, upper = self._bounds(left, right, row)
            np.maximum.at(best, row, lower)
            keep = upper >= best[row] - _CUT - 64.0 * EPS * np.abs(best[row])
            left, right, row = left[keep], right[keep], row[keep]
            is_sparse = np.bincount(row, minlength=n) < _CELLS
            split = (right - left > _CELL) | (is_sparse & (self.powers < 0.0))[row]
            if not split.any():
                order = np.lexsort((left, row))
                return left[order], right[order], row[order]
            middle = 0.5 * (left + right)
            left = np.concatenate((left, middle[split]))
            right = np.concatenate((np.where(split, middle, right), right[split]))
            row = np.concatenate((row, row[split]))

    def _bounds(self, left: Floats, right: Floats, row: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """A value reached, and an upper bound, of the largest of z^s, 1 and |s| z times the normal density, z = P/Q."""
        s = self.powers[row]
        low, slope_low = self._ratio(left, row)
        high, slope_high = self._ratio(right, row)
        weight = np.log(np.abs(s))
        reached = np.full(len(left), -np.inf)
        for z, loss in ((left, low), (right, high)):
            reached = np.maximum(reached, np.maximum(np.maximum(s * loss, 0.0), weight + loss) - 0.5 * np.square(z))
        chord = (high - low) / (right - left)
        rising = np.where(s > 0.0, _peak(s * low, s * chord, left, left, right), -np.inf)
        # s l is concave for negative s: below its tangents
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
            counts = count[part]
            index = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            z = np.repeat(offset[part], counts) + (np.repeat(begin[part], counts) + index) * np.repeat(
                stride[part], counts
            )
            owner = np.repeat(row[part], counts)
            shifts, logs = self.shifts[owner], self.logs[owner]
            exponents = shifts * (z[:, None] - 0.5 * shifts)
            terms = exponents + logs
            top = terms.max(axis=1)
            loss = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
            near_zero = np.abs(loss) < 0.5  # here l is computed from w, which has no rounding error near 0
            change = np.expm1(np.minimum(loss, 700.0))
            shares = np.exp(logs[near_zero])
            change[near_zero] = np.sum(shares * np.expm1(np.minimum(exponents[near_zero], 700.0)), axis=1)
            loss[near_zero] = np.log1p(change[near_zero])
            values = log_excess_power(self.powers[owner], loss, change) - 0.5 * np.square(z)
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


def _peak(value: Floats, slope: Floats, anchor: Floats, left: Floats, right: Floats) -> Floats:
    """The largest of ``value + slope (z - anchor) - z^2 / 2`` over z in [left, right]."""
    z = np.clip(slope, left, right)
    return np.asarray(value + slope * (z - anchor) - 0.5 * np.square(z), dtype=np.float64)


_NODES, _WEIGHTS = gauss_rule(16)

#: Halvings of the panels next to the ends, and of all panels.
_GRADES, _PANEL_HALVINGS = 44, 6


def log_laplace_excess(power: float, rate: float, effect: float) -> float:
    """ln(E[r^s] - 1) for the ratio r of a sampled Laplace pair, s > 1 or s < 0; -inf if the excess is 0 in float64."""
    if effect == 0.0:
        return -math.inf
    ends = np.array([-effect, effect])
    atoms = _log_gain(power, rate, ends) + np.array([0.0, -effect]) - math.log(2.0)
    grades = np.concatenate(([0.0], 0.5 ** np.arange(_GRADES, -1.0, -1.0)))
    panels = effect * np.unique(np.concatenate((grades - 1.0, 1.0 - grades)))
    last = math.nan
    for _ in range(_PANEL_HALVINGS):
        width = np.diff(panels)
        l = panels[:-1, None] + width[:, None] * _NODES  # noqa: E741
        with np.errstate(divide="ignore"):
            logs = _log_gain(power, rate, l.ravel()) + np.log((width[:, None] * _WEIGHTS).ravel())
        inner = float(logsumexp(logs - 0.5 * (l.ravel() + effect))) - math.log(4.0)
        result = float(logsumexp(np.append(atoms, inner)))
        if result == last or abs(result - last) <= _AGREE * max(1.0, result):
            return result
        last = result
        panels = np.sort(np.concatenate((panels, panels[:-1] + 0.5 * width)))
    raise ArithmeticError(f"the moment of order {power:g} needs too many points for an effect of {effect:g}")


def _log_gain(power: float, rate: float, l: Floats) -> Floats:  # noqa: E741
    change = rate * np.expm1(np.minimum(l, 700.0))
    with np.errstate(divide="ignore"):
        plain = np.log((1.0 - rate) + rate * np.exp(np.minimum(l, 0.0)))
    loss = np.where(change < -0.5, plain, np.log1p(np.maximum(change, -0.5)))
    loss = (
        l
        if rate == 1.0
        else np.where(l > 30.0, l + np.log(rate) + np.log1p((1.0 - rate) / rate * np.exp(-np.maximum(l, 0.0))), loss)
    )
    return log_excess_power(np.full(l.shape, power), loss, change)
