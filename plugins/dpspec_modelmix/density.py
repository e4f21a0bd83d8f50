"""Noise of one mixed coordinate: N(0, 1) convolved with a uniform of width t, in units of the Gaussian std.

    p_0(o) = [Phi(o + t/2) - Phi(o - t/2)] / t,   p_v(o) = p_0(o - v),   A_k(v, t) = E_{p_0}[(p_v / p_0)^k].

The relative error of moments is below 1e-10.

The privacy loss of the pair behind the bound is composed by FFT, to show the tightness of the bound. The pair is the
one-hot gradient, or p equal coordinates at clip_norm / sqrt(p). The value is an estimate: not a lower bound on the
mechanism unless a dataset has that gradient and that gap at every step, and not an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr, ndtr

from dpspec.accounting import Floats, inside, log_excess_power
from dpspec_modelmix.options import Segment

#: Width below which the uniform counts as 0, which only increases the bounds.
NARROW = 1e-6

#: Shift above which the Gaussian moment is used: mixing only decreases moments, and quadrature needs too many nodes.
LONG = 100.0

#: Integration range beyond the centers, width of a panel, and its nodes and weights on [-1, 1].
_REACH, _PANEL, _RULE = 12.0, 0.5, np.polynomial.legendre.leggauss(16)

#: Width above which the middle of the uniform is skipped: p_v / p_0 equals 1 there in float64.
_WIDE = 48.0

#: Width above which both ends of the uniform are independent.
_FAR = 100.0


def log_density(o: Floats, width: float) -> Floats:
    """ln p_0 at ``o``, for ``width`` t >= 0."""
    if width < NARROW:
        return np.asarray(-0.5 * np.square(o) - 0.5 * math.log(2.0 * math.pi), dtype=np.float64)
    a, half = np.abs(o), 0.5 * width
    upper, lower = log_ndtr(half - a), log_ndtr(-half - a)
    return np.asarray(upper + np.log(-np.expm1(lower - upper)) - math.log(width), dtype=np.float64)


def log_ratio(o: Floats, shift: float, width: float) -> Floats:
    """ln p_v(o) / p_0(o) at v = ``shift``."""
    return np.asarray(log_density(o - shift, width) - log_density(o, width), dtype=np.float64)


def nodes(shift: float, width: float, largest: float) -> tuple[Floats, Floats]:
    """Quadrature nodes and weights (n,) that cover the mass of (p_v / p_0)^a p_0 for a up to ``largest``."""
    half = 0.5 * width
    low, high = -half - _REACH, half + largest * shift + _REACH
    pieces = [(low, -half), (-half, -half + shift), (-half + shift, half), (half, half + shift), (half + shift, high)]
    if width > _WIDE + 2.0 * shift:
        pieces[2:3] = [(-half + shift, -half + shift + _REACH), (half - _REACH, half)]
    elif shift > width:
        pieces = [(low, high)]
    base, weights = _RULE
    parts: list[tuple[Floats, Floats]] = []
    for start, end in pieces:
        panels = max(1, math.ceil((end - start) / _PANEL))
        size = (end - start) / panels
        if size <= 0.0:
            continue
        middles = start + size * (np.arange(panels) + 0.5)
        parts.append(((middles[:, None] + 0.5 * size * base).ravel(), np.tile(0.5 * size * weights, panels)))
    return np.concatenate([o for o, _ in parts]), np.concatenate([w for _, w in parts])


def log_excess_moments(orders: Floats, shift: float, width: float, rate: float = 1.0) -> Floats:
    """ln(E_{p_0}[(1 - q + q p_v / p_0)^a] - 1) for real ``orders`` a > 1, shape (n,), with q = ``rate``.

    The integrand (1 + w)^a - 1 - a w is non-negative; w = q (p_v / p_0 - 1) has mean 0 under p_0.
    """
    if shift == 0.0:
        return np.full(len(orders), -math.inf)
    far = _FAR + 4.0 * shift
    if width > far:
        # Only the ends contribute and their shape is fixed, so the excess is proportional to 1 / t.
        return np.asarray(log_excess_moments(orders, shift, far, rate) + math.log(far / width), dtype=np.float64)
    log_excess = np.empty(len(orders))
    # Similar orders share nodes; large orders need a wider range than small ones.
    ranks = np.ceil(np.log2(np.maximum(orders, 2.0)))
    for rank in np.unique(ranks):
        alike = ranks == rank
        o, weights = nodes(shift, width, float(orders[alike].max()))
        loss = log_ratio(o, shift, width)
        logs = log_density(o, width) + np.log(weights)
        if rate < 1.0:
            change = rate * np.expm1(np.minimum(loss, 700.0))
            loss = np.where(
                loss < 1.0, np.log1p(np.minimum(change, 2.0)), np.logaddexp(math.log1p(-rate), loss + math.log(rate))
            )
        change = np.expm1(np.minimum(loss, 700.0))
        for i in np.flatnonzero(alike):
            values = log_excess_power(np.full(len(o), orders[i]), loss, change) + logs
            top = float(np.max(values))
            log_excess[i] = top + math.log(float(np.sum(np.exp(values - top)))) if math.isfinite(top) else top
    return log_excess


@lru_cache(maxsize=1024)
def log_moments(orders: tuple[int, ...], shift: float, width: float) -> Floats:
    """ln A_k(v, t) for k in ``orders``, at least 2, shape (n,); k (k - 1) v^2 / 2 for shifts above ``LONG``."""
    k = np.asarray(orders, dtype=np.float64)
    if width < NARROW or shift > LONG:
        return np.asarray(0.5 * k * (k - 1.0) * shift**2, dtype=np.float64)
    return np.asarray(np.logaddexp(0.0, log_excess_moments(k, shift, width)), dtype=np.float64)


def star_shape(orders: tuple[int, ...], shift: float, width: float) -> float:
    """Maximum ratio (h_k(u) / u^2) / (h_k(v) / v^2) over ``orders`` k and 16 values u in (0, v], with h_k = ln A_k.

    At most 1 if the one-hot gradient is the worst of the checked gradients; a numerical check, not a proof. If the
    ratio exceeds 1, the bounds replace h_k(v) by v^2 max h_k(u) / u^2.
    """
    if width < NARROW:
        return 1.0
    line = log_moments(orders, shift, width) / shift**2
    smaller = np.geomspace(shift / 1000.0, shift, 16).tolist()
    return max(float(np.max(log_moments(orders, u, width) / u**2 / line)) for u in smaller)


#: Cell width of one coordinate's output.
_CELL = 0.005

#: Spacing of summed losses, and number of grid points above which the spacing grows.
_SPACING, _POINTS = 1e-4, 1 << 21

#: Spacing of the coordinates' losses in a step.
_WITHIN = 1e-3

#: Maximum mass outside the window of a sum.
_LOST = 1e-13

#: Powers in the Chernoff bound that determines the window of a sum.
_POWERS = np.geomspace(1e-2, 300.0, 40)


#: Probabilities of one coordinate's cells with the record and without it, (n,) each.
Cells: TypeAlias = tuple[Floats, Floats]


class Law(NamedTuple):
    """A discrete distribution: losses in ascending order with their probabilities, (n,) each."""

    losses: Floats
    masses: Floats

    def delta(self, epsilon: float) -> float:
        """E[(1 - e^(epsilon - loss))_+]."""
        return float(self.masses @ -np.expm1(np.minimum(epsilon - self.losses, 0.0)))


def _pair_step(segment: Segment) -> Law:
    """One step's loss ln(1 - q + q r) if the record is present; r is the likelihood ratio of all p coordinates."""
    present, absent = _coordinate(segment.shift, segment.gap, segment.noise)
    loss = np.log(present) - np.log(absent)
    if not segment.one_dimensional:
        parts = [((present, absent), segment.sparsity)]
        if segment.embedded > 0.0:
            parts.append((_coordinate(segment.embedded, 0.0, "gaussian"), 1))
        loss, present, absent = _product(parts)
    if segment.rate == 1.0:
        return Law(loss, present)
    mixed = np.where(
        loss < 1.0,
        np.log1p(segment.rate * np.expm1(np.minimum(loss, 1.0))),
        np.logaddexp(math.log1p(-segment.rate), math.log(segment.rate) + loss),
    )
    return Law(mixed, (1.0 - segment.rate) * absent + segment.rate * present)


