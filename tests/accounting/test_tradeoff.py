import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from support.rero_values import BY_NAME

from dpspec.accounting import (
    GaussianTradeOff,
    LaplaceTradeOff,
    Lines,
    Mixture,
    Polygon,
    PrivacyLoss,
    TradeOff,
    TradeOffBounds,
    fit_gdp,
    gaussian,
    tradeoff_bounds,
)
from dpspec.accounting.tradeoff import delta_divergence

ALPHAS = np.concatenate(([0.0], np.geomspace(1e-12, 0.1, 60), np.linspace(0.1, 1.0, 91)[1:-1], [1.0 - 1e-9, 1.0]))
POINTS = [(1.0, 1e-5), (2.0, 1e-6), (0.5, 0.1)]


def tangents(curve: TradeOff, epsilons: np.ndarray) -> Polygon:
    """The lines of ``curve`` at some real epsilons: a curve below it that touches it there."""
    low, high = -epsilons[epsilons < 0.0], epsilons[epsilons >= 0.0]
    return Polygon.above(Lines.of(high, curve.delta(high)) + Lines.mirrored(low, curve.inverse().delta(low)))


CURVES: dict[str, TradeOff] = {
    "gaussian": GaussianTradeOff(1.0),
    "no noise to speak of": GaussianTradeOff(9.0),
    "nothing": GaussianTradeOff(0.0),
    "laplace": LaplaceTradeOff(1.0),
    "strong laplace": LaplaceTradeOff(12.0),
    "points": Polygon.from_epsilon_delta(POINTS),
    "one-sided": Polygon.from_epsilon_delta(POINTS, one_sided=True),
    "pure": Polygon.from_epsilon_delta([(1.5, 0.0)]),
    "delta alone": Polygon.from_epsilon_delta([(0.0, 0.3)]),
    "no claim": Polygon.from_epsilon_delta([]),
    "tangents": tangents(GaussianTradeOff(1.0), np.linspace(-9.0, 9.0, 181)),
}


def check_invariants(curve: TradeOff, slack: float = 1e-15) -> None:
    beta, power = curve(ALPHAS), curve.tpr(ALPHAS)
    assert np.all((beta >= 0.0) & (beta <= 1.0 - ALPHAS + slack))
    assert np.all(power >= ALPHAS * (1.0 - 1e-12))  # tpr >= fpr
    assert np.allclose(beta + power, 1.0, atol=4e-13)
    assert np.all(np.diff(beta) <= slack)
    # convex: every point is below the chord of its neighbours
    left, right = np.diff(ALPHAS)[:-1], np.diff(ALPHAS)[1:]
    chord = (beta[:-2] * right + beta[2:] * left) / (left + right)
    assert np.all(beta[1:-1] <= chord + 4.0 * slack)
    delta = curve.delta(np.linspace(-30.0, 60.0, 181))
    assert np.all((delta >= 0.0) & (delta <= 1.0))
    assert np.all(np.diff(delta) <= slack)


@pytest.mark.parametrize("name", CURVES)
def test_invariants(name: str) -> None:
    check_invariants(CURVES[name])
    check_invariants(CURVES[name].inverse())


@pytest.mark.parametrize("name", CURVES)
def test_duality_both_ways_by_brute_force(name: str) -> None:
    curve = CURVES[name]
    alphas = np.unique(np.concatenate((np.linspace(0.0, 1.0, 20_001), np.geomspace(1e-14, 0.01, 3000))))
    epsilons = np.concatenate((np.linspace(-45.0, 45.0, 9001), np.log(np.geomspace(1e-3, 1e3, 2001))))
    beta, delta = curve(alphas), curve.delta(epsilons)
    for epsilon in (-4.0, -0.9, 0.0, 0.4, 1.0, 3.0, 8.0):
        brute = np.max(1.0 - beta - math.exp(epsilon) * alphas)
        assert brute <= curve.delta(epsilon) + 1e-14
        assert brute == pytest.approx(float(curve.delta(epsilon)), abs=1e-4)
    for alpha in (1e-6, 0.003, 0.1, 0.5, 0.77, 0.999):
        brute = max(0.0, float(np.max(1.0 - delta - np.exp(epsilons) * alpha)))
        assert brute <= curve(alpha) + 5e-14
        assert brute == pytest.approx(float(curve(alpha)), abs=1e-4)


