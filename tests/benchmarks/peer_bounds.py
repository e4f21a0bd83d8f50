"""What other one-run audits print, written anew from the formulas of their papers, for ``attacks.py`` beside it.

Rules take scores (m,) and coins (m,) of one run, or how many guesses are right, and return epsilon at delta, or mu,
at level 95%. They are stand-ins: grids
and search orders of the programs differ, and where theirs are not known a plain choice is made and said.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from scipy import special, stats

from dpspec.stats.attacks import curve_lines, one_run

Array: TypeAlias = np.ndarray[Any, Any]

LEVEL = 0.05

#: How many guess counts, or thresholds, are tried where a rule tries several.
_TRIED = 15


def steinke(scores: Array, coins: Array, delta: float, *, corrected: bool, centre: float) -> float:
    """Steinke, Nasr & Jagielski 2023 at the best of 15 guess counts, the most extreme scores about ``centre`` first;
    corrected as jax-privacy's ``one_run`` does (Bonferroni), or not, as is common."""
    right = _right(scores, coins, centre)
    level = LEVEL / _TRIED if corrected else LEVEL
    counts = {round(k) for k in np.geomspace(min(8, len(right)), len(right), _TRIED)}
    return max(one_run.epsilon_lower(len(right), k, int(right[k - 1]), delta, 1.0 - level) for k in counts)


def half_right(scores: Array, coins: Array, centre: float) -> int:
    """How many of the half of the canaries whose scores are most extreme about ``centre`` are guessed right."""
    return int(_right(scores, coins, centre)[len(scores) // 2 - 1])


def gdp(scores: Array, coins: Array, delta: float, *, corrected: bool) -> float:
    """mu from the best of 15 thresholds: exact limits (Clopper & Pearson) on both rates,
    mu = Phi^-1(1 - fpr) - Phi^-1(fnr). Corrected (Bonferroni) as jax-privacy's HEAD; or not, as in Nasr et al. 2023,
    Annamalai & De Cristofaro 2024 and Cebere et al. 2025."""
    present, absent = np.sort(scores[coins == 1]), np.sort(scores[coins == 0])
    level = 0.5 * LEVEL / (_TRIED if corrected else 1)
    best = 0.0
    for threshold in np.quantile(scores, np.linspace(0.0, 1.0, _TRIED + 2)[1:-1]):
        missed = int(np.searchsorted(present, threshold))
        false = len(absent) - int(np.searchsorted(absent, threshold))
        fnr, fpr = _highest(missed, len(present), level), _highest(false, len(absent), level)
        best = max(best, -float(special.ndtri(fpr)) - float(special.ndtri(fnr)))
    return curve_lines.gaussian_epsilon(best, delta)


def _right(scores: Array, coins: Array, centre: float) -> Array:
    """How many of the k most extreme scores are guessed right, k = 1, ..., m."""
    order = np.argsort(-np.abs(scores - centre), kind="stable")
    counted: Array = np.cumsum((scores > centre)[order] == (coins == 1)[order])
    return counted


def _highest(events: int, trials: int, level: float) -> float:
    return float(special.betaincinv(events + 1, trials - events, 1.0 - level)) if events < trials else 1.0


@lru_cache(maxsize=1 << 16)
def xiang_mu(canaries: int, guesses: int, correct: int) -> float:
    """Xiang et al. 2025: ``guesses`` most extreme scores about the centre; order statistics of two normals mu apart.

    Given the largest score that is not guessed, |x - mu / 2| = y, each guess is right with the chance
    Phi(mu / 2 - y) / P[|x - mu / 2| > y]."""
    quantiles = stats.beta.ppf(np.linspace(0.0, 1.0, 402)[1:-1], guesses + 1, canaries - guesses)

    def rejected(mu: float) -> bool:
        y = np.linspace(0.0, mu + 10.0, 4001)
        beyond = special.ndtr(0.5 * mu - y) + special.ndtr(-0.5 * mu - y)
        at = np.interp(quantiles, beyond[::-1], y[::-1])
        chance = special.ndtr(0.5 * mu - at) / (special.ndtr(0.5 * mu - at) + special.ndtr(-0.5 * mu - at))
        return float(stats.binom.sf(correct - 1, guesses, chance).mean()) <= LEVEL

    return _largest(rejected)


@lru_cache(maxsize=1 << 16)
def fdp_mu(canaries: int, guesses: int, correct: int, level: float = LEVEL) -> float:
    """Mahloujifar, Melis & Chaudhuri 2025 with Gaussian curves; PrivacyGuard guesses half of the canaries.

    Tails r of right and h of wrong guesses, from ``correct`` down; rejected where they hold more than there is."""

    def rejected(mu: float) -> bool:
        right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
        for i in range(correct - 1, -1, -1):
            least = math.erfc((mu - _ndtri(right)) / math.sqrt(2.0)) / 2.0 if right < 1.0 else 1.0
            if least > wrong:
                right, wrong = right + i / (guesses - i) * (least - wrong), least
            if right + wrong > guesses / canaries:
                return True
        return False

    return _largest(rejected)


_STANDARD = stats.norm.ppf(np.linspace(0.0, 1.0, 1 << 18)[1:-1])


def _ndtri(p: float) -> float:
    """Phi^-1 from a table, to about 1e-5 where p is not tiny; quick enough for a recursion."""
    at = p * ((1 << 18) - 1) - 1.0
    if not 100.0 < at < len(_STANDARD) - 100.0:
        return float(special.ndtri(p))
    return float(_STANDARD[int(at)])


def _largest(rejected: Any) -> float:
    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 8.0
    while high - low > 1e-3 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
