"""What jax-privacy 2.0.0, the release on PyPI, prints of one run: written anew from its rules, for ``attacks.py``.

All three look at the thresholds that are corners of the ROC curve's concave hull (Provost & Fawcett 2001), and divide
the level by how many there are. Corners are chosen after looking at the coins, which that division does not pay for.
Only "present" is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from peer_bounds import LEVEL, Array, fdp_mu
from scipy import special

from dpspec.stats.attacks import curve_lines


def corners(scores: Array, coins: Array) -> Array:
    """Each corner's planted and left-out canaries whose score lies below it, (n, 2), from the lowest to the highest."""
    below, hull = [0, 0], [(0, 0)]
    for coin in coins[np.argsort(scores, kind="stable")].tolist():
        below[1 - coin] += 1
        while len(hull) > 1 and _no_corner(hull[-2], hull[-1], below):
            hull.pop()
        hull.append((below[0], below[1]))
    return np.array(hull)


def _no_corner(first: Sequence[int], second: Sequence[int], third: Sequence[int]) -> bool:
    """Whether the second lies on or below the line from the first to the third."""
    rise, run = second[1] - first[1], second[0] - first[0]
    return rise * (third[0] - second[0]) <= (third[1] - second[1]) * run


def gdp(scores: Array, coins: Array, delta: float) -> float:
    """``epsilon_from_gdp``: the largest |mu| = |Phi^-1(1 - fpr) - Phi^-1(fnr)| of exact limits at each corner.

    The absolute value is the release's: limits that show nothing, fpr + fnr > 1, count as evidence there."""
    below = corners(scores, coins)
    present, absent = (int(v) for v in below[-1])
    level = LEVEL / (2 * len(below))
    missed, false = below[:, 0], absent - below[:, 1]
    fnr, fpr = _highest(missed, present, level), _highest(false, absent, level)
    told = np.maximum(fnr, fpr) < 1.0 - delta
    if not told.any():
        return 0.0
    mu = float(np.abs(-special.ndtri(fpr[told]) - special.ndtri(fnr[told])).max())
    return curve_lines.gaussian_epsilon(mu, delta)


def steinke(scores: Array, coins: Array, delta: float) -> float:
    """``epsilon_one_run``: Steinke et al. 2023, Proposition 5.7, with the guesses above each corner. With W of the k
    guesses right if each is with chance q = 1 / (1 + e^-epsilon), the p-value of v right ones is
    P[W >= v] + 2 m delta max_i P[v - i <= W < v] / i."""

    def p_value(m: int, k: int, v: int, epsilon: float) -> float:
        tails = special.bdtrc(np.arange(v - 1, -2, -1, dtype=np.float64), k, special.expit(epsilon))
        return float(tails[0] + 2.0 * m * delta * np.max((tails[1:] - tails[0]) / np.arange(1, v + 1), initial=0.0))

    def shown(m: int, k: int, v: int, level: float) -> float:
        low, high = 0.0, 32.0
        if p_value(m, k, v, low) > level:
            return 0.0
        while high - low > 1e-4:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if p_value(m, k, v, middle) <= level else (low, middle)
        return low

    return _largest(scores, coins, shown)


def fdp(scores: Array, coins: Array, delta: float) -> float:
    """``epsilon_one_run_fdp``: Mahloujifar et al. 2025 with Gaussian curves, likewise."""
    return _largest(scores, coins, lambda m, k, v, level: curve_lines.gaussian_epsilon(fdp_mu(m, k, v, level), delta))


def _largest(scores: Array, coins: Array, shown: Callable[[int, int, int, float], float]) -> float:
    """The largest bound over the corners, those with the surest precision first; left out are those whose plain
    precision is not above e^epsilon / (1 + e^epsilon) of the best so far."""
    below = corners(scores, coins)
    level = LEVEL / len(below)
    right, wrong = below[-1, 0] - below[:, 0], below[-1, 1] - below[:, 1]
    surest = 1.0 - _highest(wrong, right + wrong, LEVEL / len(below))
    best = 0.0
    for at in np.argsort(-surest, kind="stable"):
        guesses, correct = int(right[at] + wrong[at]), int(right[at])
        if guesses and correct / guesses > special.expit(best):
            best = max(best, shown(len(coins), guesses, correct, level))
    return best


def _highest(events: Array, trials: Array | int, level: float) -> Array:
    """Clopper & Pearson 1934: the largest chance that is not rejected."""
    events = np.asarray(events)
    inside = events < trials
    limit = special.betaincinv(events + 1.0, np.where(inside, trials - events, 1.0), 1.0 - level)
    return np.where(inside, limit, 1.0)
