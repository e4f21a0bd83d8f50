"""Trade-off functions: the smallest type-II error of a test, at each level of type-I error (f-DP).

f(alpha) = inf {1 - P(S) : Q(S) <= alpha} for tests S of "the output comes from Q" against P (Dong, Roth and Su 2022,
Definition 2.1): convex, falling, 0 <= f(alpha) <= 1 - alpha. It carries the same information as the privacy profile of
P against Q at all real epsilon, through convex duality (their Proposition 2.12, one direction):

    f(alpha) = max over epsilon of 1 - delta(epsilon) - e^epsilon alpha,
    delta(epsilon) = max over alpha of 1 - f(alpha) - e^epsilon alpha.

P is the first distribution of the pair's direction: the present-first curve tests "absent" against "present".

``fit_gdp`` summarizes a curve as mu-GDP, G_mu <= f, with its regret (Kaissis et al. 2024): the smallest k with
f(alpha + k) - k <= G_mu(alpha) for all alpha, at most 1/2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from dpspec.accounting import gaussian
from dpspec.accounting.numerics import EPS, Floats, bisect, finite, inside

#: The largest epsilon: e^700 is comfortably in float64.
LARGEST_EPSILON = 700.0


class TradeOff(ABC):
    """A trade-off function, immutable; arguments are arrays of any shape, with values in [0, 1]."""

    @abstractmethod
    def __call__(self, alpha: npt.ArrayLike) -> Floats:
        """The smallest type-II error beta at type-I error ``alpha``."""

    @abstractmethod
    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """1 - f(``fpr``), the largest power at that level, with relative precision if it is small."""

    @abstractmethod
    def delta(self, epsilon: npt.ArrayLike) -> Floats:
        """The privacy profile at each real ``epsilon``: the convex conjugate."""

    def inverse(self) -> TradeOff:
        """The same pair with its roles exchanged: alpha as a function of beta. Itself for a symmetric pair."""
        return self

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 with ``self.delta(epsilon) <= delta``, a bisection's safe end; infinite if none."""
        target = inside("delta", delta)
        if float(self.delta(0.0)) <= target:
            return 0.0
        if float(self.delta(LARGEST_EPSILON)) > target:
            return math.inf
        return bisect(lambda epsilon: float(self.delta(epsilon)) <= target, LARGEST_EPSILON, 0.0)[0]

    def advantage(self) -> float:
        """The largest tpr - fpr of a test: the total variation distance, delta at epsilon 0."""
        return float(self.delta(0.0))

    def rero(self, kappa: float) -> float:
        """1 - f(``kappa``), the largest success of reconstruction from it (Kaissis et al. 2023, Theorem 1)."""
        return float(self.tpr(inside("kappa", kappa, one=True)))

    def on_diagonal(self, difference: Floats) -> Floats:
        """The alpha at which f(alpha) - alpha = ``difference``, in [-1, 1]; same shape."""
        low, high = np.zeros(difference.shape), np.ones(difference.shape)
        for _ in range(60):
            middle = 0.5 * (low + high)
            above = self(middle) - middle > difference
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.asarray(0.5 * (low + high), dtype=np.float64)


@dataclass(frozen=True)
class GaussianTradeOff(TradeOff):
    """G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu), mu >= 0: N(0, 1) against N(mu, 1), in either direction."""

    mu: float

    def __post_init__(self) -> None:
        if finite("mu", self.mu) < 0.0:
            raise ValueError(f"mu must not be negative, got {self.mu!r}")

    def __call__(self, alpha: npt.ArrayLike) -> Floats:
        """Phi(-Phi^-1(alpha) - mu)."""
        return np.asarray(ndtr(-ndtri(check_levels("alpha", alpha)) - self.mu), dtype=np.float64)

    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """Phi(Phi^-1(fpr) + mu)."""
        return np.asarray(ndtr(ndtri(check_levels("fpr", fpr)) + self.mu), dtype=np.float64)

    def delta(self, epsilon: npt.ArrayLike) -> Floats:
        """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang 2018)."""
        if self.mu == 0.0:
            return np.asarray(-np.expm1(np.minimum(np.asarray(epsilon, dtype=np.float64), -0.0)), dtype=np.float64)
        return gaussian.delta(epsilon, self.mu)


