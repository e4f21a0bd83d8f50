"""Theorem F3: discrete Gaussian noise on integer vectors, enumerated, against the Gaussian that dominates it."""

import math
from typing import Any, TypeAlias

import mpmath
import numpy as np
import pytest

from dpspec.accounting import Direction, Mixture, PrivacyLoss
from dpspec.accounting.discrete_noise import DISCRETE_SCALE, dominating_noise_multiplier

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def masses(scale: float, reach: int) -> Array:
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    weights = np.exp(-0.5 * (x / scale) ** 2)
    return weights / math.fsum(weights)


def pair(scale: float, shift: tuple[int, ...], rate: float) -> tuple[Array, Array]:
    """The laws with and without a record, drawn with probability ``rate``, that moves the integers by ``shift``."""
    reach = math.ceil(9.0 * scale) + max(map(abs, shift))
    law, moved = masses(scale, reach), []
    for part in shift:
        moved.append(np.roll(law, part))
        moved[-1][: max(part, 0)] = 0.0
    without, shifted = law, moved[0]
    for other in moved[1:]:
        without, shifted = np.multiply.outer(without, law), np.multiply.outer(shifted, other)
    return (1.0 - rate) * without + rate * shifted, without


@pytest.mark.parametrize(("scale", "shift"), [(40.0, (40,)), (201.0, (150,)), (12.0, (9, 5)), (8.0, (3, 3, 3))])
@pytest.mark.parametrize("rate", [1.0, 0.2])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_a_gaussian_of_less_variance_dominates(
    scale: float, shift: tuple[int, ...], rate: float, epsilon: float
) -> None:
    """Hockey-stick divergences of enumerated vectors, in both directions; 9 scales leave 1e-18."""
    norm = math.hypot(*shift)
    for variance, is_above in ((scale**2 - 16.0, True), (scale**2 + 16.0, False)):
        sigma = math.sqrt(variance) / norm
        directions: tuple[Direction, ...] = ("present-first", "absent-first")
        for direction in directions:
            present, absent = pair(scale, shift, rate)
            first, second = (present, absent) if direction == "present-first" else (absent, present)
            delta = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())
            step = Mixture.full(1, sigma) if rate == 1.0 else Mixture.poisson(1, rate, sigma)
            of_gaussian = PrivacyLoss(((step, 1),), direction).delta(epsilon)
            if is_above:
                assert delta <= of_gaussian.upper + 1e-15
            elif rate == 1.0:
                assert delta >= of_gaussian.lower - 1e-15


def test_the_noise_multiplier_is_rounded_down() -> None:
    for sigma in (0.01, 1.0, 3.7, 1000.0):
        exact = mpmath.mpf(sigma) * mpmath.sqrt(1 - mpmath.mpf(16) / DISCRETE_SCALE**2)
        assert exact * (1 - mpmath.mpf("2e-13")) < dominating_noise_multiplier(sigma) < exact