def pair_epsilon(segments: Sequence[Segment], delta: float) -> float:
    total, target = pair_loss(segments), inside("delta", delta)
    low, high = 0.0, float(total.losses[-1])
    if total.delta(low) <= target:
        return 0.0
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if total.delta(middle) > target else (low, middle)
    return high


def pair_loss(segments: Sequence[Segment]) -> Law:
    """Loss of all steps of the pair if the record is present."""
    if sum(segment.steps for segment in segments) == 1:
        return _pair_step(segments[0])
    return _sum([(_pair_step(segment), segment.steps) for segment in segments])


@lru_cache(maxsize=16)
def _coordinate(shift: float, width: float, noise: str) -> Cells:
    """Cells of one coordinate, (n,) each: probabilities of N + U with and without shift."""
    law = _LAWS[noise]
    shift, width = law.units * shift, law.units * width
    half, reach = 0.5 * width, law.reach
    low, high = -half - reach, half + shift + reach
    # Fine cells at the ends of the uniform, coarse ones on its plateau.
    left, right = np.arange(low, -half + shift + reach, _CELL), np.arange(half - reach, high, _CELL)
    if left[-1] >= right[0]:
        edges = np.linspace(low, high, math.ceil((high - low) / _CELL) + 1)
    else:
        edges = np.concatenate([left, np.linspace(left[-1], right[0], 2001)[1:-1], right])
    if law.straight:  # the loss is constant beyond both ends
        edges = np.concatenate([[-math.inf], edges[(edges > -half) & (edges < half + shift)], [math.inf]])
    present, absent = _cells(edges - shift, width, law), _cells(edges, width, law)
    possible = (absent > 0.0) & (present > 0.0)
    return present[possible], absent[possible]