@dataclass(frozen=True)
class LaplaceTradeOff(TradeOff):
    """Laplace noise with sensitivity / scale = ``effect`` s >= 0, in either direction (Dong, Roth and Su 2022, A.6).

    f(alpha) = 1 - e^s alpha up to e^-s / 2, e^-s / (4 alpha) up to 1/2, e^-s (1 - alpha) beyond.
    """

    effect: float

    def __post_init__(self) -> None:
        if finite("effect", self.effect) < 0.0:
            raise ValueError(f"effect must not be negative, got {self.effect!r}")

    def __call__(self, alpha: npt.ArrayLike) -> Floats:
        """The three branches above."""
        a, shrink = check_levels("alpha", alpha), math.exp(-self.effect)
        with np.errstate(divide="ignore", over="ignore"):
            middle = 0.25 * shrink / a
        first, last = 1.0 - np.exp(self.effect + _log(a)), shrink * (1.0 - a)
        return np.asarray(np.where(a < 0.5 * shrink, first, np.where(a <= 0.5, middle, last)), dtype=np.float64)

    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """e^s fpr; 1 - e^-s / (4 fpr); 1 - e^-s (1 - fpr)."""
        a, shrink = check_levels("fpr", fpr), math.exp(-self.effect)
        first = np.exp(self.effect + _log(np.minimum(a, 0.5 * shrink)))
        return np.asarray(np.where(a < 0.5 * shrink, first, 1.0 - self(a)), dtype=np.float64)

    def delta(self, epsilon: npt.ArrayLike) -> Floats:
        """1 - e^((epsilon - s) / 2) for |epsilon| <= s; 0 above, 1 - e^epsilon below."""
        eps = np.asarray(epsilon, dtype=np.float64)
        inner = -np.expm1(np.minimum(0.5 * (eps - self.effect), 0.0))
        return np.asarray(np.where(eps < -self.effect, -np.expm1(np.minimum(eps, 0.0)), inner), dtype=np.float64)


def check_levels(name: str, values: npt.ArrayLike) -> Floats:
    """``values`` as an array. Raises ``ValueError`` naming the argument unless all lie in [0, 1]."""
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0.0) & (array <= 1.0)):
        raise ValueError(f"{name} must be at least 0 and at most 1")
    return array


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines beta >= b - t alpha, i.e. tpr <= d + t fpr, with t = e^epsilon, d = delta and b = 1 - d; (n,) each.

    d and b are both kept, since each loses the digits of the other near one.
    """

    t: Floats
    d: Floats
    b: Floats

    @classmethod
    def of(cls, epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Lines:
        """tpr <= delta + e^epsilon fpr, any real epsilon; an epsilon above 700 is trivial in float64 and omitted."""
        eps, d = _vector(epsilon), _vector(delta)
        used = eps <= LARGEST_EPSILON
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
        """The largest curve that every (epsilon >= 0, delta) in ``points`` allows (Dong, Roth and Su 2022, Prop. 2.5).

        max over points of 0, 1 - delta - e^epsilon alpha and e^-epsilon (1 - delta - alpha); with ``one_sided`` only
        the first line of each, for a pair known in one direction.
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
                steep = envelope[-1]  # the alpha from which the flatter line is above this one
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
        a, b = np.append([0.0, 1.0], self.beta), np.append([1.0, 0.0], self.alpha)
        p = np.append([0.0, 1.0], 1.0 - self.alpha)

        def fall(x: int, y: int) -> float:
            """beta[x] - beta[y], by powers if they are small: with more digits."""
            return float(p[y] - p[x] if max(p[x], p[y]) < 0.5 else b[x] - b[y])

        hull: list[int] = []  # the lower convex hull of these points
        for i in np.lexsort((b, a)).tolist():
            if hull and a[i] == a[hull[-1]]:
                continue  # the lower of the two came first
            while len(hull) > 1:
                x, y = hull[-2], hull[-1]
                if fall(x, y) * (a[i] - a[x]) > fall(x, i) * (a[y] - a[x]):
                    break
                hull.pop()
            hull.append(i)
        return Polygon(a[hull], b[hull], p[hull])

    def on_diagonal(self, difference: Floats) -> Floats:
        """See ``TradeOff.on_diagonal``; exact for a polygon. 0 if ``difference`` exceeds the curve at alpha 0."""
        a, b = np.append(0.0, self.alpha), np.append(1.0, self.beta)
        return np.asarray(np.interp(-difference, a - b, a), dtype=np.float64)


def _vector(values: npt.ArrayLike) -> Floats:
    return np.atleast_1d(np.asarray(values, dtype=np.float64))


#: Cells of the grid over f(alpha) - alpha in [-1, 1], and the rounding error charged.
_CELLS, _ROUNDING = 16_384, 1e-14


class GdpFit(NamedTuple):
    """``G_mu - floor <= f`` everywhere, for the smallest mu; ``regret`` bounds the overstatement.

    A polygon from finitely many (epsilon, delta) ends earlier than any G_mu, and the floor is the difference.
    """

    mu: float
    regret: float
    floor: float


def fit_gdp(curve: TradeOff) -> GdpFit:
    """The smallest mu for ``curve``, rounded up, and its regret.

    A polygon: the largest Phi^-1(1 - alpha) - Phi^-1(beta) over its inner vertices. Laplace: at alpha = f(alpha).

    Raises: ValueError: the curve is neither Gaussian, Laplace nor a polygon.
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
    """The smallest k >= 0 with ``stronger``(alpha + k) - k <= ``weaker``(alpha) for all alpha, rounded up.

    On beta - alpha = d the distance is a difference of two convex functions of d: on a cell the first is below its
    chord, and the second above its neighbors' extended chords.
    """
    lines = np.linspace(-1.0, 1.0, _CELLS + 1)
    width = lines[1] - lines[0]
    stronger_values, weaker_values = stronger.on_diagonal(lines), weaker.on_diagonal(lines)
    gaps = stronger_values - weaker_values
    chords, slopes = np.diff(stronger_values), np.diff(weaker_values)
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
