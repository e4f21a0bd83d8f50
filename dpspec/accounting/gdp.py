"""One number for a trade-off curve: the least mu with G_mu below it, and how much is given away by saying only that.

G_mu <= f means that the mechanism is mu-GDP (Dong, Roth and Su 2022). The regret is how much stronger f is than G_mu
(Kaissis et al. 2024): the least k with f(alpha + k) - k <= G_mu(alpha) for all alpha, at most 1/2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dpspec.accounting.checks import EPS, Floats
from dpspec.accounting.polygon import Polygon
from dpspec.accounting.tradeoff import Gaussian, Laplace, TradeOff

#: Cells of the first grid over f(alpha) - alpha in [-1, 1], and the width at which the search for the regret ends.
_CELLS, _ENOUGH = 2048, 1e-7


class Gdp(NamedTuple):
    """``G_mu - floor <= f`` everywhere, for the least mu; ``regret`` bounds what this overstates.

    floor is 0 for curves that start at (0, 1) and reach 0 at 1 only. A polygon from finitely many (epsilon, delta) ends
    earlier: no mu is enough for it there, and the floor is by how much.
    """

    mu: float
    regret: float
    floor: float


def gdp(curve: TradeOff) -> Gdp:
    """The least mu for ``curve``, rounded up, and its regret. Raises ``ValueError`` for kinds of curve not known here.

    A polygon: the largest Phi^-1(1 - alpha) - Phi^-1(beta) over its inner vertices (G_mu is convex, so it lies below
    the edges between them too). Laplace: at alpha = f(alpha), since u -> -Phi^-1(e^-u) is concave for u >= ln 2.
    """
    if isinstance(curve, Gaussian):
        return Gdp(curve.mu, 0.0, 0.0)
    floor = 0.0
    if isinstance(curve, Laplace):
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
    return Gdp(mu, divergence(curve, Gaussian(mu)), floor)


def divergence(stronger: TradeOff, weaker: TradeOff) -> float:
    """The least k >= 0 with ``stronger``(alpha + k) - k <= ``weaker``(alpha) for all alpha, rounded up by at most 1e-7.

    On the line beta - alpha = d the curves are a distance k(d) apart, and k changes by at most |d - d'|: cells that
    cannot hold the largest k are dropped, the others halved.
    """

    def gap(difference: Floats) -> Floats:
        return stronger.on_diagonal(difference) - weaker.on_diagonal(difference)

    left = np.linspace(-1.0, 1.0, _CELLS + 1)
    values = gap(left)
    left, right, low, high = left[:-1], left[1:], values[:-1], values[1:]
    while True:
        best = max(0.0, float(np.maximum(low, high).max(initial=0.0)))
        bound = 0.5 * (low + high + right - left)
        keep = bound > best + _ENOUGH
        if not keep.any():
            return best + _ENOUGH if best > _ENOUGH else max(best, float(min(bound.max(initial=0.0), _ENOUGH)))
        left, right, low, high = left[keep], right[keep], low[keep], high[keep]
        middle = 0.5 * (left + right)
        inner = gap(middle)
        left, right = np.concatenate((left, middle)), np.concatenate((middle, right))
        low, high = np.concatenate((low, inner)), np.concatenate((inner, high))


def _quantile(value: Floats, complement: Floats) -> Floats:
    """Phi^-1(value), from whichever of the two is smaller."""
    small = value <= 0.5
    return np.asarray(np.where(small, ndtri(value), -ndtri(complement)), dtype=np.float64)
