"""Test of an average over training runs, each measured by counts on the same test records.

A is the mean over training and over the population of test records. Runs and test records are independent, and each
source of randomness has half of the level:

* Given the test records, the runs' shares Y_i in [0, 1] are independent with mean A_T. Under A_T <= a the factors
  1 + f (Y_i / a - 1), 0 <= f <= 1, multiply a capital by at most 1 on average (Ville 1939, for any stopping time).
* A_T is the mean over m independent test records of the probability that training gets one right, with mean A:
  P[A_T >= A + t] <= exp(-m KL(A + t || A)) (Hoeffding 1963, Theorem 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy import special

from dpspec.accounting import bisect

Array: TypeAlias = np.ndarray[Any, Any]

#: Source of evidence of this kind.
SOURCE = "Ville 1939: betting on a mean in [0, 1]; Hoeffding 1963, Theorem 1"

#: Fractions of the largest stake, each bet with an equal part of the capital.
_STAKES = (0.1, 0.3, 0.6, 0.9, 1.0)

#: Smaller p-values are 0.
_LEAST = 1e-300


def at_least(successes: Sequence[int], records: int, value: float) -> float:
    """P-value of the null that A is at most ``value``, valid at any stopping time; 1 without runs.

    ``successes`` of each run are on the same test records.
    """
    if not records > 0 or not all(0 <= count <= records for count in successes):
        raise ValueError(f"need counts between 0 and {records} of at least one record")
    if not successes:
        return 1.0
    shares = np.asarray(successes, dtype=np.float64) / records

    def rejected(log_level: float) -> bool:
        half = log_level - math.log(2.0)
        mean = _above(value, -half / records)
        if mean <= 0.0:
            return bool(np.any(shares > 0.0))
        with np.errstate(divide="ignore"):  # the full stake is lost at a share of 0
            each = np.log(1.0 + np.multiply.outer(_STAKES, shares / mean - 1.0)).sum(axis=1)
        return float(np.logaddexp.reduce(each)) - math.log(len(_STAKES)) >= -half

    if not rejected(0.0):
        return 1.0
    least = math.log(_LEAST)
    if rejected(least):
        return 0.0
    return min(1.0, math.exp(bisect(rejected, 0.0, least, enough=lambda high, low: high - low <= 1e-7)[0]))


def at_most(successes: Sequence[int], records: int, value: float) -> float:
    return at_least([records - count for count in successes], records, 1.0 - value)


def _above(value: float, rate: float) -> float:
    """Upper end of the share above ``value`` with KL(share || value) = rate; 1 if there is none below 1."""
    value = min(1.0, max(0.0, value))
    if value in (0.0, 1.0):
        return value

    def near(share: float) -> bool:
        return float(special.rel_entr(share, value) + special.rel_entr(1.0 - share, 1.0 - value)) < rate

    return bisect(near, value, 1.0, enough=lambda low, high: high - low <= 1e-12)[1]
