from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpspec.accounting import (
    Mixture,
    best_epsilon,
    composed_rdp,
    epsilon_at_orders,
    gaussian,
    gaussian_rdp,
    laplace_rdp,
    log_delta_at_orders,
)

ORDERS = st.floats(1.01, 500.0)
DIVERGENCES = st.floats(1e-9, 100.0)
DELTAS = st.floats(1e-30, 0.5)
#: Orders from just above 1 to 10^5.
EVERY_ORDER = 1.0 + np.geomspace(1e-4, 1e5, 2001)
few = settings(max_examples=100, deadline=None)


def schedule(k: int, rate: float, sigma: float, steps: int, direction: str = "both"):
    return lambda orders: composed_rdp([(Mixture.poisson(k, rate, sigma), steps)], orders, direction)


@few
@given(order=ORDERS, rdp=DIVERGENCES, delta=DELTAS)
def test_formulas_and_their_roundings(order: float, rdp: float, delta: float) -> None:
    """Never below the exact formula, above it by no more than stated, and the two inequalities in their order."""
    with mpmath.workdps(40):
        a, d, log_delta = mpmath.mpf(order), mpmath.mpf(rdp), mpmath.log(mpmath.mpf(delta))
        mironov = d - log_delta / (a - 1)
        improved = d + mpmath.log((a - 1) / a) - (log_delta + mpmath.log(a)) / (a - 1)
    ours = {name: float(epsilon_at_orders(order, rdp, delta, name)) for name in ("mironov", "improved")}
    assert 0.0 <= ours["improved"] <= ours["mironov"]
    assert mironov <= ours["mironov"] <= mironov * (1 + 1e-10)
    if ours["improved"] > 0.0:
        assert improved <= ours["improved"] <= improved + 1e-11 * (rdp + mironov)
        back = float(log_delta_at_orders(order, rdp, ours["improved"]))
        assert back <= float(log_delta) + 1e-9 * (1.0 + abs(float(log_delta)) + (order - 1.0) * rdp)
    back = float(log_delta_at_orders(order, rdp, ours["mironov"], "mironov"))
    assert back == pytest.approx(float(log_delta), abs=1e-9 * (1.0 + abs(float(log_delta)) + (order - 1.0) * rdp))


@few
@given(rdp=DIVERGENCES, order=ORDERS, delta=st.floats(1e-6, 0.99))
def test_a_divergence_bounds_the_total_variation(rdp: float, order: float, delta: float) -> None:
    """delta >= sqrt(1 - e^-D) needs no epsilon at all, and delta at epsilon 0 is never above that."""
    variation = math.sqrt(-math.expm1(-rdp))
    if delta > variation * (1.0 + 1e-9):
        assert epsilon_at_orders(order, rdp, delta) == 0.0
    assert float(log_delta_at_orders(order, rdp, 0.0)) <= math.log(variation) + 1e-9


@few
@given(effect=st.floats(0.01, 10.0), delta=DELTAS)
def test_never_below_the_exact_gaussian(effect: float, delta: float) -> None:
    exact = float(gaussian.epsilon(delta, effect))
    for conversion in ("improved", "mironov"):
        found = best_epsilon(EVERY_ORDER, gaussian_rdp(EVERY_ORDER, effect), delta, conversion)
        assert found.epsilon >= exact
        most = effect**2 / 2 + effect * math.sqrt(-2 * math.log(delta))
        assert found.epsilon <= most * (1.0 + 1e-4) or found.at_edge
    epsilon = exact + 0.1
    log_delta = log_delta_at_orders(EVERY_ORDER, gaussian_rdp(EVERY_ORDER, effect), epsilon).min()
    assert log_delta >= float(gaussian.log_delta(epsilon, effect)) - 1e-12


@pytest.mark.parametrize(
    ("orders", "at_edge"), [([2.0, 4.0, 7.0], True), ([6.0, 7.2, 30.0], False), ([20.0, 40.0], True), ([7.2], True)]
)
def test_an_optimum_at_the_edge_of_the_orders_is_flagged(orders: list[float], at_edge: bool) -> None:
    curve = schedule(1, 0.01, 1.0, 2000)
    shuffled = orders[::-1]
    found = best_epsilon(shuffled, curve(np.array(shuffled)), 1e-6)
    assert found.at_edge is at_edge
    assert found.order in orders


def test_pure_dp_has_its_best_order_at_infinity() -> None:
    found = best_epsilon(EVERY_ORDER, laplace_rdp(EVERY_ORDER, 0.5), 1e-6)
    assert found.at_edge
    assert 0.5 <= found.epsilon < 0.5001
    huge = best_epsilon([2.0, 4.0], [math.inf, 1.0], 1e-6)
    assert huge.order == 4.0
    assert best_epsilon([2.0, 4.0], [0.0, 0.0], 0.1) == (0.0, 2.0, False)
