"""Auditing with many training runs, looked at after each of them: a test that holds whenever one stops.

In each run the target is planted by a fair coin, whatever went before, and the attack bets that it knows the coin. A
region S of scores is fixed by earlier runs alone. If the pipeline is (epsilon, delta)-DP, then P[S | 1] <= e^epsilon
P[S | 0] + delta, so that a stake c in (0, 1) on "a score in S means present" is multiplied on average by at most 1:

    score in S, coin 1:   1 + c (2 - delta) / (2 e^epsilon + delta)
    score in S, coin 0:   1 - c
    score not in S:       1 - c delta / (2 + delta)

(the last is what a fair bet pays at epsilon = 0, the least over epsilon: all three then fall as epsilon or delta grow,
and so does the capital). Bets on "absent" are the same with the coins exchanged. The capital is spread evenly over a
fixed set of bettors, who differ in side, region and stake; their sum is a nonnegative supermartingale that starts at
1, and the probability that it ever reaches 1 / level is at most level (Ville 1939). Its inverse, at its largest so
far, is a p-value at every stopping time, whatever the rule to stop.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from dpspec.stats.attacks import curve_lines

#: What evidence and bounds of this kind name as their source.
SOURCE = "Ville 1939: betting on fair coins, with Kairouz, Oh & Viswanath 2015"

Array: TypeAlias = np.ndarray[Any, Any]

#: Bettors say "present" above the score that this share of earlier absent runs exceeded, and the reverse.
_TAILS = (0.0, 0.02, 0.1, 0.3)

#: What share of their capital they stake.
_STAKES = (0.9, 0.5, 0.15)

#: A claimed epsilon beyond this is one that no number of runs refutes.
_LARGEST = 700.0


def p_value(coins: str, scores: Sequence[int], points: Sequence[curve_lines.Point]) -> float:
    """A p-value for the null "(epsilon, delta)-DP for all ``points``", valid at any stopping time; 1 without points.

    coins: "1" for present and "0" for absent, in the order in which the runs were made. scores: of the same runs, in
    that order; higher speaks for "present". The capital is spread evenly over the points too. Raises ``ValueError``
    unless both are of one length and epsilon >= 0, 0 <= delta <= 1.
    """
    if not points:
        return 1.0
    won, lost = _bets(coins, scores)
    capital = np.logaddexp.reduce([_capital(won, lost, epsilon, delta) for epsilon, delta in points], axis=0)
    return math.exp(-max(0.0, float(capital.max(initial=0.0)) - math.log(len(points))))


def epsilon_lower(coins: str, scores: Sequence[int], delta: float, confidence: float) -> float:
    """The largest epsilon that is refuted at ``delta``, or 0: at whatever run one stops, the true epsilon is no smaller
    with probability at least ``confidence``."""
    won, lost = _bets(coins, scores)
    needed = -math.log(1.0 - confidence)

    def refuted(epsilon: float) -> bool:
        return bool(_capital(won, lost, epsilon, delta).max(initial=0.0) >= needed)

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < _LARGEST and refuted(high):
        low, high = high, 2.0 * high
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def largest(runs: int, delta: float, confidence: float) -> float:
    """The power of the design: the lower bound when coins alternate and no score is mistaken."""
    coins = "10" * (runs // 2) + "1" * (runs % 2)
    return epsilon_lower(coins, [int(coin) for coin in coins], delta, confidence)


def _bets(coins: str, scores: Sequence[int]) -> tuple[Array, Array]:
    """(runs, side x region) bool each: in which run which bettor won, or lost; else it had not bet."""
    if set(coins) - {"0", "1"} or len(coins) != len(scores):
        raise ValueError("coins must be a text of 0 and 1, with one score for each")
    shape = (len(coins), 2, len(_TAILS))
    won, lost = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    # Scores of earlier runs, ascending: of absent ones, and with the sign changed of present ones.
    past: tuple[list[int], list[int]] = ([], [])
    for run, (coin, score) in enumerate(zip(coins, scores, strict=True)):
        for side, (told, against) in enumerate(zip((score, -score), past, strict=True)):
            for region, tail in enumerate(_TAILS):
                if against and told > against[len(against) - 1 - math.floor(tail * len(against))]:
                    (won if coin == "10"[side] else lost)[run, side, region] = True
        side = int(coin)
        insort(past[side], -score if side else score)
    flat = (len(coins), 2 * len(_TAILS))
    return won.reshape(flat), lost.reshape(flat)


def _capital(won: Array, lost: Array, epsilon: float, delta: float) -> Array:
    """(runs,) natural logarithms of what all bettors together have after each run."""
    if not epsilon >= 0.0 or not 0.0 <= delta <= 1.0:
        raise ValueError(f"need epsilon >= 0 and 0 <= delta <= 1, got {epsilon}, {delta}")
    gain = (2.0 - delta) / (2.0 * math.exp(min(epsilon, _LARGEST)) + delta)
    each = []
    for stake in _STAKES:
        idle = math.log1p(-stake * delta / (2.0 + delta))
        steps = np.where(won, math.log1p(stake * gain), np.where(lost, math.log1p(-stake), idle))
        each.append(np.cumsum(steps, axis=0))
    capital = np.concatenate(each, axis=1)
    return np.asarray(np.logaddexp.reduce(capital, axis=1) - math.log(capital.shape[1]))
