"""Auditing with many training runs: a test that is valid at any stopping time.

In each run a fair coin decides whether the target is inserted. A region S of scores is fixed by earlier runs. Under
(epsilon, delta)-DP, P[S | 1] <= e^epsilon P[S | 0] + delta, so a stake c in (0, 1) on "a score in S means present" is
multiplied on average by at most 1:

    score in S, coin 1:   1 + c (2 - delta) / (2 e^epsilon + delta)
    score in S, coin 0:   1 - c
    score not in S:       1 - c delta / (2 + delta)      (a fair bet at epsilon = 0, the minimum over epsilon)

Bets on "absent" exchange the coins. The capital is divided evenly among bettors with different sides, regions and
stakes. The total is an e-value after every run, and the inverse of its maximum is a p-value (Ville 1939):
"Stopping early" in ``docs/explanation/proofs/independent-runs.md``.
"""

import math
from bisect import insort
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from dpspec.stats import binomial
from dpspec.stats.attacks import curve_lines

#: Source of evidence and bounds of this kind.
SOURCE = "Ville 1939: e-values of bets on fair coins, with Kairouz, Oh & Viswanath 2015"

Array: TypeAlias = np.ndarray[Any, Any]

#: Bettors answer "present" above the score that this share of earlier absent runs exceeded, or from the score on that
#: all earlier present runs except this share reached; and the reverse.
_TAILS, _OMITTED = (0.0, 0.001, 0.004, 0.02, 0.1, 0.3), (0.1, 0.5)

#: Staked fractions of the capital.
_STAKES = (0.9, 0.5, 0.2)

#: Largest number of runs.
MOST_RUNS = 10**5

#: No number of runs refutes a larger epsilon.
_LARGEST = 700.0


def p_value(coins: str, scores: Sequence[int], points: Sequence[curve_lines.Point]) -> float:
    """P-value of the null "(epsilon, delta)-DP for all ``points``", valid at any stopping time; 1 without points.

    ``coins`` has "1" for present and "0" for absent runs, and ``scores`` their scores, both in order. The capital is
    divided evenly among the points.
    """
    if not points:
        return 1.0
    won, lost = _bets(coins, scores)
    capital = np.logaddexp.reduce([_capital(won, lost, epsilon, delta) for epsilon, delta in points], axis=0)
    return math.exp(-max(0.0, float(capital.max(initial=0.0)) - math.log(len(points))))


def epsilon_lower(coins: str, scores: Sequence[int], delta: float, confidence: float) -> float:
    """Largest epsilon that is refuted at ``delta`` with this confidence, valid at any stopping time; or 0."""
    won, lost = _bets(coins, scores)

    def p_value_of(epsilon: float) -> float:
        return math.exp(-_capital(won, lost, epsilon, delta).max(initial=0.0))

    return binomial.largest_rejected(p_value_of, 1.0 - confidence, relative=1e-9, most=_LARGEST)


def largest(runs: int, delta: float, confidence: float) -> float:
    coins = "10" * (runs // 2) + "1" * (runs % 2)
    return epsilon_lower(coins, [int(coin) for coin in coins], delta, confidence)


def _bets(coins: str, scores: Sequence[int]) -> tuple[Array, Array]:
    """Masks (runs, side x region) of the bets won and lost."""
    if set(coins) - {"0", "1"} or len(coins) != len(scores):
        raise ValueError("coins must be a string of 0 and 1, with one score for each")
    shape = (len(coins), 2, len(_TAILS) + len(_OMITTED))
    won, lost = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    # By side, "present" and "absent" with negated scores: ascending scores of earlier runs that lose and win.
    past: tuple[tuple[list[int], list[int]], ...] = (([], []), ([], []))
    for run, (coin, score) in enumerate(zip(coins, scores, strict=True)):
        for side, (value, (losing, winning)) in enumerate(zip((score, -score), past, strict=True)):
            right = coin == "10"[side]
            above = [bool(losing) and value > losing[len(losing) - 1 - math.floor(t * len(losing))] for t in _TAILS]
            above += [bool(winning) and value >= winning[math.floor(share * len(winning))] for share in _OMITTED]
            (won if right else lost)[run, side] = above
            insort(winning if right else losing, value)
    flat = (len(coins), shape[1] * shape[2])
    return won.reshape(flat), lost.reshape(flat)


def _capital(won: Array, lost: Array, epsilon: float, delta: float) -> Array:
    """Log of the total capital after each run, (runs,)."""
    curve_lines.require_privacy(epsilon, delta)
    gain = (2.0 - delta) / (2.0 * math.exp(min(epsilon, _LARGEST)) + delta)
    log_capitals = []
    for stake in _STAKES:
        idle = math.log1p(-stake * delta / (2.0 + delta))
        steps = np.where(won, math.log1p(stake * gain), np.where(lost, math.log1p(-stake), idle))
        log_capitals.append(np.cumsum(steps, axis=0))
    capital = np.concatenate(log_capitals, axis=1)
    return np.asarray(np.logaddexp.reduce(capital, axis=1) - math.log(capital.shape[1]))
