"""Pairs of responses against sums by mpmath; the smallest rho and epsilon of a curve of Rényi divergences."""

import mpmath
import numpy as np
import pytest

from dpspec.accounting import Floats, ResponseMixture, best_epsilon, laplace_rdp, smallest_epsilon, smallest_rho
from dpspec.accounting.responses import _largest_on_chords  # smallest_rho refines until its cells hardly differ


@pytest.mark.parametrize("epsilon", [0.2, 3.0])
def test_the_smallest_rho_of_randomized_response_is_the_largest_ratio(epsilon: float) -> None:
    def divergences(orders: Floats) -> Floats:
        """ln(cosh((a - 1/2) epsilon) / cosh(epsilon / 2)) / (a - 1), by the addition theorem for small arguments."""
        x = (orders - 1.0) * epsilon
        small = np.minimum(x, 1.0)
        near = np.log1p(2.0 * np.sinh(0.5 * small) ** 2 + np.tanh(0.5 * epsilon) * np.sinh(small))
        far = np.logaddexp(x + 0.5 * epsilon, -x - 0.5 * epsilon) - np.logaddexp(0.5 * epsilon, -0.5 * epsilon)
        return np.where(x < 1.0, near, far) / (orders - 1.0)

    orders = 1.0 + np.geomspace(1e-6, 1e4, 200_001)
    best = float(np.max(divergences(orders) / orders))
    rho = smallest_rho(divergences, epsilon)
    assert rho.lower <= best * (1.0 + 1e-9)
    assert best <= rho.upper
    assert rho.relative_width <= 1.1e-4


@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.3])
@pytest.mark.parametrize("rho", [1e-6, 0.3, 5000.0, None])
def test_the_smallest_epsilon_is_the_one_of_a_dense_grid_from_a_few_orders(rho: float | None, delta: float) -> None:
    computed: list[float] = []

    def divergences(orders: Floats) -> Floats:
        computed.extend(orders.tolist())
        return laplace_rdp(orders, 0.5) if rho is None else rho * orders

    orders = 1.0 + np.geomspace(1e-10, 1e12, 200_001)
    best = best_epsilon(orders, divergences(orders), delta).epsilon
    computed.clear()
    assert best * (1.0 - 1e-7) <= smallest_epsilon(divergences, delta).upper <= best * (1.0 + 1e-6)
    assert len(computed) < 80


def test_an_infinite_divergence_says_nothing_of_larger_orders() -> None:
    def divergences(orders: Floats) -> Floats:
        return np.where(orders < 3.0, np.inf, 0.3 * orders)

    orders = 1.0 + np.geomspace(2.0, 1e12, 200_001)
    best = best_epsilon(orders, divergences(orders), 1e-5).epsilon
    assert best * (1.0 - 1e-7) <= smallest_epsilon(divergences, 1e-5).upper <= best * (1.0 + 1e-6)


def test_divergences_that_are_infinite_bound_no_epsilon() -> None:
    assert smallest_epsilon(lambda orders: np.full(orders.shape, np.inf), 1e-5).upper == np.inf


def test_the_largest_ratio_on_a_chord_is_the_one_of_a_grid() -> None:
    """Chords of products (a - 1) D that rise, fall and stay level, with maxima within and at the ends."""
    orders = np.array([1.2, 2.0, 5.0, 40.0, 41.0, 90.0])
    values = np.array([0.001, 0.9, 2.0, 2.5, 2.5 * 39.0 / 40.0, 6.0])
    products = (orders - 1.0) * values
    inner = 0
    for i, found in enumerate(_largest_on_chords(orders, values).tolist()):
        a = np.linspace(orders[i], orders[i + 1], 200_001)
        ratios = np.interp(a, orders[i : i + 2], products[i : i + 2]) / (a * (a - 1.0))
        assert found == pytest.approx(float(ratios.max()), rel=1e-8)
        inner += 0 < int(ratios.argmax()) < len(a) - 1
    assert inner


def test_the_rounding_of_many_losses_is_charged_to_both_pairs() -> None:
    rng = np.random.default_rng(5)
    losses, weights = np.linspace(0.0, 6.0, 2000), rng.dirichlet(np.ones(2000))
    mixture = ResponseMixture(losses, weights)
    above, below = mixture.above(), mixture.below()
    assert below is not None
    with mpmath.workdps(30):
        for epsilon in (0.0, 1.0, 3.0):
            delta = mpmath.fsum(
                mpmath.mpf(weight) * (1 - mpmath.exp(mpmath.mpf(epsilon) - loss)) / (1 + mpmath.exp(-mpmath.mpf(loss)))
                for loss, weight in zip(losses.tolist(), weights.tolist(), strict=True)
                if loss > epsilon
            )
            for direction in ("present-first", "absent-first"):
                assert below.log_delta_bounds(epsilon, direction)[1] <= mpmath.log(delta)
                assert mpmath.log(delta) <= above.log_delta_bounds(epsilon, direction)[0]
