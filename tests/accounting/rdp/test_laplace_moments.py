"""Renyi divergences of the sampled Laplace mechanism: against mpmath, a closed form, and certified epsilons."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dpspec.accounting import (
    Laplace,
    Mixture,
    PrivacyLoss,
    best_epsilon,
    composed_rdp,
    gaussian_rdp,
    laplace_rdp,
    sampled_laplace_rdp,
)

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


def test_shape_monotonicity_and_limits() -> None:
    orders = np.array([[1.2], [3.0], [30.0]])
    values = sampled_laplace_rdp(orders, np.array([0.01, 0.1, 0.9]), 1.0)
    assert values.shape == (3, 3)
    assert np.all(np.diff(values, axis=0) > 0.0)
    assert np.all(np.diff(values, axis=1) > 0.0)
    assert np.all(values <= np.log1p(np.array([0.01, 0.1, 0.9]) * math.expm1(1.0)))
    assert sampled_laplace_rdp(2.0, 0.1, 0.0) == 0.0


def test_composition_and_conversion_stay_above_the_certified_epsilon() -> None:
    phases = [(Laplace(1.0, 1.0, 0.1), 100), (Mixture.full(1, 4.0), 3)]
    total = composed_rdp(phases, [4.0])
    assert total == pytest.approx(100 * sampled_laplace_rdp(4.0, 0.1, 1.0) + 3 * gaussian_rdp(4.0, 0.25), rel=1e-14)
    orders = 1.0 + np.geomspace(1e-2, 1e3, 400)
    best = best_epsilon(orders, composed_rdp(phases, orders), 1e-5)
    exact = PrivacyLoss(tuple(phases)).epsilon(1e-5)
    assert not best.at_edge
    assert exact.upper < best.epsilon < 1.3 * exact.upper
