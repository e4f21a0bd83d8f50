"""Trade-off curves against their definitions, and the smallest mu of a curve with its regret by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from support.rero_values import BY_NAME

from dpspec.accounting import GaussianTradeOff, Polygon, fit_gdp, gaussian

ALPHAS = np.concatenate(([0.0], np.geomspace(1e-12, 0.1, 60), np.linspace(0.1, 1.0, 91)[1:-1], [1.0 - 1e-9, 1.0]))


def tangents(mu: float) -> Polygon:
    """The lines of G_mu at some epsilons: a curve below it that touches it there."""
    epsilons = np.linspace(0.0, 9.0, 1801)
    return Polygon.from_epsilon_delta(zip(epsilons, gaussian.delta(epsilons, mu), strict=True))


CURVES = {
    "points": Polygon.from_epsilon_delta([(1.0, 1e-5), (2.0, 1e-6), (0.5, 0.1)]),
    "pure": Polygon.from_epsilon_delta([(1.5, 0.0)]),
    "delta alone": Polygon.from_epsilon_delta([(0.0, 0.3)]),
    "no claim": Polygon.from_epsilon_delta([]),
    "tangents": tangents(1.0),
}


def check_invariants(curve: GaussianTradeOff | Polygon, slack: float = 1e-15) -> None:
    beta, power = curve(ALPHAS), curve.tpr(ALPHAS)
    assert np.all((beta >= 0.0) & (beta <= 1.0 - ALPHAS + slack))
    assert np.all(power >= ALPHAS * (1.0 - 1e-12))  # tpr >= fpr
    assert np.allclose(beta + power, 1.0, atol=4e-13)
    assert np.all(np.diff(beta) <= slack)
    # convex: every point is below the chord of its neighbours
    left, right = np.diff(ALPHAS)[:-1], np.diff(ALPHAS)[1:]
    chord = (beta[:-2] * right + beta[2:] * left) / (left + right)
    assert np.all(beta[1:-1] <= chord + 4.0 * slack)


@pytest.mark.parametrize("curve", [*CURVES.values(), *map(GaussianTradeOff, (0.0, 1.0, 9.0))])
def test_invariants(curve: GaussianTradeOff | Polygon) -> None:
    check_invariants(curve)


@pytest.mark.parametrize("name", ["G1", "G2", "G3", "G4"])
def test_reference_values_of_the_gaussian(name: str) -> None:
    value = BY_NAME[name]
    curve = GaussianTradeOff(value.effect * math.sqrt(value.steps))
    assert curve.tpr(value.kappa) == pytest.approx(value.gamma, rel=1e-12)
    assert 1.0 - curve(value.kappa) == pytest.approx(value.gamma, rel=1e-9)


def test_small_powers_keep_their_digits() -> None:
    assert GaussianTradeOff(1.0).tpr(1e-300) == pytest.approx(float(ndtr(ndtri(1e-300) + 1.0)), rel=1e-15)
    assert Polygon.from_epsilon_delta([(2.0, 0.0)]).tpr(1e-300) == pytest.approx(math.exp(2.0) * 1e-300, rel=1e-14)
    assert Polygon.from_epsilon_delta([(2.0, 1e-30)]).tpr(0.0) == pytest.approx(1e-30)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 1.0)), max_size=6), st.floats(0.0, 1.0))
def test_epsilon_delta_pairs_by_brute_force(pairs: list[tuple[float, float]], alpha: float) -> None:
    curve = Polygon.from_epsilon_delta(pairs)
    lines = [1.0 - delta - math.exp(epsilon) * alpha for epsilon, delta in pairs]
    lines += [math.exp(-epsilon) * (1.0 - delta - alpha) for epsilon, delta in pairs]
    assert curve(alpha) == pytest.approx(max(0.0, *lines, 0.0), abs=1e-12)
    assert curve.tpr(alpha) >= alpha * (1.0 - 1e-12)
    check_invariants(curve, 1e-14)


def test_epsilons_beyond_float64_say_nothing() -> None:
    curve = Polygon.from_epsilon_delta([(800.0, 1e-3), (1.0, 0.1)])
    assert np.allclose(curve(ALPHAS), Polygon.from_epsilon_delta([(1.0, 0.1)])(ALPHAS))
    check_invariants(curve)


@pytest.mark.parametrize("mu", [0.05, 1.0])
def test_tangents_lie_below_and_touch(mu: float) -> None:
    lower, curve = tangents(mu), GaussianTradeOff(mu)
    assert np.all(lower(ALPHAS) <= curve(ALPHAS) + 1e-15)
    assert np.max(curve(ALPHAS) - lower(ALPHAS)) < 2e-4


def regret_by_brute_force(strong: Polygon, weak: GaussianTradeOff) -> float:
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


@pytest.mark.parametrize("name", CURVES)
def test_gdp_of_every_curve(name: str) -> None:
    curve = CURVES[name]
    mu, regret, floor = fit_gdp(curve)
    assert np.all(GaussianTradeOff(mu)(ALPHAS) - floor <= curve(ALPHAS) + 1e-13)
    if mu > 1e-6:  # the least: a little less is not below everywhere
        alphas = np.concatenate((ALPHAS, curve.alpha))
        assert np.any(GaussianTradeOff(mu * (1.0 - 1e-6))(alphas) > curve(alphas))
    assert regret == pytest.approx(regret_by_brute_force(curve, GaussianTradeOff(mu)), abs=3e-5)


def test_gdp_closed_forms() -> None:
    for epsilon in (0.1, 1.0, 5.0):
        response = fit_gdp(Polygon.from_epsilon_delta([(epsilon, 0.0)]))  # randomised response
        assert response.mu == pytest.approx(-2.0 * float(ndtri(1.0 / (1.0 + math.exp(epsilon)))), rel=1e-12)
    near = fit_gdp(tangents(1.0))
    assert 1.0 <= near.mu < 1.002
    assert near.regret < 3e-4
