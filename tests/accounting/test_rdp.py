"""The best of a random number of tries, against the law of what is published, summed over numbers of tries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpspec.accounting import (
    Mixture,
    best_epsilon,
    best_log_delta,
    composed_rdp,
    epsilon_at_orders,
    gaussian,
    gaussian_rdp,
    laplace_rdp,
    log_delta_at_orders,
    sampled_gaussian_integer_rdp,
    sampled_gaussian_rdp,
)
from dpspec.accounting.rdp import SELECTION_ORDERS, Tries, drawn_cell_rdp, selection_rdp

RATES = st.floats(1e-6, 0.999)


SIGMAS = st.floats(0.2, 20.0)


ORDERS = st.floats(1.01, 60.0)


few = settings(max_examples=30, deadline=None)


def excess(order: float, components: list[tuple[float, float]], direction: str) -> mpmath.mpf:
    """E_Q[(P/Q)^s] - 1 by quadrature with mpmath; components are (shift, probability) in units of sigma."""
    s = mpmath.mpf(order) if direction == "present-first" else 1 - mpmath.mpf(order)
    pairs = [(mpmath.mpf(a), mpmath.mpf(p)) for a, p in components]
    top = pairs[-1][0]

    def gap(z: mpmath.mpf) -> mpmath.mpf:
        w = sum(p * mpmath.expm1(a * z - a * a / 2) for a, p in pairs)
        return mpmath.npdf(z) * ((1 + w) ** s - 1 - s * w)

    low, high = min(mpmath.mpf(0), s * top) - 15, max(top, s * top) + 15
    panels = max(15, int((high - low) / 2))
    return mpmath.quad(gap, [low + (high - low) * i / panels for i in range(panels + 1)])


def divergence(order: float, components: list[tuple[float, float]], direction: str) -> float:
    with mpmath.workdps(30):
        return float(mpmath.log1p(excess(order, components, direction)) / (mpmath.mpf(order) - 1))


@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
@pytest.mark.parametrize(
    ("order", "rate", "sigma"),
    [
        (1.0001, 0.01, 1.0),
        (1.2, 0.9999999, 1 / 3),
        (1.5, 0.1, 1.25),
        (2.5, 0.1, 1.25),
        (3.3, 1e-8, 1e4),
        (4.0, 1e-3, 200.0),
        pytest.param(8.0, 128 / 60000, 0.469, marks=pytest.mark.slow),
        (16.3, 1e-8, 1.0),
        (33.7, 0.3, 5.0),
        pytest.param(64.0, 1e-5, 3.0, marks=pytest.mark.slow),
    ],
)
def test_sampled_gaussian_against_mpmath(order: float, rate: float, sigma: float, direction: str) -> None:
    with mpmath.workdps(30):
        shift = 1 / mpmath.mpf(sigma)
        pair = [(mpmath.mpf(0), 1 - mpmath.mpf(rate)), (shift, mpmath.mpf(rate))]
        truth = mpmath.log1p(excess(order, pair, direction)) / (mpmath.mpf(order) - 1)
        ours = sampled_gaussian_rdp(order, rate, sigma, direction)
        assert abs(mpmath.mpf(float(ours)) / truth - 1) < 1e-11


def test_narrow_integrand_of_a_large_order() -> None:
    """Absent-first at a large order the integrand is many times narrower than the noise."""
    order, rate, shift, step = 301.5, 0.8, 1 / 0.3, 1 / 64
    total = mpmath.fsum(
        mpmath.npdf(z) * (1 - rate + rate * mpmath.exp(shift * z - shift**2 / 2)) ** (1 - order)
        for z in (step * i for i in range(-25 * 64, 18 * 64))
    )
    truth = float(mpmath.log(step * total) / (order - 1))
    assert sampled_gaussian_rdp(order, rate, 0.3, "absent-first") == pytest.approx(truth, rel=1e-11)


@pytest.mark.parametrize(
    ("rate", "shift", "sigma", "order", "present", "absent"),
    [
        (0.5, 1.0, 1.0, 2, 0.35737402, 0.18569442),
        (0.01, 1.0, 1.0, 8, 8.9364390761e-4, 5.7238888949e-4),
        (0.1, 0.5, 1.0, 4, 6.0032829645e-3, 5.0205189860e-3),
        (128 / 60000, 1.0, 0.469, 8, 11.156390948, 4.0428164001e-4),
        (0.5, 2.0, 1.5, 3, 1.6768723200, 0.33734986348),
    ],
)
def test_reference_values(rate: float, shift: float, sigma: float, order: int, present: float, absent: float) -> None:
    for both in (present, float(sampled_gaussian_integer_rdp(order, rate, sigma / shift))):
        assert sampled_gaussian_rdp(order, rate, sigma / shift) == pytest.approx(both, rel=2e-8)
    assert sampled_gaussian_rdp(order, rate, sigma / shift, "absent-first") == pytest.approx(absent, rel=2e-8)


@pytest.mark.parametrize(
    ("order", "rate", "shift", "sigma", "truth"),
    [
        (4, 1e-3, 0.01, 2.0, 5.0000627502e-11),
        (8, 128 / 60000, 0.01, 0.469, 8.2781442776e-9),
        (64, 128 / 60000, 1.0, 0.469, 139.23264542),
        (256, 0.01, 1.0, 1.0, 123.37677032),
        (8, 1e-3, 1.0, 1.0, 6.98794164909e-6),
        (16, 1e-2, 1.0, 2.0, 2.3762401964e-4),
        (4, 1e-4, 1.0, 0.8, 7.55433933693e-8),
        (1.5, 0.1, 0.8, 1.0, 6.4045367381e-3),
        (2.5, 0.1, 0.8, 1.0, 0.011701545743),
    ],
)
def test_small_and_large_reference_values(order: float, rate: float, shift: float, sigma: float, truth: float) -> None:
    assert sampled_gaussian_rdp(order, rate, sigma / shift) == pytest.approx(truth, rel=1e-10)
    if order == int(order):
        assert sampled_gaussian_integer_rdp(order, rate, sigma / shift) == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize(("order", "rate", "sigma"), [(2, 1e-8, 1e4), (5, 0.3, 0.05), (9, 0.999, 2.0), (40, 1e-3, 0.7)])
def test_closed_form_against_mpmath(order: int, rate: float, sigma: float) -> None:
    with mpmath.workdps(40):
        q, v = mpmath.mpf(rate), 1 / mpmath.mpf(sigma) ** 2
        total = sum(
            mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(v * k * (k - 1) / 2)
            for k in range(order + 1)
        )
        truth = mpmath.log(total) / (order - 1)
        assert abs(float(sampled_gaussian_integer_rdp(order, rate, sigma)) / truth - 1) < 1e-12
        assert abs(float(sampled_gaussian_rdp(order, rate, sigma)) / truth - 1) < 1e-12


@pytest.mark.parametrize("sigma", [0.1, 1.0, 30.0])
def test_orders_up_to_a_hundred_thousand(sigma: float) -> None:
    """Two routes of different nature: a sum of 100,001 terms, and an integral."""
    assert sampled_gaussian_rdp(1e5, 0.01, sigma) == pytest.approx(
        float(sampled_gaussian_integer_rdp(1e5, 0.01, sigma)), rel=1e-11
    )
    absent = float(sampled_gaussian_rdp(1e5, 0.01, sigma, "absent-first"))
    assert 0.0 < absent <= -math.log1p(-0.01) * (1e5 / (1e5 - 1))  # no loss exceeds -ln(1 - q)


def test_arrays_broadcast_and_agree_with_single_calls() -> None:
    orders, sigmas = np.array([1.3, 2.0, 17.5, 900.0])[:, None], np.array([0.4, 1.0, 12.0])
    for direction in ("present-first", "absent-first"):
        table = sampled_gaussian_rdp(orders, 0.02, sigmas, direction)
        assert table.shape == (4, 3)
        for i, j in np.ndindex(4, 3):
            single = float(sampled_gaussian_rdp(float(orders[i, 0]), 0.02, float(sigmas[j]), direction))
            assert table[i, j] == pytest.approx(single, rel=1e-13)


@few
@given(order=ORDERS, rate=RATES, sigma=SIGMAS)
def test_properties_of_the_sampled_gaussian(order: float, rate: float, sigma: float) -> None:
    value = float(sampled_gaussian_rdp(order, rate, sigma))
    slack = 1.0 + 1e-10
    assert 0.0 < value <= float(gaussian_rdp(order, 1.0 / sigma)) * slack
    assert float(sampled_gaussian_rdp(order, rate, sigma, "absent-first")) <= value * slack
    assert value <= float(sampled_gaussian_rdp(order * 1.1, rate, sigma)) * slack
    assert value <= float(sampled_gaussian_rdp(order, min(1.0, rate * 1.1), sigma)) * slack
    assert value <= float(sampled_gaussian_rdp(order, rate, sigma * 0.9)) * slack
    low, high = math.floor(order), math.ceil(order)
    if 2 <= low < high:  # (a - 1) D is convex in a
        ends = [(a - 1) * float(sampled_gaussian_integer_rdp(a, rate, sigma)) for a in (low, high)]
        between = ends[0] + (ends[1] - ends[0]) * (order - low)
        assert (order - 1) * value <= between * slack
        assert between <= (order - 1) * ends[1] / (high - 1) * slack


def test_full_sampling_is_the_gaussian_mechanism() -> None:
    orders = np.array([1.5, 4.0, 100.0])
    for direction in ("present-first", "absent-first", "both"):
        assert np.allclose(sampled_gaussian_rdp(orders, 1.0, 2.0, direction), orders / 8.0, rtol=1e-14)
    assert np.allclose(sampled_gaussian_integer_rdp(4, 1.0, 2.0), 0.5)
    assert np.allclose(composed_rdp([(Mixture.full(3, 6.0), 1)], orders), orders / 8.0, rtol=1e-14)


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize(
    "mixture",
    [Mixture.poisson(3, 0.2, 1.3), Mixture.fixed(3, 20, 5, 2.0), Mixture([0.3, 1.7], [0.6, 0.4], 1.0)],
    ids=["poisson", "fixed", "general"],
)
def test_groups_against_the_sum_over_all_tuples(mixture: Mixture, order: int) -> None:
    """E_Q[(P/Q)^a] = E exp(((sum c)^2 - sum c^2) / (2 sigma^2)) over a independent draws of c."""
    c, p = mixture.sensitivities / mixture.sigma, mixture.probabilities
    total = math.fsum(
        math.prod(p[i] for i in draw) * math.exp(0.5 * (sum(c[i] for i in draw) ** 2 - sum(c[i] ** 2 for i in draw)))
        for draw in itertools.product(range(len(c)), repeat=order)
    )
    ours = composed_rdp([(mixture, 1)], order, "present-first")
    assert ours == pytest.approx(math.log(total) / (order - 1), rel=1e-11)


@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
@pytest.mark.parametrize("order", [1.3, 4.5])
def test_groups_against_mpmath(order: float, direction: str) -> None:
    mixture = Mixture.poisson(3, 0.05, 1.5)
    components = list(zip(mixture.sensitivities / mixture.sigma, mixture.probabilities, strict=True))
    assert composed_rdp([(mixture, 1)], order, direction) == pytest.approx(
        divergence(order, components, direction), rel=1e-11
    )


def test_a_group_of_one_is_the_sampled_gaussian() -> None:
    orders = np.array([1.1, 2.0, 7.7, 300.0])
    mixture = Mixture.poisson(1, 0.01, 1.5)
    for direction in ("present-first", "absent-first"):
        expected = sampled_gaussian_rdp(orders, 0.01, 1.5, direction)
        assert np.allclose(composed_rdp([(mixture, 1)], orders, direction), expected, rtol=1e-12)


@pytest.mark.parametrize("k", [64, 1000])
def test_large_groups_are_finite_and_ordered(k: int) -> None:
    orders = np.array([1.5, 2.0, 30.5, 1e4])
    mixture = Mixture.poisson(k, 0.01, 1.0)
    present = composed_rdp([(mixture, 1)], orders, "present-first")
    absent = composed_rdp([(mixture, 1)], orders, "absent-first")
    assert np.all(np.diff(present) > 0.0)
    assert np.all(np.diff(absent) > 0.0)
    assert np.all(present <= gaussian_rdp(orders, float(k)))
    assert np.all(absent <= -k * math.log1p(-0.01) * orders / (orders - 1.0))


@few
@given(order=st.floats(2.0, 20.0), rate=RATES, sigma=st.floats(0.5, 10.0), k=st.integers(2, 8))
def test_groups_grow_and_stay_below_group_privacy(order: float, rate: float, sigma: float, k: int) -> None:
    def one(orders: np.ndarray) -> np.ndarray:
        return sampled_gaussian_rdp(orders, rate, sigma)

    tight = float(composed_rdp([(Mixture.poisson(k, rate, sigma), 1)], order))
    assert float(composed_rdp([(Mixture.poisson(k - 1, rate, sigma), 1)], order)) <= tight * (1.0 + 1e-10)
    doublings = (k - 1).bit_length()  # Mironov 2017, Proposition 2
    assert tight <= 3.0**doublings * float(one(np.array(2.0**doublings * order))) * (1.0 + 1e-10)


def test_composition_adds_phases_and_takes_the_worse_direction_last() -> None:
    first, second = Mixture.poisson(2, 0.05, 1.0), Mixture.fixed(2, 100, 10, 3.0)
    orders = np.array([1.5, 4.0, 9.0])
    sums = {
        direction: 30 * composed_rdp([(first, 1)], orders, direction)
        + 70 * composed_rdp([(second, 1)], orders, direction)
        for direction in ("present-first", "absent-first")
    }
    phases = [(first, 30), (second, 70)]
    for direction, expected in sums.items():
        assert np.allclose(composed_rdp(phases, orders, direction), expected, rtol=1e-13)
    assert np.allclose(composed_rdp(phases, orders), np.maximum(*sums.values()), rtol=1e-13)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.2, 4.0), (1e-4, 0.6), (0.9, 2.0)])
def test_agrees_with_dp_accounting(rate: float, sigma: float) -> None:
    """Equal at integer orders; at others theirs is an upper bound."""
    rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = np.array([1.5, 2.0, 2.5, 3.0, 7.0, 8.2, 32.0, 128.0, 512.0])
    theirs = np.array(rdp._compute_rdp_poisson_subsampled_gaussian(rate, sigma, orders))
    ours = sampled_gaussian_rdp(orders, rate, sigma)
    whole = orders == np.floor(orders)
    assert np.allclose(ours[whole], theirs[whole], rtol=1e-9)
    assert np.all(ours <= theirs * (1.0 + 1e-9))


@pytest.mark.parametrize("order", [1.001, 2.0, 11.0, 300.5])
@pytest.mark.parametrize("effect", [1e-9, 0.01, 0.0813780919, 0.9, 5.0, 800.0])
def test_laplace_against_mpmath_and_below_randomised_response(order: float, effect: float) -> None:
    with mpmath.workdps(60):
        a, s = mpmath.mpf(order), mpmath.mpf(effect)
        bracket = a / (2 * a - 1) * mpmath.exp((a - 1) * s) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * s)
        assert abs(float(laplace_rdp(order, effect)) / (mpmath.log(bracket) / (a - 1)) - 1) < 1e-11
        p, rest = 1 / (1 + mpmath.exp(-s)), 1 / (1 + mpmath.exp(s))
        bracket = p**a * rest ** (1 - a) + rest**a * p ** (1 - a)
        assert laplace_rdp(order, effect) <= float(mpmath.log(bracket) / (a - 1)) * (1.0 + 1e-12)


def test_laplace_reference_values_and_zero() -> None:
    assert laplace_rdp(11.0, 0.0813780919) == pytest.approx(0.031952958, rel=1e-7)
    assert laplace_rdp(11.0, 0.9) == pytest.approx(0.835337284, rel=1e-9)
    assert laplace_rdp(3.0, 0.0) == gaussian_rdp(3.0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: sampled_gaussian_rdp(1.0, 0.1, 1.0), "orders"),
        (lambda: sampled_gaussian_rdp([2.0, math.nan], 0.1, 1.0), "orders"),
        (lambda: sampled_gaussian_rdp(2.0, 0.0, 1.0), "rate"),
        (lambda: sampled_gaussian_rdp(2.0, 1.1, 1.0), "rate"),
        (lambda: sampled_gaussian_rdp(2.0, 0.1, 0.0), "sigma"),
        (lambda: sampled_gaussian_rdp(2.0, 0.1, 1.0, "sideways"), "direction"),
        (lambda: sampled_gaussian_integer_rdp(2.5, 0.1, 1.0), "orders"),
        (lambda: gaussian_rdp(2.0, -1.0), "effect"),
        (lambda: laplace_rdp(2.0, math.inf), "effect"),
        (lambda: composed_rdp([(Mixture.full(1, 1.0), 0)], 2.0), "steps"),
    ],
)
def test_senseless_arguments_are_named(call: object, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()


ORDERS_of_conversions = st.floats(1.01, 500.0)


DIVERGENCES = st.floats(1e-9, 100.0)


DELTAS = st.floats(1e-30, 0.5)


#: Orders from just above 1 to 10^5.
EVERY_ORDER = 1.0 + np.geomspace(1e-4, 1e5, 2001)


few_of_conversions = settings(max_examples=100, deadline=None)


def schedule(k: int, rate: float, sigma: float, steps: int, direction: str = "both"):
    return lambda orders: composed_rdp([(Mixture.poisson(k, rate, sigma), steps)], orders, direction)


@pytest.mark.parametrize(
    ("rdp", "order", "delta", "mironov", "improved"),
    [
        (1.0, 8.0, 1e-5, 2.6447036, 2.2141092),
        (0.5, 4.0, 1e-6, 5.1051702, 4.3553900),
        (2.0, 2.0, 1e-5, 13.512925, 12.126631),
    ],
)
def test_reference_arithmetic(rdp: float, order: float, delta: float, mironov: float, improved: float) -> None:
    assert epsilon_at_orders(order, rdp, delta, "mironov") == pytest.approx(mironov, abs=6e-8 * mironov)
    assert epsilon_at_orders(order, rdp, delta) == pytest.approx(improved, abs=6e-8 * improved)


@few_of_conversions
@given(order=ORDERS_of_conversions, rdp=DIVERGENCES, delta=DELTAS)
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


@few_of_conversions
@given(rdp=DIVERGENCES, order=ORDERS_of_conversions, delta=st.floats(1e-6, 0.99))
def test_a_divergence_bounds_the_total_variation(rdp: float, order: float, delta: float) -> None:
    """delta >= sqrt(1 - e^-D) needs no epsilon at all, and delta at epsilon 0 is never above that."""
    variation = math.sqrt(-math.expm1(-rdp))
    if delta > variation * (1.0 + 1e-9):
        assert epsilon_at_orders(order, rdp, delta) == 0.0
    assert float(log_delta_at_orders(order, rdp, 0.0)) <= math.log(variation) + 1e-9


@few_of_conversions
@given(effect=st.floats(0.01, 10.0), delta=DELTAS)
def test_never_below_the_exact_gaussian(effect: float, delta: float) -> None:
    exact = float(gaussian.epsilon(delta, effect))
    for conversion in ("improved", "mironov"):
        found = best_epsilon(EVERY_ORDER, gaussian_rdp(EVERY_ORDER, effect), delta, conversion)
        assert found.epsilon >= exact
        most = effect**2 / 2 + effect * math.sqrt(-2 * math.log(delta))
        assert found.epsilon <= most * (1.0 + 1e-4) or found.at_edge
    epsilon = exact + 0.1
    log_delta = best_log_delta(EVERY_ORDER, gaussian_rdp(EVERY_ORDER, effect), epsilon).value
    assert log_delta >= float(gaussian.log_delta(epsilon, effect)) - 1e-12


def test_the_peers_setting() -> None:
    """Sigma 1, rate 0.004, 10,000 steps: 2.39, where the exact value is 2.18."""
    orders = 1.0 + np.geomspace(1e-2, 1e2, 400)
    divergences = schedule(1, 0.004, 1.0, 10_000)(orders)
    assert best_epsilon(orders, divergences, 1e-5).epsilon == pytest.approx(2.39, abs=5e-3)


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


def test_agrees_with_dp_accounting_conversions() -> None:
    rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = np.array(rdp.DEFAULT_RDP_ORDERS, dtype=float)
    for k, rate, sigma, steps in ((1, 0.01, 1.0, 2000), (1, 0.1, 2.0, 100), (4, 0.01, 2.0, 500), (1, 1.0, 50.0, 10)):
        divergences = schedule(k, rate, sigma, steps)(orders)
        for delta in (1e-3, 1e-6, 1e-12):
            theirs, order = rdp.compute_epsilon(orders, divergences, delta)
            ours = best_epsilon(orders, divergences, delta)
            assert ours.epsilon == pytest.approx(theirs, rel=1e-9)
            assert ours.order == order
            if ours.epsilon > 0.0:
                theirs, order = rdp.compute_delta(orders, divergences, ours.epsilon)
                assert math.exp(best_log_delta(orders, divergences, ours.epsilon).value) == pytest.approx(
                    theirs, rel=1e-8
                )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: epsilon_at_orders(2.0, 1.0, 0.0), "delta"),
        (lambda: epsilon_at_orders(2.0, -1.0, 0.1), "rdp"),
        (lambda: epsilon_at_orders(2.0, math.nan, 0.1), "rdp"),
        (lambda: epsilon_at_orders(1.0, 1.0, 0.1), "orders"),
        (lambda: epsilon_at_orders(2.0, 1.0, 0.1, "newest"), "conversion"),
        (lambda: log_delta_at_orders(2.0, 1.0, math.inf), "epsilon"),
        (lambda: best_epsilon([2.0, 3.0], [1.0], 0.1), "orders and rdp"),
        (lambda: best_epsilon([2.0], [1.0], 1.0), "delta"),
        (lambda: best_log_delta([2.0], [1.0], math.nan), "epsilon"),
    ],
)
def test_senseless_arguments_are_named_conversions(call: object, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()


#: What a truncated sum over numbers of tries leaves out.
TAIL = 1e-13


def chances(tries: Tries) -> Iterator[float]:
    """P[K = 0], P[K = 1], ..., by their recursions and gamma alone, until next to nothing is left."""
    if tries.law == "poisson":
        chance = math.exp(-tries.mean)
        yield chance
    else:
        gamma, eta = math.exp(-tries.log_inverse_gamma), float(tries.shape or 0.0)
        yield 0.0
        constant = 1.0 / -math.log(gamma) if eta == 0.0 else eta / math.expm1(-eta * math.log(gamma))
        chance = constant * (1.0 - gamma)
        yield chance
    told, k = 0.0, 1
    while told < 1.0 - TAIL and k < 3000:
        if tries.law == "poisson":
            chance *= tries.mean / k
        else:
            chance *= (1.0 - gamma) * (k + eta) / (k + 1)
        told, k = told + chance, k + 1
        yield chance


def published(law: np.ndarray, tries: Tries) -> np.ndarray:
    """The law of the best of the tries; outcomes from worst to best, and before them that nothing was tried."""
    below = np.concatenate(([0.0], np.cumsum(law)))
    each = np.array(list(chances(tries)))
    powers = below[:, None] ** np.arange(len(each))  # 0^0 is 1: of no tries, none is better than nothing
    return np.diff(powers @ each, prepend=0.0)


def divergence_of_selection(order: float, first: np.ndarray, second: np.ndarray) -> float:
    there = first > 0.0
    logs = order * np.log(first[there]) + (1.0 - order) * np.log(second[there])
    return float(np.logaddexp.reduce(logs)) / (order - 1.0)


def both_ways(order: float, first: np.ndarray, second: np.ndarray) -> float:
    return max(divergence_of_selection(order, first, second), divergence_of_selection(order, second, first), 0.0)


def profile(epsilon: float, first: np.ndarray, second: np.ndarray) -> float:
    return float(np.sum(np.maximum(first - math.exp(epsilon) * second, 0.0)))


LAWS = st.one_of(
    st.builds(Tries, st.sampled_from(["geometric", "logarithmic"]), st.floats(1.01, 8.0)),
    st.builds(
        Tries,
        st.just("truncated-negative-binomial"),
        st.floats(1.01, 8.0),
        st.floats(-0.5, 3.0).filter(lambda eta: abs(eta) > 1e-3),
    ),
    st.builds(Tries, st.just("poisson"), st.floats(0.1, 8.0)),
)


OUTCOMES = st.integers(2, 5).flatmap(
    lambda n: st.tuples(*(st.lists(st.floats(0.05, 1.0), min_size=n, max_size=n) for _ in range(2)))
)


@given(OUTCOMES, LAWS, st.sampled_from([1.2, 2.0, 5.0, 20.0]))
def test_what_is_published_diverges_no_more_than_the_bound(
    weights: tuple[list[float], list[float]], tries: Tries, order: float
) -> None:
    first, second = (np.array(w) / sum(w) for w in weights)
    orders = np.array([order, *SELECTION_ORDERS[::8]])
    one = np.array([both_ways(a, first, second) for a in orders])
    bound = float(selection_rdp(orders, one, tries)[0])
    truth = both_ways(order, published(first, tries), published(second, tries))
    assert truth <= bound * (1.0 + 1e-9) + 1e-9


@pytest.mark.parametrize(
    "tries",
    [
        Tries("geometric", 5.0),
        Tries("logarithmic", 5.0),
        Tries("truncated-negative-binomial", 5.0, -0.5),
        Tries("poisson", 5.0),
    ],
    ids=lambda tries: tries.law,
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_randomised_response_with_a_score(tries: Tries, epsilon: float) -> None:
    """One bit kept with chance e^eps / (1 + e^eps), the better answer 1: choosing costs, and no more than is said."""
    kept = 1.0 / (1.0 + math.exp(-epsilon))
    first, second = np.array([kept, 1.0 - kept]), np.array([1.0 - kept, kept])
    orders = np.array(SELECTION_ORDERS)
    one = np.array([both_ways(a, first, second) for a in orders])
    rdp = selection_rdp(orders, one, tries)
    left, right = published(first, tries), published(second, tries)
    for delta in (1e-1, 1e-3, 1e-6):
        bound = best_epsilon(orders, rdp, delta).epsilon
        assert max(profile(bound, left, right), profile(bound, right, left)) <= delta
    assert max(profile(epsilon, left, right), profile(epsilon, right, left)) > 1e-3  # one try is epsilon-DP


@pytest.mark.parametrize(("law", "eta"), [("geometric", 1.0), ("logarithmic", 0.0)])
def test_of_pure_privacy_it_costs_the_factor_of_the_corollary(law: str, eta: float) -> None:
    """Papernot and Steinke 2022, Corollary 3: eps-DP tries give (2 + eta) eps-DP; large orders come near it."""
    orders = np.array([*SELECTION_ORDERS, 1e6, 1e9])
    rdp = selection_rdp(orders, np.full(orders.shape, 0.5), Tries(law, 4.0))  # type: ignore[arg-type]
    assert rdp[-1] <= (2.0 + eta) * 0.5 * (1.0 + 1e-6)
    assert rdp[-1] >= 0.5


@pytest.mark.parametrize("mean", [1.0 + 1e-9, 1.5, 10.0, 1e4])
@pytest.mark.parametrize("eta", [-0.5, 0.0, 1e-12, 0.5, 1.0, 7.0])
def test_gamma_belongs_to_the_mean(mean: float, eta: float) -> None:
    """Against the closed form of the mean in 60 digits; ln(1 / gamma) is never below the true one."""
    import mpmath

    t = Tries("truncated-negative-binomial", mean, eta).log_inverse_gamma
    with mpmath.workdps(60):
        gamma = mpmath.e ** -mpmath.mpf(t)
        exact = (1 - gamma) / gamma / (-mpmath.log(gamma) if eta == 0 else (1 - gamma ** mpmath.mpf(eta)) / eta)
        assert mean <= exact <= mean * (1 + 1e-8)


def test_numbers_of_tries_have_the_declared_mean() -> None:
    for tries in (Tries("geometric", 6.0), Tries("logarithmic", 6.0), Tries("poisson", 6.0)):
        law = list(chances(tries))
        assert math.fsum(law) == pytest.approx(1.0, abs=1e-10)
        assert math.fsum(k * chance for k, chance in enumerate(law)) == pytest.approx(6.0, rel=1e-8)


@given(LAWS, st.floats(0.05, 2.0), st.floats(1.0, 3.0))
def test_more_tries_and_less_private_ones_cost_more(tries: Tries, effect: float, times: float) -> None:
    orders = np.array(SELECTION_ORDERS[::8])
    base = selection_rdp(orders, gaussian_rdp(orders, effect), tries)
    more = Tries(tries.law, tries.mean * times, tries.eta)
    assert np.all(selection_rdp(orders, gaussian_rdp(orders, effect), more) >= base * (1.0 - 1e-9))
    assert np.all(selection_rdp(orders, gaussian_rdp(orders, effect * times), tries) >= base * (1.0 - 1e-9))


def test_one_try_for_certain_costs_nothing() -> None:
    orders = np.array(SELECTION_ORDERS)
    rdp = gaussian_rdp(orders, 0.7)
    assert selection_rdp(orders, rdp, Tries("geometric", 1.0)) == pytest.approx(rdp, rel=1e-12)


def test_a_poisson_number_of_tries_never_has_a_negative_divergence() -> None:
    """Without the chance of no try it would be ln(mean) / (order - 1) where tries reveal nothing."""
    orders = np.array(SELECTION_ORDERS)
    assert np.all(selection_rdp(orders, np.zeros(orders.shape), Tries("poisson", 0.25)) >= 0.0)


@given(st.lists(st.lists(st.floats(0.05, 1.0), min_size=6, max_size=6), min_size=2, max_size=4))
def test_a_drawn_cell_that_is_shown_diverges_by_exactly_this(weights: list[list[float]]) -> None:
    cells = [(np.array(w[:3]) / sum(w[:3]), np.array(w[3:]) / sum(w[3:])) for w in weights]
    orders = np.array([1.5, 3.0, 10.0])
    table = np.array([[divergence_of_selection(a, *cell) for a in orders] for cell in cells])
    shown = [np.concatenate([cell[side] for cell in cells]) / len(cells) for side in (0, 1)]
    truth = [divergence_of_selection(a, shown[0], shown[1]) for a in orders]
    found = drawn_cell_rdp(orders, np.maximum(table, 0.0))
    assert found == pytest.approx(truth, rel=1e-9, abs=1e-9)
    hidden = [sum(cell[side] for cell in cells) / len(cells) for side in (0, 1)]
    assert np.all(found >= [divergence_of_selection(a, hidden[0], hidden[1]) - 1e-9 for a in orders])


def test_equal_cells_are_one() -> None:
    orders = np.array(SELECTION_ORDERS)
    rdp = gaussian_rdp(orders, 0.3)
    assert drawn_cell_rdp(orders, [rdp, rdp, rdp]) == pytest.approx(rdp, rel=1e-12)


@pytest.mark.parametrize(
    ("law", "mean", "eta", "named"),
    [
        ("geometric", 0.5, None, "mean"),
        ("poisson", 0.0, None, "mean"),
        ("poisson", math.inf, None, "mean"),
        ("geometric", 2.0, 1.0, "eta"),
        ("truncated-negative-binomial", 2.0, None, "eta"),
        ("truncated-negative-binomial", 2.0, -1.0, "eta"),
        ("binomial", 2.0, None, "law"),
    ],
)
def test_laws_that_are_none_are_refused(law: str, mean: float, eta: float | None, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Tries(law, mean, eta)  # type: ignore[arg-type]
