"""Piecewise linear trade-off functions: from (epsilon, delta) pairs, from points of an ROC curve; their envelopes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import Floats
from dpspec.accounting.tradeoff import TradeOff, levels


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines beta >= b - t alpha, i.e. tpr <= d + t fpr, with t = e^epsilon, d = delta and b = 1 - d; (n,) each.

    d and b are both kept, since each loses the digits of the other where it is near one.
    """

    t: Floats
    d: Floats
    b: Floats

    @classmethod
    def of(cls, epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Lines:
        """tpr <= delta + e^epsilon fpr, any real epsilon; those above 700 say nothing in float64 and are left out."""
        eps, d = _vector(epsilon), _vector(delta)
        kept = eps <= 700.0
        return cls(np.exp(eps[kept]), d[kept], 1.0 - d[kept])

    @classmethod
    def mirrored(cls, epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Lines:
        """The same of the exchanged pair, 1 - fpr <= delta + e^epsilon beta: beta >= e^-epsilon (1 - delta - fpr)."""
        eps, d = _vector(epsilon), _vector(delta)
        t = np.exp(-eps)
        return cls(t, -np.expm1(-eps) + t * d, t * (1.0 - d))

    def __add__(self, other: Lines) -> Lines:
        return Lines(*(np.concatenate(pair) for pair in ((self.t, other.t), (self.d, other.d), (self.b, other.b))))


@dataclass(frozen=True, eq=False)
class Polygon(TradeOff):
    """A convex piecewise linear curve through vertices, from alpha = 0 to (1, 0).

    alpha: ascending, shape (n,), first 0 and last 1; beta: falling to 0; power: 1 - beta, kept for its own digits.
    """

    alpha: Floats
    beta: Floats
    power: Floats

    @classmethod
    def from_epsilon_delta(cls, points: Iterable[tuple[float, float]], *, one_sided: bool = False) -> Polygon:
        """The largest curve that every (epsilon, delta) in ``points`` allows, epsilon >= 0, 0 <= delta <= 1.

        max over points of 0, 1 - delta - e^epsilon alpha and e^-epsilon (1 - delta - alpha) (Dong, Roth and Su 2022,
        Proposition 2.5); with ``one_sided`` only the first line of each, for a pair known in one direction.
        """
        pairs = np.array(list(points), dtype=np.float64).reshape(-1, 2)
        if not np.all((pairs[:, 0] >= 0.0) & (pairs[:, 1] >= 0.0) & (pairs[:, 1] <= 1.0)):
            raise ValueError("points must be pairs of an epsilon >= 0 and a delta in [0, 1]")
        lines = Lines.of(pairs[:, 0], pairs[:, 1])
        return cls.above(lines if one_sided else lines + Lines.mirrored(pairs[:, 0], pairs[:, 1]))

    @classmethod
    def from_points(cls, fpr: npt.ArrayLike, tpr: npt.ArrayLike) -> Polygon:
        """The curve of tests that reach ``tpr`` at ``fpr``, (n,) each, and of all that randomise between them."""
        a, power = np.atleast_1d(levels("fpr", fpr)), np.atleast_1d(levels("tpr", tpr))
        return _hull(a, 1.0 - power, power)

    @classmethod
    def tangents(cls, curve: TradeOff, epsilons: npt.ArrayLike) -> Polygon:
        """The lines of ``curve`` at some real ``epsilons``, (n,): a curve below it that touches it there."""
        eps = _vector(epsilons)
        low = eps[eps < 0.0]
        lines = Lines.of(eps[eps >= 0.0], curve.delta(eps[eps >= 0.0]))
        return cls.above(lines + Lines.mirrored(-low, curve.inverse().delta(-low)))

    @classmethod
    def above(cls, lines: Lines) -> Polygon:
        """The upper envelope of ``lines`` and zero."""
        order = np.lexsort((lines.b, -lines.t))
        t, d, b = (np.append(part[order], end) for part, end in ((lines.t, 0.0), (lines.d, 1.0), (lines.b, 0.0)))
        kept: list[int] = []
        starts: list[float] = []  # where on the alpha axis each line that is kept takes over
        for i in range(len(t)):
            start = 0.0
            while kept:
                start = _crossing(t, d, b, kept[-1], i)
                if start > starts[-1]:
                    break
                kept.pop()
                starts.pop()
                start = 0.0
            if start >= 1.0:  # already at the end of the axis
                continue
            kept.append(i)
            starts.append(start)
        lines_before = [kept[0], *kept[:-1]]
        alpha = np.array(starts)
        power = d[lines_before] + t[lines_before] * alpha
        beta = b[kept] - t[kept] * alpha
        alpha, beta, power = np.append(alpha, 1.0), np.append(beta, 0.0), np.append(power, 1.0)
        return cls(alpha, np.clip(beta, 0.0, 1.0 - alpha), np.clip(power, alpha, 1.0))

    def __call__(self, alpha: npt.ArrayLike) -> Floats:
        """Linear between the vertices."""
        return np.asarray(np.interp(levels("alpha", alpha), self.alpha, self.beta), dtype=np.float64)

    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """Linear between the vertices."""
        return np.asarray(np.interp(levels("fpr", fpr), self.alpha, self.power), dtype=np.float64)

    def delta(self, epsilon: npt.ArrayLike) -> Floats:
        """The largest of tpr - e^epsilon fpr over the vertices."""
        t = np.exp(np.minimum(np.asarray(epsilon, dtype=np.float64), 700.0))
        return np.asarray(np.maximum(np.max(self.power - t[..., None] * self.alpha, axis=-1), 0.0), dtype=np.float64)

    def inverse(self) -> Polygon:
        """The vertices mirrored, from the curve's value at 0 on."""
        return _hull(self.beta, self.alpha, 1.0 - self.alpha)

    def symmetric(self) -> Polygon:
        """The hull of the vertices and of the mirrored ones."""
        return _hull(
            np.concatenate((self.alpha, self.beta)),
            np.concatenate((self.beta, self.alpha)),
            np.concatenate((self.power, 1.0 - self.alpha)),
        )

    def on_diagonal(self, difference: Floats) -> Floats:
        """Exact: alpha is piecewise linear in the difference; above the curve's first value it is 0."""
        a, b = np.append(0.0, self.alpha), np.append(1.0, self.beta)
        return np.asarray(np.interp(-difference, a - b, a), dtype=np.float64)


def _vector(values: npt.ArrayLike) -> Floats:
    return np.atleast_1d(np.asarray(values, dtype=np.float64))


def _crossing(t: Floats, d: Floats, b: Floats, steep: int, flat: int) -> float:
    """The alpha from which the flatter line is above the steeper one; at or below 0 if it always is."""
    if t[steep] == t[flat]:
        return 0.0 if b[flat] >= b[steep] else 1.0
    # near one, b and d lose each other's digits: the smaller pair is subtracted
    rise = d[flat] - d[steep] if d[flat] < 0.5 else b[steep] - b[flat]
    return float(rise / (t[steep] - t[flat]))


def _hull(alpha: Floats, beta: Floats, power: Floats) -> Polygon:
    """The lower convex hull of points and of (0, 1) and (1, 0)."""
    a, b, p = np.append([0.0, 1.0], alpha), np.append([1.0, 0.0], beta), np.append([0.0, 1.0], power)
    order = np.lexsort((b, a))
    kept: list[int] = []
    for i in (int(i) for i in order):
        if kept and a[i] == a[kept[-1]]:
            continue  # the lower of the two came first
        while len(kept) > 1:
            x, y = kept[-2], kept[-1]
            # by powers where they are small, by beta elsewhere: the same sign, with more digits
            rise, run = _fall(b, p, x, y) * (a[i] - a[x]), _fall(b, p, x, i) * (a[y] - a[x])
            if rise > run:
                break
            kept.pop()
        kept.append(i)
    return Polygon(a[kept], b[kept], p[kept])


def _fall(b: Floats, p: Floats, x: int, y: int) -> float:
    """beta[x] - beta[y]."""
    return float(p[y] - p[x] if max(p[x], p[y]) < 0.5 else b[x] - b[y])
