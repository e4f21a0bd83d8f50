"""Trade-off functions: the smallest type-II error of a test, at each level of type-I error (f-DP).

f(alpha) = inf {1 - P(S) : Q(S) <= alpha} for tests S of "the output comes from Q" against P (Dong, Roth and Su 2022,
Definition 2.1): convex, falling, 0 <= f(alpha) <= 1 - alpha. It carries the same information as the privacy profile of
P against Q at all real epsilon, through convex duality (their Proposition 2.12, one direction):

    f(alpha) = max over epsilon of 1 - delta(epsilon) - e^epsilon alpha.

``fit_gdp`` summarizes a curve as mu-GDP, G_mu <= f, with its regret (Kaissis et al. 2024): the smallest k with
f(alpha + k) - k <= G_mu(alpha) for all alpha, at most 1/2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from dpspec.accounting.numerics import EPS, Floats, finite


@dataclass(frozen=True)
class GaussianTradeOff:
    """G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu), mu >= 0: N(0, 1) against N(mu, 1), in either direction."""

    mu: float

    def __post_init__(self) -> None:
        if finite("mu", self.mu) < 0.0:
            raise ValueError(f"mu must not be negative, got {self.mu!r}")

    def __call__(self, alpha: npt.ArrayLike) -> Floats:
        """The smallest type-II error at type-I error ``alpha``, Phi(-Phi^-1(alpha) - mu)."""
        return np.asarray(ndtr(-ndtri(_levels("alpha", alpha)) - self.mu), dtype=np.float64)

    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """The largest power at level ``fpr``, Phi(Phi^-1(fpr) + mu), with relative precision if it is small."""
        return np.asarray(ndtr(ndtri(_levels("fpr", fpr)) + self.mu), dtype=np.float64)


def _levels(name: str, values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0.0) & (array <= 1.0)):
        raise ValueError(f"{name} must be at least 0 and at most 1")
    return array


@dataclass(frozen=True, eq=False)
class Polygon:
    """A convex piecewise linear curve through vertices, from alpha = 0 to (1, 0).

    alpha: ascending, shape (n,), first 0 and last 1; beta: falling to 0; power: 1 - beta, kept for its own digits.
    """

    alpha: Floats
    beta: Floats
    power: Floats

    @classmethod
    def from_epsilon_delta(cls, points: Iterable[tuple[float, float]]) -> Polygon:
        """The largest curve that every (epsilon >= 0, delta) in ``points`` allows (Dong, Roth and Su 2022, Prop. 2.5).

        max over points of 0, 1 - delta - e^epsilon alpha and e^-epsilon (1 - delta - alpha).
        """
        epsilon, delta = np.array(list(points), dtype=np.float64).reshape(-1, 2).T
        if not np.all((epsilon >= 0.0) & (delta >= 0.0) & (delta <= 1.0)):
            raise ValueError("points must be pairs of an epsilon >= 0 and a delta in [0, 1]")
        # Lines beta >= b - t alpha, i.e. tpr <= d + t fpr, with b and d = 1 - b: near one, b loses the digits of d.
        # An epsilon above 700 is trivial in float64.
        used, shrink = epsilon <= 700.0, np.exp(-epsilon)
        t = np.concatenate((np.exp(epsilon[used]), shrink))
        d = np.concatenate((delta[used], -np.expm1(-epsilon) + shrink * delta))
        b = np.concatenate((1.0 - delta[used], shrink * (1.0 - delta)))
        order = np.lexsort((b, -t))
        t, d, b = (np.append(part[order], end) for part, end in ((t, 0.0), (d, 1.0), (b, 0.0)))
        envelope: list[int] = []
        starts: list[float] = []  # where on the alpha axis each line that is kept takes over
        for i in range(len(t)):
            start = 0.0
            while envelope:
                steep = envelope[-1]
                if t[steep] == t[i]:
                    start = 0.0 if b[i] >= b[steep] else 1.0
                else:  # near one, b and d lose each other's digits: the smaller pair is subtracted
                    rise = d[i] - d[steep] if d[i] < 0.5 else b[steep] - b[i]
                    start = float(rise / (t[steep] - t[i]))
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
        """The smallest type-II error at type-I error ``alpha``."""
        return np.asarray(np.interp(_levels("alpha", alpha), self.alpha, self.beta), dtype=np.float64)

    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """The largest power at level ``fpr``."""
        return np.asarray(np.interp(_levels("fpr", fpr), self.alpha, self.power), dtype=np.float64)


#: Cells of the grid over f(alpha) - alpha in [-1, 1], and the rounding error charged.
_CELLS, _ROUNDING = 16_384, 1e-14


class GdpFit(NamedTuple):
    """``G_mu - floor <= f`` everywhere, for the smallest mu; ``regret`` bounds the overstatement.

    A polygon from finitely many (epsilon, delta) ends earlier than any G_mu, and the floor is the difference.
    """

    mu: float
    regret: float
    floor: float


def fit_gdp(curve: Polygon) -> GdpFit:
    """The smallest mu for ``curve``, rounded up, and its regret.

    mu is the largest Phi^-1(1 - alpha) - Phi^-1(beta) over the inner vertices.
    """
    inner = (curve.alpha > 0.0) & (curve.beta > 0.0)
    alpha, power = curve.alpha[inner], curve.power[inner]
    mu = float(np.max(_quantile(power, curve.beta[inner]) - _quantile(alpha, 1.0 - alpha), initial=0.0))
    mu = mu * (1.0 + 64.0 * EPS) + 64.0 * EPS if mu > 0.0 else 0.0
    end = curve.alpha[np.flatnonzero(curve.beta == 0.0)[0]]
    return GdpFit(mu, _regret(curve, GaussianTradeOff(mu)), max(float(curve.power[0]), 1.0 - float(end)))


def _regret(curve: Polygon, weaker: GaussianTradeOff) -> float:
    """The smallest k >= 0 with ``curve``(alpha + k) - k <= ``weaker``(alpha) for all alpha, rounded up.

    On beta - alpha = d the distance is a difference of two convex functions of d: on a cell the first is below its
    chord, and the second above its neighbors' extended chords.
    """
    lines = np.linspace(-1.0, 1.0, _CELLS + 1)
    width = lines[1] - lines[0]
    # the alpha of each curve at which beta - alpha is each of the lines
    a, b = np.append(0.0, curve.alpha), np.append(1.0, curve.beta)
    far = np.interp(-lines, a - b, a)
    low, high = np.zeros(lines.shape), np.ones(lines.shape)
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = weaker(middle) - middle > lines
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    near = 0.5 * (low + high)
    gaps = far - near
    chords, slopes = np.diff(far), np.diff(near)
    # the weaker curve's slopes in the cells on the left and on the right; at the ends the axes' slopes, -1 and 0
    before, after = np.append(-width, slopes[:-1]), np.append(slopes[1:], 0.0)
    up, down = np.maximum(chords - before, 0.0), np.minimum(chords - after, 0.0)
    # lines from the left end, rising by up, and from the right end, rising backwards by -down
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.clip(np.where(up > down, (gaps[1:] - gaps[:-1] - down) / (up - down), 0.0), 0.0, 1.0)
    tops = np.maximum(gaps[:-1] + up * crossing, np.maximum(gaps[:-1], gaps[1:]))
    return max(0.0, float(tops.max()) + _ROUNDING)


def _quantile(value: Floats, complement: Floats) -> Floats:
    """Phi^-1(value), from the smaller of the two."""
    small = value <= 0.5
    return np.asarray(np.where(small, ndtri(value), -ndtri(complement)), dtype=np.float64)