def _cells(edges: Floats, width: float, law: Noise) -> Floats:
    below, above = np.diff(_cumulative(edges, width, law)), -np.diff(_cumulative(-edges, width, law))
    return np.asarray(np.where(edges[:-1] >= 0.0, above, below), dtype=np.float64)


def _cumulative(o: Floats, width: float, law: Noise) -> Floats:
    """P[noise + U <= o]."""
    if width < NARROW:
        return law.cumulative(o)
    within = law.integral(o + 0.5 * width) - law.integral(o - 0.5 * width)
    return np.asarray(np.where(np.isinf(o), o > 0.0, within / width), dtype=np.float64)


def _laplace(x: Floats) -> Floats:
    tail = 0.5 * np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0.0, tail, 1.0 - tail), dtype=np.float64)


class Noise(NamedTuple):
    """A noise distribution: its cdf, the integral of the cdf, the standard deviation in their units, the range of
    cells, and whether its log-density is linear on either side.
    """

    cumulative: Callable[[Floats], Floats]
    integral: Callable[[Floats], Floats]
    units: float
    reach: float
    straight: bool


_LAWS = {
    "gaussian": Noise(
        cumulative=lambda x: np.asarray(ndtr(x), dtype=np.float64),
        integral=lambda x: np.asarray(x * ndtr(x) + np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi), dtype=np.float64),
        units=1.0,
        reach=11.0,
        straight=False,
    ),
    "laplace": Noise(
        cumulative=_laplace,
        integral=lambda x: np.maximum(np.where(np.isinf(x), 0.0, x), 0.0) + 0.5 * np.exp(-np.abs(x)),
        units=math.sqrt(2.0),
        reach=37.0,
        straight=True,
    ),
}


def _product(coordinates: Sequence[tuple[Cells, int]]) -> tuple[Floats, Floats, Floats]:
    """Loss of independent coordinates with their multiplicities, and its two distributions, (m,) each.

    Each distribution is computed where it is the larger one; the other follows from the loss.
    """
    finest = _WITHIN * min(1.0, 10.0 / math.sqrt(sum(count for _, count in coordinates)))
    losses = [np.log(present) - np.log(absent) for (present, absent), _ in coordinates]
    above, below = (
        _sum([(Law(loss, laws[side]), count) for loss, (laws, count) in zip(losses, coordinates, strict=True)], finest)
        for side in (0, 1)
    )
    up, down = above.losses > 0.0, below.losses <= 0.0
    losses_of_all = np.concatenate([below.losses[down], above.losses[up]])
    here, there = below.masses[down], above.masses[up]
    with_record = np.concatenate([here * np.exp(below.losses[down]), there])
    without = np.concatenate([here, there * np.exp(-above.losses[up])])
    return losses_of_all, with_record / with_record.sum(), without / without.sum()


def _sum(parts: Sequence[tuple[Law, int]], finest: float = _SPACING) -> Law:
    """Distribution of a sum of independent losses, ``count`` of each, by FFT on a grid that preserves means."""
    low, high = _window(parts)
    spacing = max(finest, (high - low) / _POINTS)
    size = next_fast_len(math.ceil((high - low) / spacing) + 1, real=True)
    start = math.floor(low / spacing)
    transform, shifted = np.ones(size // 2 + 1, dtype=np.complex128), 0
    for (losses, masses), count in parts:
        position = losses / spacing
        cell = np.floor(position).astype(np.int64)
        upper = masses * (position - cell)
        base = int(cell[0] + cell[-1]) // 2
        law = np.bincount((cell - base) % size, masses - upper, size)
        law += np.bincount((cell + 1 - base) % size, upper, size)
        transform *= rfft(law) ** count
        shifted += base * count
    masses_of_sum = np.roll(irfft(transform, size), shifted - start)
    # Remove rounding errors at empty points.
    masses_of_sum[masses_of_sum < 1e-18] = 0.0
    return Law((start + np.arange(size)) * spacing, masses_of_sum)


def _window(parts: Sequence[tuple[Law, int]]) -> tuple[float, float]:
    ends = []
    for sign in (1.0, -1.0):
        logs = np.zeros(len(_POWERS))
        for (losses, masses), count in parts:
            edge = float(np.max(sign * losses))
            rest = sign * losses - edge
            logs += count * np.array([math.log(float(masses @ np.exp(p * rest))) + p * edge for p in _POWERS])
        ends.append(sign * float(np.min((logs - math.log(_LOST)) / _POWERS)))
    return ends[1], ends[0]
