"""The Gaussian profile against 50 digits, far into the tail; compositions that have it as their closed form."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accounting_oracle import gaussian_delta, gaussian_epsilon

from dpspec.accounting import Mixture, PrivacyLoss, gaussian


@given(st.floats(math.log(1e-5), math.log(60.0)).map(math.exp), st.floats(-8.0, 38.0))
def test_profile_within_its_stated_error(mu: float, u: float) -> None:
    epsilon = mu * (u + 0.5 * mu)
    with mpmath.workdps(60):
        truth = gaussian_delta(epsilon, mu)
        error = truth * gaussian.relative_error(epsilon, mu) + mpmath.mpf(5e-324)
        assert abs(mpmath.mpf(float(gaussian.delta(epsilon, mu))) - truth) <= error
        interval = gaussian.delta_interval(epsilon, mu)
        assert interval.lower <= truth <= interval.upper


def test_profile_down_to_1e_300() -> None:
    with mpmath.workdps(60):
        for mu, epsilon in ((1.0, 37.3), (0.01, 0.373), (30.0, 1500.0)):
            truth = gaussian_delta(epsilon, mu)
            assert float(mpmath.log(truth)) == pytest.approx(float(gaussian.log_delta(epsilon, mu)), rel=1e-13)
            assert float(mpmath.log(truth)) < -600.0


@pytest.mark.parametrize("u", [60.1, 200.0, 1e4])
def test_small_effects_far_out_have_all_digits(u: float) -> None:
    """The largest exponent u^2 / 2 has an error of 2e-16 of itself; a series without its fifth term one of 1e-11."""
    mu = 1e-3
    epsilon = mu * (u + 0.5 * mu)
    with mpmath.workdps(60):
        z = mpmath.mpf(epsilon) / mpmath.mpf(mu) - mpmath.mpf(mu) / 2
        drop = (mpmath.erfc(z / mpmath.sqrt(2)) - mpmath.exp(epsilon) * mpmath.erfc((z + mu) / mpmath.sqrt(2))) / 2
        error = abs(mpmath.log(drop) - mpmath.mpf(float(gaussian.log_delta(epsilon, mu))))
        assert error < 1e-12 + 5e-16 * u * u


@pytest.mark.parametrize("steps", [1, 10**2, 10**4, 10**6])
@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-12, 1e-20, 1e-30])
def test_composed_gaussian_is_never_below_the_truth(steps: int, delta: float) -> None:
    sigma = math.sqrt(steps)  # mu = 1 after all steps
    interval = PrivacyLoss.of(Mixture.full(1, sigma)).compose(steps).epsilon(delta)
    with mpmath.workdps(50):
        truth = gaussian_epsilon(mpmath.sqrt(steps) / mpmath.mpf(sigma), delta, float(interval.upper))
        assert interval.lower <= truth <= interval.upper
    assert interval.relative_width < 1e-12


def test_arrays_broadcast_and_epsilon_is_zero_for_a_large_delta() -> None:
    values = gaussian.epsilon(np.array([[1e-6], [0.5]]), np.array([0.5, 1.0, 2.0]))
    assert values.shape == (2, 3)
    assert np.all(values[0] > 0.0)
    np.testing.assert_array_equal(values[1, :2], 0.0)  # the total variation at mu = 1 is 0.38
    np.testing.assert_array_equal(gaussian.delta([math.inf, -math.inf], 1.0), [0.0, 1.0])


@given(st.floats(1e-3, 20.0), st.floats(1e-30, 0.3))
def test_epsilon_returns_the_safe_end(mu: float, delta: float) -> None:
    epsilon = gaussian.epsilon(delta, mu)
    assert float(gaussian.log_delta(epsilon, mu)) <= math.log(delta)


@pytest.mark.parametrize("sigma", [1e-4, pytest.param(1e-99, marks=pytest.mark.ci)])
def test_effects_beyond_any_grid_are_bounded_without_one(sigma: float) -> None:
    loss = PrivacyLoss.of(Mixture.poisson(3, 0.1, sigma)).compose(10)
    interval = loss.epsilon(1e-6)
    effect = 3.0 / sigma * math.sqrt(10)
    assert interval.lower <= 0.5 * effect * effect <= interval.upper
    assert interval.upper == pytest.approx(0.5 * effect * effect, rel=0.1)
    found = loss.delta(1.0)  # a draw shows a member
    assert found.lower <= 1.0 - 0.9**30 <= found.upper
    assert found.relative_width < 1e-5