@pytest.mark.parametrize("name", CURVES)
def test_inverse(name: str) -> None:
    curve = CURVES[name]
    inverse = curve.inverse()
    assert np.allclose(inverse.inverse()(ALPHAS), curve(ALPHAS), atol=1e-12)
    for epsilon in (0.0, 0.3, 1.0, 2.5):  # delta(-e) = 1 - e^-e + e^-e delta'(e)
        expected = -math.expm1(-epsilon) + math.exp(-epsilon) * float(inverse.delta(epsilon))
        assert curve.delta(-epsilon) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("name", ["G1", "G2", "G3", "G4", "L1", "L2", "L3", "L4"])
def test_reference_values_of_closed_forms(name: str) -> None:
    value = BY_NAME[name]
    curve = (GaussianTradeOff if value.noise == "gaussian" else LaplaceTradeOff)(value.effect * math.sqrt(value.steps))
    assert curve.rero(value.kappa) == pytest.approx(value.gamma, rel=1e-12)
    assert 1.0 - curve(value.kappa) == pytest.approx(value.gamma, rel=1e-9)


def test_small_powers_keep_their_digits() -> None:
    assert GaussianTradeOff(1.0).tpr(1e-300) == pytest.approx(float(ndtr(ndtri(1e-300) + 1.0)), rel=1e-15)
    assert LaplaceTradeOff(2.0).tpr(1e-300) == pytest.approx(math.exp(2.0) * 1e-300, rel=1e-14)
    assert Polygon.from_epsilon_delta([(2.0, 0.0)]).tpr(1e-300) == pytest.approx(math.exp(2.0) * 1e-300, rel=1e-14)
    assert Polygon.from_epsilon_delta([(2.0, 1e-30)]).tpr(0.0) == pytest.approx(1e-30)


def test_epsilon_and_advantage() -> None:
    for mu in (0.1, 1.0, 5.0):
        for delta in (1e-12, 1e-5, 0.01):
            assert GaussianTradeOff(mu).epsilon(delta) == pytest.approx(float(gaussian.epsilon(delta, mu)), rel=1e-12)
            assert GaussianTradeOff(mu).delta(GaussianTradeOff(mu).epsilon(delta)) <= delta
        assert GaussianTradeOff(mu).advantage() == pytest.approx(2.0 * ndtr(mu / 2.0) - 1.0, rel=1e-12)
    assert GaussianTradeOff(1.0).epsilon(0.9) == 0.0
    assert LaplaceTradeOff(1.0).epsilon(1e-9) == pytest.approx(1.0, rel=1e-8)
    points = Polygon.from_epsilon_delta(POINTS)
    for epsilon, delta in POINTS:
        assert points.delta(epsilon) == pytest.approx(delta, rel=1e-9)
    assert points.epsilon(0.5e-6) == math.inf
    assert points.epsilon(1e-6) == pytest.approx(2.0, rel=1e-12)
    pure = Polygon.from_epsilon_delta([(1.5, 0.0)])
    for epsilon in np.linspace(-3, 3, 25):  # randomised response (Kairouz, Oh and Viswanath 2015)
        exact = max(0.0, 1.0 - math.exp(epsilon), (math.exp(1.5) - math.exp(epsilon)) / (1.0 + math.exp(1.5)))
        assert float(pure.delta(epsilon)) == pytest.approx(exact, abs=1e-15)
    assert pure.advantage() == pytest.approx(math.tanh(0.75))


@given(
    pairs=st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 1.0)), max_size=6),
    one_sided=st.booleans(),
    alpha=st.floats(0.0, 1.0),
)
def test_epsilon_delta_pairs_by_brute_force(pairs: list[tuple[float, float]], one_sided: bool, alpha: float) -> None:
    curve = Polygon.from_epsilon_delta(pairs, one_sided=one_sided)
    lines = [1.0 - delta - math.exp(epsilon) * alpha for epsilon, delta in pairs]
    if not one_sided:
        lines += [math.exp(-epsilon) * (1.0 - delta - alpha) for epsilon, delta in pairs]
    assert curve(alpha) == pytest.approx(max(0.0, *lines, 0.0), abs=1e-12)
    assert curve.tpr(alpha) >= alpha * (1.0 - 1e-12)
    check_invariants(curve, 1e-14)


