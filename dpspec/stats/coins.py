"""Exact tests that external inclusion bits are fair and independent.

The number of ones is Bin(n, 1/2), and the number of changes between consecutive bits Bin(n - 1, 1/2). Too many changes
are a pattern such as 0101. Few changes are allowed, because rows may be sorted.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpspec.stats import binomial

#: Level of all tests of one table together.
LEVEL = 1e-6


@dataclass(frozen=True, kw_only=True)
class CoinTest:
    name: str
    p_value: float
    text: str


def examine(coins: npt.ArrayLike) -> tuple[CoinTest, CoinTest]:
    """Test balance (two-sided) and alternation (too many changes) of inclusion bits (n,) in order.

    >>> [round(test.p_value, 3) for test in examine([0, 1] * 10)]
    [1.0, 0.0]
    """
    values = np.asarray(coins)
    if values.ndim != 1 or not len(values) or not np.isin(values, (0, 1)).all():
        raise ValueError("coins must be a vector of 0 and 1")
    ones, number = int(values.sum()), len(values)
    changes = int((values[1:] != values[:-1]).sum())
    return (
        CoinTest(name="balance", p_value=balance(ones, number), text=f"{ones} of {number} coins are 1"),
        CoinTest(
            name="alternation",
            p_value=binomial.at_least(changes, number - 1, 0.5) if number > 1 else 1.0,
            text=f"{changes} of {number - 1} coins differ from the one before",
        ),
    )


def balance(ones: int, number: int) -> float:
    return min(1.0, 2.0 * min(binomial.at_least(ones, number, 0.5), binomial.at_most(ones, number, 0.5)))


def least_seen(number: int, level: float) -> float:
    """Smallest share of ones above one half that the test of balance rejects at ``level``; 1 if none."""
    ones = bisect_left(range(number + 1), True, lo=number // 2, key=lambda ones: balance(ones, number) <= level)
    return min(1.0, ones / number)
