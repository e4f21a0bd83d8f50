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

#: Cells of the grid over f(alpha) - alpha in [-1, 1], and the rounding error charged.
_CELLS, _ROUNDING = 16_384, 1e-14


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
        at = np.clip(np.where(up > down, (gaps[1:] - gaps[:-1] - down) / (up - down), 0.0), 0.0, 1.0)
    tops = np.maximum(gaps[:-1] + up * at, np.maximum(gaps[:-1], gaps[1:]))
    return max(0.0, float(tops.max()) + _ROUNDING)


def _quantile(value: Floats, complement: Floats) -> Floats:
    """Phi^-1(value), from whichever of the two is smaller."""
    small = value <= 0.5
    return np.asarray(np.where(small, ndtri(value), -ndtri(complement)), dtype=np.float64)
