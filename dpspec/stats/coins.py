"""Whether coins that somebody else threw look fair: exact tests, which a fair coin of each row fails as seldom as told.

Fair and independent coins are 1 as often as Bin(n, 1/2), and each but the first differs from the one before it with
probability 1/2, independently of all others: the number of changes is Bin(n - 1, 1/2). Too many ones or zeros are
unfair in any order of the rows. Too many changes are a pattern, such as 0101. Too few are none: rows may have been
sorted. No test sees everything: coins of which exactly half are 1 pass, and are not independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpspec.stats import binomial

#: Coins are refused where a test has a p-value of at most this, over all tests of one table.
LEVEL = 1e-6


@dataclass(frozen=True, kw_only=True)
class CoinTest:
    """One exact test. ``text`` says what was counted."""

    name: str
    p_value: float
    text: str


def examine(coins: npt.ArrayLike) -> tuple[CoinTest, CoinTest]:
    """The tests of balance (two-sided) and of alternation (too many changes), on coins 0 or 1 in their order, (n,).

    Raises ``ValueError`` where there are none, or others than 0 and 1.

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
    """The exact two-sided p-value of so many ones among fair coins: twice the smaller tail, at most 1."""
    return min(1.0, 2.0 * min(binomial.at_least(ones, number, 0.5), binomial.at_most(ones, number, 0.5)))


def least_seen(number: int, level: float) -> float:
    """The least share of ones above one half that the test of balance rejects at ``level``; 1 where none is."""
    low, high = number // 2, number + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if middle > number or balance(middle, number) <= level else (middle + 1, high)
    return min(1.0, low / number)