def test_epsilons_beyond_float64_say_nothing() -> None:
    curve = Polygon.from_epsilon_delta([(800.0, 1e-3), (1.0, 0.1)])
    assert np.allclose(curve(ALPHAS), Polygon.from_epsilon_delta([(1.0, 0.1)])(ALPHAS))
    check_invariants(curve)


@pytest.mark.parametrize("curve", [GaussianTradeOff(1.0), LaplaceTradeOff(2.0), GaussianTradeOff(0.05)])
def test_tangents_lie_below_and_touch(curve: TradeOff) -> None:
    epsilons = np.linspace(-12.0, 12.0, 2401)
    lower = tangents(curve, epsilons)
    assert np.all(lower(ALPHAS) <= curve(ALPHAS) + 1e-15)
    assert np.allclose(lower.delta(epsilons), curve.delta(epsilons), atol=1e-14)
    assert np.max(curve(ALPHAS) - lower(ALPHAS)) < 2e-4


# the GDP parameter and its regret


def regret_by_brute_force(strong: TradeOff, weak: TradeOff) -> float:
    alphas = np.linspace(0.0, 1.0, 40_001)
    target = weak(alphas)
    low, high = 0.0, 0.5
    while high - low > 1e-7:
        k = 0.5 * (low + high)
        if np.all(strong(np.minimum(alphas + k, 1.0)) - k <= target + 1e-12):
            high = k
        else:
            low = k
    return high


@pytest.mark.family
@pytest.mark.parametrize("name", CURVES)
def test_gdp_of_every_curve(name: str) -> None:
    curve = CURVES[name]
    mu, regret, floor = fit_gdp(curve)
    weak = GaussianTradeOff(mu)
    assert np.all(weak(ALPHAS) - floor <= curve(ALPHAS) + 1e-13)
    if mu > 1e-6 and not isinstance(curve, GaussianTradeOff):  # the least: a little less is not below everywhere
        alphas = np.concatenate(
            (ALPHAS, curve.alpha if isinstance(curve, Polygon) else [0.5 * math.exp(-curve.effect / 2)])
        )
        assert np.any(GaussianTradeOff(mu * (1.0 - 1e-6))(alphas) > curve(alphas))
    assert regret == pytest.approx(regret_by_brute_force(curve, weak), abs=3e-5)


def test_gdp_closed_forms() -> None:
    assert fit_gdp(GaussianTradeOff(2.0)) == (2.0, 0.0, 0.0)
    for epsilon in (0.1, 1.0, 5.0):
        response = fit_gdp(Polygon.from_epsilon_delta([(epsilon, 0.0)]))  # randomised response
        assert response.mu == pytest.approx(-2.0 * float(ndtri(1.0 / (1.0 + math.exp(epsilon)))), rel=1e-12)
        assert fit_gdp(LaplaceTradeOff(epsilon)).mu < response.mu
        near = fit_gdp(tangents(LaplaceTradeOff(epsilon), np.linspace(-6.0, 6.0, 2401)))
        assert near.mu == pytest.approx(fit_gdp(LaplaceTradeOff(epsilon)).mu, rel=1e-4)
    near = fit_gdp(tangents(GaussianTradeOff(1.0), np.linspace(-9.0, 9.0, 3601)))
    assert 1.0 <= near.mu < 1.002
    assert near.regret < 3e-4


def test_regret_is_a_distance_only_one_way() -> None:
    assert delta_divergence(GaussianTradeOff(1.0), GaussianTradeOff(1.0)) <= 1e-6
    assert delta_divergence(GaussianTradeOff(2.0), GaussianTradeOff(1.0)) <= 1e-6
    shift = delta_divergence(GaussianTradeOff(1.0), GaussianTradeOff(2.0))
    assert shift == pytest.approx(float(ndtr(-0.5) - ndtr(-1.0)), abs=1e-6)  # on the symmetric diagonal


# certified curves of a privacy loss


@pytest.fixture(scope="module")
def sampled() -> dict[str, TradeOffBounds]:
    step = Mixture.poisson(1, 0.1, 1.0)
    return {
        direction: tradeoff_bounds(PrivacyLoss.of(step, direction), nodes=48, fprs=[0.1])
        for direction in ("present-first", "absent-first", "both")
    }


