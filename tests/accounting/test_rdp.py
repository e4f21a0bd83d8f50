"""Renyi divergences and their conversions: against mpmath, closed forms, and certified epsilons."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.accounting import (
    Laplace,
    Mixture,
    PrivacyLoss,
    best_epsilon,
    composed_rdp,
    epsilon_at_orders,
    gaussian,
    gaussian_rdp,
    laplace_rdp,
    log_delta_at_orders,
    sampled_gaussian_integer_rdp,
    sampled_gaussian_rdp,
    sampled_laplace_rdp,
)


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


@pytest.mark.family
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
    order, rate, shift, step = 301.5, 0.8, 1 / 0.3, 1 / 64
    total = mpmath.fsum(
        mpmath.npdf(z) * (1 - rate + rate * mpmath.exp(shift * z - shift**2 / 2)) ** (1 - order)
        for z in (step * i for i in range(-25 * 64, 18 * 64))
    )
    truth = float(mpmath.log(step * total) / (order - 1))
    assert sampled_gaussian_rdp(order, rate, 0.3, "absent-first") == pytest.approx(truth, rel=1e-11)


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
    assert sampled_gaussian_rdp(1e5, 0.01, sigma) == pytest.approx(
        float(sampled_gaussian_integer_rdp(1e5, 0.01, sigma)), rel=1e-11
    )
    absent = float(sampled_gaussian_rdp(1e5, 0.01, sigma, "absent-first"))
    assert 0.0 < absent <= -math.log1p(-0.01) * (1e5 / (1e5 - 1))  # no loss exceeds -ln(1 - q)


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
    c, p = mixture.sensitivities / mixture.noise_multiplier, mixture.probabilities
    total = math.fsum(
        math.prod(p[i] for i in draw) * math.exp(0.5 * (sum(c[i] for i in draw) ** 2 - sum(c[i] ** 2 for i in draw)))
        for draw in itertools.product(range(len(c)), repeat=order)
    )
    ours = composed_rdp([(mixture, 1)], order, "present-first")
    assert ours == pytest.approx(math.log(total) / (order - 1), rel=1e-11)


@pytest.mark.family
@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
@pytest.mark.parametrize("order", [1.3, 4.5])
def test_groups_against_mpmath(order: float, direction: str) -> None:
    mixture = Mixture.poisson(3, 0.05, 1.5)
    components = list(zip(mixture.sensitivities / mixture.noise_multiplier, mixture.probabilities, strict=True))
    assert composed_rdp([(mixture, 1)], order, direction) == pytest.approx(
        divergence(order, components, direction), rel=1e-11
    )


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


def test_no_effect_has_no_divergence() -> None:
    assert laplace_rdp(3.0, 0.0) == gaussian_rdp(3.0, 0.0) == 0.0


ORDERS = st.floats(1.01, 500.0)
DIVERGENCES = st.floats(1e-9, 100.0)
DELTAS = st.floats(1e-30, 0.5)
#: Orders from just above 1 to 10^5.
EVERY_ORDER = 1.0 + np.geomspace(1e-4, 1e5, 2001)


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


@given(rdp=DIVERGENCES, order=ORDERS, delta=st.floats(1e-6, 0.99))
def test_a_divergence_bounds_the_total_variation(rdp: float, order: float, delta: float) -> None:
    """delta >= sqrt(1 - e^-D) needs no epsilon at all, and delta at epsilon 0 is never above that."""
    variation = math.sqrt(-math.expm1(-rdp))
    if delta > variation * (1.0 + 1e-9):
        assert epsilon_at_orders(order, rdp, delta) == 0.0
    assert float(log_delta_at_orders(order, rdp, 0.0)) <= math.log(variation) + 1e-9


@pytest.mark.ci
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
    shuffled = orders[::-1]
    curve = composed_rdp([(Mixture.poisson(1, 0.01, 1.0), 2000)], np.array(shuffled), "both")
    found = best_epsilon(shuffled, curve, 1e-6)
    assert found.at_edge is at_edge
    assert found.order in orders


def test_pure_dp_has_its_best_order_at_infinity() -> None:
    found = best_epsilon(EVERY_ORDER, laplace_rdp(EVERY_ORDER, 0.5), 1e-6)
    assert found.at_edge
    assert 0.5 <= found.epsilon < 0.5001
    huge = best_epsilon([2.0, 4.0], [math.inf, 1.0], 1e-6)
    assert huge.order == 4.0
    assert best_epsilon([2.0, 4.0], [0.0, 0.0], 0.1) == (0.0, 2.0, False)


PRESENT, ABSENT = "present-first", "absent-first"


def by_quadrature(order: float, rate: float, effect: float, direction: str) -> float:
    with mpmath.workdps(25):
        a, q, m = mpmath.mpf(order), mpmath.mpf(rate), mpmath.mpf(effect)
        s = a if direction == PRESENT else 1 - a

        def gain(x: mpmath.mpf) -> mpmath.mpf:
            w = q * mpmath.expm1(x)
            return (1 + w) ** s - 1 - s * w

        # panels shrink towards the ends, where large powers have all of the integral
        ends = [m * (1 - mpmath.mpf(2) ** -i) for i in range(14)]
        panels = sorted({-m, m, *ends, *(-x for x in ends)})
        total = gain(-m) / 2 + gain(m) * mpmath.exp(-m) / 2
        total += mpmath.quad(lambda x: gain(x) * mpmath.exp(-(x + m) / 2) / 4, panels)
        return float(mpmath.log1p(total) / (a - 1))


@pytest.mark.family
@pytest.mark.parametrize("direction", [PRESENT, ABSENT])
@pytest.mark.parametrize(
    ("order", "rate", "effect"),
    [
        (1.01, 0.1, 1.0),
        pytest.param(1.5, 0.001, 2.0, marks=pytest.mark.slow),
        (2.0, 1e-6, 0.01),
        pytest.param(8.5, 0.3, 0.5, marks=pytest.mark.slow),
        (64.0, 0.9, 3.0),
        (1000.0, 0.01, 1.0),
        (3.0, 0.5, 20.0),
    ],
)
def test_against_mpmath(order: float, rate: float, effect: float, direction: str) -> None:
    truth = by_quadrature(order, rate, effect, direction)
    assert float(sampled_laplace_rdp(order, rate, effect, direction)) == pytest.approx(truth, rel=1e-11)


def test_sampling_everything_is_the_laplace_mechanism() -> None:
    orders = np.array([1.1, 2.0, 7.5, 40.0, 5000.0])
    for effect in (1e-3, 0.7, 6.0):
        for direction in (PRESENT, ABSENT):
            np.testing.assert_allclose(
                sampled_laplace_rdp(orders, 1.0, effect, direction), laplace_rdp(orders, effect), rtol=1e-11
            )


@pytest.mark.ci
def test_composition_and_conversion_stay_above_the_certified_epsilon() -> None:
    phases = [(Laplace(1.0, 1.0, 0.1), 100), (Mixture.full(1, 4.0), 3)]
    total = composed_rdp(phases, [4.0])
    assert total == pytest.approx(100 * sampled_laplace_rdp(4.0, 0.1, 1.0) + 3 * gaussian_rdp(4.0, 0.25), rel=1e-14)
    orders = 1.0 + np.geomspace(1e-2, 1e3, 400)
    best = best_epsilon(orders, composed_rdp(phases, orders), 1e-5)
    exact = PrivacyLoss(tuple(phases)).epsilon(1e-5)
    assert not best.at_edge
    assert exact.upper < best.epsilon < 1.3 * exact.upper


@pytest.mark.parametrize("sigma", [1e-12, 1e-10])
def test_noise_below_all_digits_has_no_moment(sigma: float) -> None:
    """The search for the relevant outputs did not end: cells of width 1 at 10^12 have no digits left."""
    with pytest.raises(ArithmeticError, match="needs too many points for shifts of up to 1e"):
        sampled_gaussian_rdp(2.0, 0.01, sigma)
