"""A test of an average over training runs, each measured by counts on the same test records.

The pipeline's value A is the mean of a model's over the randomness of training and over the population that the test
records were drawn from. Both are sampled, and the test charges half of its level for each:

* Given the test records, the runs' shares Y_i in [0, 1] are independent with one mean, A_T. Under A_T <= a the stakes
  1 + f (Y_i / a - 1), 0 <= f <= 1, multiply a capital by at most 1 on average, and so does the mean of several: that it
  reaches 1 / level has a probability of at most level (Markov; Ville 1939 for any stopping time). No normal law, and no
  least number of runs, is assumed.
* A_T is itself the mean over m test records, drawn independently, of the chance in [0, 1] that training gets one right,
  with mean A: P[A_T >= A + t] <= exp(-m KL(A + t || A)) (Hoeffding 1963, Theorem 1).

What it assumes: runs with independent randomness, and independent test records. What it costs: no bound on the spread
of the runs is assumed, so that few of them show little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: What evidence of this kind names as its source.
SOURCE = "Ville 1939: betting on a mean in [0, 1]; Hoeffding 1963, Theorem 1"

#: What shares of the largest stake are bet, each with as much of the capital.
_STAKES = (0.1, 0.3, 0.6, 0.9, 1.0)

#: The least p-value that is told apart from 0.
_LEAST = 1e-300


def at_least(successes: Sequence[int], records: int, value: float) -> float:
    """A p-value for the null that A is at most ``value``, small where runs have many successes; 1 without runs.

    successes: of each run, among the same ``records`` test records. Valid at whatever run one stops, by whatever rule.
    """
    if not records > 0 or not all(0 <= count <= records for count in successes):
        raise ValueError(f"need counts between 0 and {records} of at least one record")
    if not successes:
        return 1.0
    shares = np.asarray(successes, dtype=np.float64) / records

    def rejected(log_level: float) -> bool:
        half = log_level - math.log(2.0)
        return _log_capital(shares, _above(value, -half / records)) >= -half

    if not rejected(0.0):
        return 1.0
    low, high = math.log(_LEAST), 0.0
    if rejected(low):
        return 0.0
    while high - low > 1e-7:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if rejected(middle) else (middle, high)
    return min(1.0, math.exp(high))


def at_most(successes: Sequence[int], records: int, value: float) -> float:
    """A p-value for the null that A is at least ``value``: the same test of failures."""
    return at_least([records - count for count in successes], records, 1.0 - value)


def _log_capital(shares: Array, mean: float) -> float:
    """The logarithm of what all bettors together have, under the null that shares have at most this mean."""
    if mean <= 0.0:
        return math.inf if np.any(shares > 0.0) else 0.0
    with np.errstate(divide="ignore"):  # who stakes all loses all at a share of 0
        each = np.log(1.0 + np.multiply.outer(_STAKES, shares / mean - 1.0)).sum(axis=1)
    return float(np.logaddexp.reduce(each)) - math.log(len(_STAKES))


def _above(value: float, rate: float) -> float:
    """The share above ``value`` that a sample passes with probability e^(-rate m) at most: KL(share || value) = rate.

    Bisection, the end on the safe side; 1 where no share below 1 is as far.
    """
    value = min(1.0, max(0.0, value))
    if value in (0.0, 1.0):
        return value
    low, high = value, 1.0
    while high - low > 1e-12:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _divergence(middle, value) < rate else (low, middle)
    return high


def _divergence(share: float, value: float) -> float:
    """KL(share || value) of coins with these chances, in nats; ``value`` strictly between 0 and 1."""
    total = 0.0
    if share > 0.0:
        total += share * math.log(share / value)
    if share < 1.0:
        total += (1.0 - share) * math.log((1.0 - share) / (1.0 - value))
    return total
