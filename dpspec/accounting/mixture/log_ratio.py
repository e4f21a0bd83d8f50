"""The log-likelihood ratio of a mixture of Gaussians, its slope, and its inverse, vectorised.

In units of sigma, with shifts a_j = c_j / sigma >= 0 and weights p_j,

    l(z) = ln sum_j p_j exp(a_j z - a_j^2 / 2)

is increasing and convex, from ln p(c = 0) to infinity. Newton on l itself crawls near its lower end; with the zero
component taken out, l+(z) = ln sum_{a_j > 0} ... has a slope between the least and the largest positive shift, and
l(z) = x is the same as l+(z) = ln(e^x - p_0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.numerics.floats import EPS, Floats

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
