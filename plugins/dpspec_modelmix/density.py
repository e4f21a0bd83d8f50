"""Noise of one mixed coordinate: N(0, 1) convolved with a uniform of width t, in units of the Gaussian std.

    p_0(o) = [Phi(o + t/2) - Phi(o - t/2)] / t,   p_v(o) = p_0(o - v),   A_k(v, t) = E_{p_0}[(p_v / p_0)^k].

The relative error of moments is below 1e-10.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from dpspec.accounting import Floats, log_excess_power

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
