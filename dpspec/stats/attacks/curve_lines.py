"""The (epsilon, delta) pairs that a claim about a whole curve implies, and the fit of a Gaussian curve.

The pairs are implied exactly or with slack, so together they never exceed the claim.

>>> pairs = gaussian(1.0)
>>> len(pairs), f"({pairs[17][0]}, {pairs[17][1]:.4g})"
(35, '(4.25, 1.711e-05)')
>>> round(gaussian_epsilon(1.0, 1e-5), 4)
4.3772
"""

import functools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec import accounting
from dpspec.accounting import LARGEST_EFFECT, SMALLEST_EFFECT, Floats

#: Deltas at which Renyi claims are tested.
DELTAS = tuple(10.0 ** (-k / 2.0) for k in range(2, 25))
#: Points at which mu-GDP claims are tested, in standard deviations of the privacy loss from its mean.
DISTANCES = tuple(k / 4.0 for k in range(-32, 33))

#: Orders less 1 of zCDP claims, times the root of rho: the best one is about the root of ln(1 / delta).
_SCALED_ORDERS = np.geomspace(1e-3, 1e3, 2001)

#: Upper bound on the rounding error of a point of a line: 2^8 roundings of numbers of at most 1.
_ROUNDING = 2.0**-44

Point = tuple[float, float]


def require_privacy(epsilon: float, delta: float) -> None:
    """Raise ``ValueError`` unless epsilon >= 0 and 0 <= delta <= 1."""
    if not epsilon >= 0.0 or not 0.0 <= delta <= 1.0:
        raise ValueError(f"need epsilon >= 0 and 0 <= delta <= 1, got {epsilon}, {delta}")


def gaussian(mu: float) -> tuple[Point, ...]:
    """Pairs on the curve of mu-GDP: delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

    Dong, Roth & Su 2022, Corollary 2.13, at eps = 0 and at eps = mu^2/2 + z mu > 0 for the fixed distances z; rounded
    up by a relative 1e-9.
    """
    if not mu > 0.0:
        return ((0.0, 0.0),)
    if mu > LARGEST_EFFECT:
        return ((0.0, 1.0),)  # no test rejects it
    mu = max(mu, SMALLEST_EFFECT)  # a weaker claim
    distances = np.array([-0.5 * mu, *(z for z in DISTANCES if z > -0.5 * mu)])
    epsilons = np.maximum(0.0, 0.5 * mu * mu + distances * mu)
    deltas = np.minimum(1.0, accounting.gaussian.delta(epsilons, mu) * (1.0 + 1e-9))
    return tuple(zip(epsilons.tolist(), deltas.tolist(), strict=True))


def renyi(alpha: float, epsilon: float) -> tuple[Point, ...]:
    """Pairs implied by Renyi DP of order alpha > 1 with parameter ``epsilon``, at the fixed deltas.

    eps = epsilon + (ln(1/delta) + (alpha - 1) ln(1 - 1/alpha) - ln alpha) / (alpha - 1), at least 0. Canonne, Kamath &
    Steinke 2020, Proposition 12.
    """
    if not alpha > 1.0:
        raise ValueError(f"alpha must exceed 1, got {alpha}")
    constant = math.log1p(-1.0 / alpha) - math.log(alpha) / (alpha - 1.0)
    return tuple((max(0.0, epsilon + constant - math.log(delta) / (alpha - 1.0)), delta) for delta in DELTAS)


@functools.lru_cache(maxsize=256)  # the judge and the check of consistency repeat the question
def concentrated(rho: float) -> tuple[Point, ...]:
    """Pairs implied by zCDP with parameter ``rho`` at the fixed deltas, by the best of 2,001 orders.

    Canonne, Kamath & Steinke 2020, Proposition 12. The best real order is less than 1e-5 better.
    """
    if not 0.0 < rho < math.inf:
        return ((0.0, 0.0),) if rho <= 0.0 else ()
    orders = 1.0 + np.clip(_SCALED_ORDERS / math.sqrt(rho), 1e-10, 1e12)[:, None]
    epsilons = accounting.epsilon_at_orders(orders, rho * orders, np.array(DELTAS)).min(axis=0)
    return tuple(zip(epsilons.tolist(), DELTAS, strict=True))


