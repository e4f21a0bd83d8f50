"""Piecewise linear trade-off functions: envelopes of lines and of (epsilon, delta) pairs.

``fit_gdp`` makes one number of a curve: the least mu with G_mu below it, and how much saying only that gives away.
G_mu <= f means that the mechanism is mu-GDP (Dong, Roth and Su 2022). The regret is how much stronger f is than G_mu
(Kaissis et al. 2024): the least k with f(alpha + k) - k <= G_mu(alpha) for all alpha, at most 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dpspec.accounting.numerics.floats import EPS, Floats
from dpspec.accounting.tradeoff.trade_off import GaussianTradeOff, LaplaceTradeOff, TradeOff, check_levels


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
        used = eps <= 700.0
        return cls(np.exp(eps[used]), d[used], 1.0 - d[used])

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
    def above(cls, lines: Lines) -> Polygon:
        """The upper envelope of ``lines`` and zero."""
        order = np.lexsort((lines.b, -lines.t))
        t, d, b = (np.append(part[order], end) for part, end in ((lines.t, 0.0), (lines.d, 1.0), (lines.b, 0.0)))
        envelope: list[int] = []
        starts: list[float] = []  # where on the alpha axis each line that is kept takes over
        for i in range(len(t)):
            start = 0.0
            while envelope:
                start = _crossing(t, d, b, envelope[-1], i)
                if start > starts[-1]:
                    break
                envelope.pop()
                starts.pop()
                start = 0.0
            if start >= 1.0:  # already at the end of the axis
                continue
            envelope.append(i)
            starts.append(start)
        lines_before = [envelope[0], *envelope[:-1]]
        alpha = np.array(starts)
        power = d[lines_before] + t[lines_before] * alpha
        beta = b[envelope] - t[envelope] * alpha
        alpha, beta, power = np.append(alpha, 1.0), np.append(beta, 0.0), np.append(power, 1.0)
        return cls(alpha, np.clip(beta, 0.0, 1.0 - alpha), np.clip(power, alpha, 1.0))

    def __call__(self, alpha: npt.ArrayLike) -> Floats:
        """Linear between the vertices."""
        return np.asarray(np.interp(check_levels("alpha", alpha), self.alpha, self.beta), dtype=np.float64)

    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """Linear between the vertices."""
        return np.asarray(np.interp(check_levels("fpr", fpr), self.alpha, self.power), dtype=np.float64)

    def delta(self, epsilon: npt.ArrayLike) -> Floats:
        """The largest of tpr - e^epsilon fpr over the vertices."""
        t = np.exp(np.minimum(np.asarray(epsilon, dtype=np.float64), 700.0))
        return np.asarray(np.maximum(np.max(self.power - t[..., None] * self.alpha, axis=-1), 0.0), dtype=np.float64)

    def inverse(self) -> Polygon:
        """The vertices mirrored, from the curve's value at 0 on."""
        return _hull(self.beta, self.alpha, 1.0 - self.alpha)

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
    hull: list[int] = []
    for i in (int(i) for i in order):
        if hull and a[i] == a[hull[-1]]:
            continue  # the lower of the two came first
        while len(hull) > 1:
            x, y = hull[-2], hull[-1]
            # by powers where they are small, by beta elsewhere: the same sign, with more digits
            rise, run = _fall(b, p, x, y) * (a[i] - a[x]), _fall(b, p, x, i) * (a[y] - a[x])
            if rise > run:
                break
            hull.pop()
        hull.append(i)
    return Polygon(a[hull], b[hull], p[hull])


def _fall(b: Floats, p: Floats, x: int, y: int) -> float:
    """beta[x] - beta[y]."""
    return float(p[y] - p[x] if max(p[x], p[y]) < 0.5 else b[x] - b[y])


#: Cells of the grid over f(alpha) - alpha in [-1, 1], and the rounding error charged.
_CELLS, _ROUNDING = 16_384, 1e-14


class GdpFit(NamedTuple):
    """``G_mu - floor <= f`` everywhere, for the least mu; ``regret`` bounds what this overstates.

    floor is 0 for curves that start at (0, 1) and reach 0 at 1 only. A polygon from finitely many (epsilon, delta) ends
    earlier: no mu is enough for it there, and the floor is by how much.
    """

    mu: float
    regret: float
    floor: float


def fit_gdp(curve: TradeOff) -> GdpFit:
    """The least mu for ``curve``, rounded up, and its regret. Raises ``ValueError`` for kinds of curve not known here.

    A polygon: the largest Phi^-1(1 - alpha) - Phi^-1(beta) over its inner vertices (G_mu is convex, so it lies below
    the edges between them too). Laplace: at alpha = f(alpha), since u -> -Phi^-1(e^-u) is concave for u >= ln 2.
    """
    if isinstance(curve, GaussianTradeOff):
        return GdpFit(curve.mu, 0.0, 0.0)
    floor = 0.0
    if isinstance(curve, LaplaceTradeOff):
        mu = -2.0 * float(ndtri(0.5 * math.exp(-0.5 * curve.effect)))
    elif isinstance(curve, Polygon):
        inner = (curve.alpha > 0.0) & (curve.beta > 0.0)
        effects = _quantile(curve.power[inner], curve.beta[inner]) - _quantile(
            curve.alpha[inner], 1.0 - curve.alpha[inner]
        )
        mu = float(np.max(effects, initial=0.0))
        end = curve.alpha[np.flatnonzero(curve.beta == 0.0)[0]]
        floor = max(float(curve.power[0]), 1.0 - float(end))
    else:
        raise ValueError(f"curve must be Gaussian, Laplace or a polygon, got {type(curve).__name__}")
    mu = max(0.0, mu) * (1.0 + 64.0 * EPS) + 64.0 * EPS if mu > 0.0 else 0.0
    return GdpFit(mu, delta_divergence(curve, GaussianTradeOff(mu)), floor)


def delta_divergence(stronger: TradeOff, weaker: TradeOff) -> float:
    """The least k >= 0 with ``stronger``(alpha + k) - k <= ``weaker``(alpha) for all alpha, rounded up, by 1e-6 or so.

    On the line beta - alpha = d the curves are a distance k(d) apart, the difference of two convex functions of d. On a
    cell between grid lines the first lies below its chord and the second above its neighbours' chords, prolonged.
    """
    lines = np.linspace(-1.0, 1.0, _CELLS + 1)
    width = lines[1] - lines[0]
    far, near = stronger.on_diagonal(lines), weaker.on_diagonal(lines)
    gaps = far - near
    chords, slopes = np.diff(far), np.diff(near)
    # the weaker curve's slopes in the cells on the left and on the right; at the ends those of the axes, -1 and 0
    before, after = np.append(-width, slopes[:-1]), np.append(slopes[1:], 0.0)
    up, down = np.maximum(chords - before, 0.0), np.minimum(chords - after, 0.0)
    # lines from the left end, rising by up, and from the right end, rising backwards by -down
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.clip(np.where(up > down, (gaps[1:] - gaps[:-1] - down) / (up - down), 0.0), 0.0, 1.0)
    tops = np.maximum(gaps[:-1] + up * crossing, np.maximum(gaps[:-1], gaps[1:]))
    return max(0.0, float(tops.max()) + _ROUNDING)


def _quantile(value: Floats, complement: Floats) -> Floats:
    """Phi^-1(value), from whichever of the two is smaller."""
    small = value <= 0.5
    return np.asarray(np.where(small, ndtri(value), -ndtri(complement)), dtype=np.float64)
