"""The smallest rho of a curve of Rényi divergences."""

import numpy as np
import pytest

from dpspec.accounting import Floats, smallest_rho


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