def tradeoff(points: Sequence[Point]) -> tuple[Point, ...]:
    """Pairs implied by "no test with false-positive rate f has a true-positive rate above t", for points (f, t).

    The true curve R is concave and increasing with R(0) >= 0, so R(f) <= min(1, t_i max(1, f / f_i)) for every point i.
    The upper concave hull of this bound consists of lines R <= a + s f: (ln s, a)-DP for s >= 1, else
    (-ln s, (a + s - 1) / s)-DP of the reversed pair. Each delta is raised by the rounding error.
    """
    informative = sorted((f, t) for f, t in points if 0.0 < f < 1.0 and t < 1.0)
    if not informative:
        return ()
    if any(t <= f for f, t in informative):
        return ((0.0, 0.0),)  # a concave curve that touches the diagonal is the diagonal
    rates = [f for f, _ in informative]
    # Up to rate k the bound is flat at flats[k] at most, from rate k on it lies under the line with slope slopes[k].
    flats = [*reversed(list(accumulate((t for _, t in reversed(informative)), min))), 1.0]
    slopes = list(accumulate((t / f for f, t in informative), min))

    def bound(rate: float) -> float:
        line = bisect_right(rates, rate) - 1
        return min(flats[bisect_left(rates, rate)], rate * slopes[line] if line >= 0 else 1.0)

    kinks = {0.0, 1.0, *rates, *(min(1.0, flat / slope) for flat, slope in zip(flats[1:], slopes, strict=True))}
    hull: list[Point] = []  # corners of the upper concave hull
    for x, y in ((rate, bound(rate)) for rate in sorted(kinks)):
        while len(hull) >= 2:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    pairs = []
    for (f0, t0), (f1, t1) in pairwise(hull):
        slope = (t1 - t0) / (f1 - f0)
        if slope >= 1.0:
            pairs.append((math.log(slope), max(0.0, t0 - slope * f0, t1 - slope * f1) + _ROUNDING))
        elif slope > 0.0:
            delta = max(0.0, (1.0 - f0) - (1.0 - t0) / slope, (1.0 - f1) - (1.0 - t1) / slope)
            pairs.append((-math.log(slope), delta + _ROUNDING / slope))
    return tuple(pair for pair in pairs if pair[1] < 1.0)


#: Source of estimates of this kind.
GAUSSIAN_SOURCE = "Dong, Roth & Su 2022; Hanley & McNeil 1982, for normal scores of equal spread"

#: Largest finite mu.
_LARGEST_MU = 11.0


def estimate_mu(outcomes: Sequence[str]) -> float:
    """Estimate mu, at most 11, from each trial's inclusion bits by ascending score; not a bound.

    A present canary scores above an absent one with probability Phi(mu / sqrt 2). Pairs are compared within trials
    only, and one trial has some. A share below one half is evidence for mu = 0 only.
    """
    pairs = sum(coins.count("1") * coins.count("0") for coins in outcomes)
    wins = 0  # pairs in which the present canary scores above the absent one
    for coins in outcomes:
        absent = 0
        for coin in coins:
            absent, wins = (absent + 1, wins) if coin == "0" else (absent, wins + absent)
    return min(_LARGEST_MU, max(0.0, math.sqrt(2.0) * float(special.ndtri(wins / pairs))))


def mixture_quantiles(shares: npt.ArrayLike, mu: float) -> Floats:
    """Scores below which ``shares`` in (0, 1) of the equal mixture of N(0, 1) and N(mu, 1) lie, by bisection."""
    quantiles = special.ndtri(shares)
    low, high = np.minimum(quantiles, quantiles + mu), np.maximum(quantiles, quantiles + mu)
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = 0.5 * (special.ndtr(middle) + special.ndtr(middle - mu)) < shares
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high), dtype=np.float64)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of mu-GDP at ``delta`` in (0, 1)."""
    return float(accounting.gaussian.epsilon(delta, mu)) if 0.0 < mu < math.inf else max(0.0, mu)