def test_few_nodes_are_placed_where_the_curve_bends() -> None:
    bounds = tradeoff_bounds(PrivacyLoss.gaussian(1.0), nodes=64)
    truth, lower, upper = GaussianTradeOff(1.0)(ALPHAS), bounds.lower(ALPHAS), bounds.upper(ALPHAS)
    assert np.all(lower <= truth)
    assert np.all(truth <= upper)
    assert np.max(upper - lower) < 0.004
    assert len(bounds.lower.alpha) <= 140  # two for each node, and few for those that round


def test_a_weak_mechanism_has_curves_as_close() -> None:
    """Nearly all of its epsilons are below 0.1."""
    bounds = tradeoff_bounds(PrivacyLoss.gaussian(50.0), nodes=64)
    truth, lower, upper = GaussianTradeOff(0.02)(ALPHAS), bounds.lower(ALPHAS), bounds.upper(ALPHAS)
    assert np.all(lower <= truth)
    assert np.all(truth <= upper)
    assert np.max(upper - lower) < 1e-4


@pytest.mark.ci
def test_one_step_lies_between_the_curves(sampled: dict[str, TradeOffBounds]) -> None:
    truth = 0.9 * (1.0 - ALPHAS) + 0.1 * GaussianTradeOff(1.0)(ALPHAS)  # (1 - q) Id + q G_mu
    bounds = sampled["present-first"]
    assert np.all(bounds.lower(ALPHAS) <= truth)
    assert np.all(truth <= bounds.upper(ALPHAS))
    assert np.max(bounds.upper(ALPHAS) - bounds.lower(ALPHAS)) < 1e-3
    other = sampled["absent-first"]  # its curve is the inverse: beta as type-I error
    assert np.all(other.lower(truth) <= ALPHAS + 1e-15)
    assert np.all(other.upper(truth) + 1e-15 >= ALPHAS)
    for each in sampled.values():
        for curve in (each.lower, each.upper):
            check_invariants(curve, 1e-13)


@pytest.mark.ci
def test_the_direction_of_reconstruction(sampled: dict[str, TradeOffBounds]) -> None:
    """Absent against present is the reconstruction game; the other direction has another number."""
    rero = sampled["present-first"].rero(0.1)
    assert rero.lower <= 0.128914369164536 <= rero.upper
    assert rero.width < 1e-5
    reverse = sampled["absent-first"].rero(0.1)
    assert reverse.upper < rero.lower or reverse.lower > rero.upper


@pytest.mark.ci
def test_both_directions_are_the_symmetrised_curve(sampled: dict[str, TradeOffBounds]) -> None:
    present, both = sampled["present-first"], sampled["both"]
    for one in (present, present.inverse()):
        assert np.all(both.lower(ALPHAS) <= one.upper(ALPHAS) + 1e-12)
    inverse = both.inverse()
    assert np.allclose(inverse.lower(ALPHAS), both.lower(ALPHAS), atol=1e-6)


@pytest.mark.ci
def test_the_advantage_is_delta_at_zero(sampled: dict[str, TradeOffBounds]) -> None:
    truth = 0.1 * GaussianTradeOff(1.0).advantage()
    for bounds in sampled.values():
        interval = bounds.advantage()
        assert interval.lower <= truth <= interval.upper
        assert interval.width < 1e-5
        assert bounds.upper.advantage() <= truth <= bounds.lower.advantage()


def test_full_batches_give_the_gaussian_curve() -> None:
    loss = PrivacyLoss.of(Mixture.full(2, 40.0)).compose(100)
    bounds = tradeoff_bounds(loss, nodes=64)
    truth = GaussianTradeOff(0.5)(ALPHAS)
    assert np.all(bounds.lower(ALPHAS) <= truth + 1e-15)
    assert np.all(truth <= bounds.upper(ALPHAS) + 1e-15)
    assert fit_gdp(bounds.lower).mu == pytest.approx(0.5, rel=2e-2)
    assert fit_gdp(bounds.lower).mu >= 0.5


def test_a_loss_of_nothing() -> None:
    bounds = tradeoff_bounds(PrivacyLoss.of(Mixture([0.0, 0.0], [0.5, 0.5], 1.0)))
    assert np.allclose(bounds.lower(ALPHAS), 1.0 - ALPHAS, atol=1e-12)
    assert np.allclose(bounds.upper(ALPHAS), 1.0 - ALPHAS, atol=1e-12)
    assert bounds.advantage().upper == 0.0
