"""Chernoff's bound against scipy's minimum, the exact tail of small sums, and Gaussian and Bernoulli closed forms."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special

from dpspec.stats import binomial


def least_exponent(logs: np.ndarray, values: np.ndarray, number: int, least: float, most: float) -> float:
    """By scipy, on a logarithmic scale of u."""
    found = optimize.minimize_scalar(
        lambda log_u: number * float(special.logsumexp(logs + math.exp(log_u) * values)),
        bounds=(math.log(least), math.log(most)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return min(0.0, float(found.fun))


laws = st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(-20, 20)), min_size=2, max_size=8)


@given(laws, st.integers(1, 5000), st.floats(0.05, 0.95))
def test_no_other_exponent_is_smaller(law: list[tuple[float, int]], number: int, share: float) -> None:
    chances = np.array([chance for chance, _ in law])
    chances /= chances.sum()
    values = np.array([value for _, value in law], dtype=np.float64)
    mean, top = float(chances @ values), float(values.max())
    centred = values - (mean + share * (top - mean))
    logs = np.log(chances)
    found = binomial.chernoff_log_tail(binomial.cumulant_of(logs, centred), number, 1e-6, 1e4)
    best = least_exponent(logs, centred, number, 1e-6, 1e4)
    assert found == pytest.approx(best, rel=1e-8, abs=1e-8 * number)


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("at", [-1.0, 0.5, 2.0, 3.0])
def test_it_is_no_less_than_the_exact_tail(number: int, at: float) -> None:
    values, chances = np.array([-2.0, 0.0, 1.0, 3.0]), np.array([0.2, 0.4, 0.3, 0.1])
    places = np.zeros(6)
    places[[0, 2, 3, 5]] = chances
    law = reduce(np.convolve, [places] * number)
    sums = np.arange(len(law)) - 2.0 * number
    exact = float(law[sums >= number * at].sum())
    found = binomial.chernoff_log_tail(binomial.cumulant_of(np.log(chances), values - at), number, 1e-6, 1e4)
    assert math.log(exact) <= found + 1e-9
    assert found <= 0.0


def test_closed_forms() -> None:
    gaussian = binomial.chernoff_log_tail(lambda u: (0.5 * u * u - 3.0 * u, u - 3.0), 7, 1e-6, 1e6)
    assert gaussian == pytest.approx(-0.5 * 7 * 3.0**2, rel=1e-10)
    logs, values = np.log(np.array([0.9, 0.1])), np.array([0.0, 1.0])
    found = binomial.chernoff_log_tail(binomial.cumulant_of(logs, values - 0.3), 100, 1e-6, 1e6)
    assert found == pytest.approx(-100 * (0.3 * math.log(3.0) + 0.7 * math.log(0.7 / 0.9)), rel=1e-10)


def test_what_is_not_surprising_is_not_bounded() -> None:
    logs = np.log(np.array([0.5, 0.5]))
    for value in (-1.0, 0.0):
        law = binomial.cumulant_of(logs, np.array([value, 1.0]))
        assert binomial.chernoff_log_tail(law, 10, 1e-6, 1e6) == 0.0


def test_a_sum_beyond_all_values_has_no_chance() -> None:
    law = binomial.cumulant_of(np.log(np.array([0.5, 0.5])), np.array([-2.0, -1.0]))
    assert binomial.chernoff_log_tail(law, 3, 1e-6, 1e3) == pytest.approx(-3e3, rel=1e-2)
