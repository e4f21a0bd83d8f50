"""Exact tests of coins, against sums of binomial coefficients in whole numbers."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from dpspec.stats import binomial


def tail(least: int, number: int) -> Fraction:
    return Fraction(sum(comb(number, k) for k in range(least, number + 1)), 2**number)


@pytest.mark.parametrize("number", [1, 2, 7, 40, 101])
def test_balance_is_exact(number: int) -> None:
    for ones in range(number + 1):
        both = 2 * min(tail(ones, number), tail(number - ones, number))
        assert binomial.balance(ones, number) == pytest.approx(float(min(Fraction(1), both)), rel=1e-9)


def test_alternation_is_exact_and_counts_changes_alone() -> None:
    for text, changes in (("0101010101", 9), ("0000011111", 1), ("0011001100", 4)):
        balance, alternation = binomial.coin_tests([int(c) for c in text])
        assert alternation.p_value == pytest.approx(float(tail(changes, 9)))
        assert alternation.text == f"{changes} of 9 coins differ from the one before"
        assert balance.text == f"{text.count('1')} of 10 coins are 1"


def test_fair_coins_are_rejected_as_seldom_as_told() -> None:
    """Of 2000 fair tables, each test rejects at 5% in no more than 4.5 standard errors above 5%."""
    source = np.random.default_rng(1)
    p_values = np.array([[t.p_value for t in binomial.coin_tests(source.integers(0, 2, 200))] for _ in range(2000)])
    assert (p_values <= 0.05).mean(axis=0).max() <= 0.05 + 4.5 * (0.05 * 0.95 / 2000) ** 0.5
    assert (p_values <= 0.05).mean(axis=0).min() > 0.01


@pytest.mark.parametrize("number", [8, 100, 10**6])
def test_the_least_share_that_is_seen_is_the_first_that_is_rejected(number: int) -> None:
    share = binomial.least_imbalance(number, 5e-7)
    if number == 8:
        assert share == 1.0  # eight coins of one kind have p = 1/128
    else:
        ones = round(share * number)
        assert binomial.balance(ones, number) <= 5e-7 < binomial.balance(ones - 1, number)


@pytest.mark.parametrize("wrong", [[], [0, 2], [[0, 1]]])
def test_others_than_coins_are_refused(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="0 and 1"):
        binomial.coin_tests(wrong)
