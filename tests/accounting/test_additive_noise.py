"""Log-concave noise against the closed form of Gaussian noise and against mpmath's quadrature of the densities."""

from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import norm
from support.logistic import Gumbel, Logistic

from dpspec.accounting import DIRECTIONS, Direction, LogConcaveNoise, Mixture, PrivacyLoss


class Normal(LogConcaveNoise):
    is_symmetric = True

    def log_density(self, z: Any) -> Any:
        return norm.logpdf(z)

    def log_mass(self, low: Any, high: Any) -> Any:
        left, right = np.where(low > 0.0, -high, low), np.where(low > 0.0, -low, high)
        return log_ndtr(right) + np.log(-np.expm1(log_ndtr(left) - log_ndtr(right)))


@pytest.mark.parametrize(("scale", "steps"), [(0.7, 1), (10.0, 100)])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_gaussian_noise_has_its_closed_form(scale: float, steps: int, delta: float) -> None:
    exact = PrivacyLoss([(Mixture.full(1, scale), steps)]).epsilon(delta)
    found = PrivacyLoss([(Normal(scale), steps)]).epsilon(delta)
    assert found.lower <= exact.lower <= exact.upper <= found.upper
    assert found.relative_width < 2e-4


def logistic(x: Any) -> Any:
    return mpmath.exp(-x) / (1 + mpmath.exp(-x)) ** 2


def gumbel(x: Any) -> Any:
    return mpmath.exp(-x - mpmath.exp(-x))


def quadrature(density: Any, effect: float, epsilon: float, direction: Direction) -> float:
    """The integral of (first - e^epsilon second)+ at 30 digits from the root on."""
    with mpmath.workdps(30):
        first, second = (effect, 0) if direction == "present-first" else (0, effect)

        def excess(x: Any) -> Any:
            return density(x - first) - mpmath.exp(epsilon) * density(x - second)

        low, high = mpmath.mpf(-5), mpmath.mpf(60)
        for _ in range(120):  # the excess changes its sign once
            middle = (low + high) / 2
            low, high = (middle, high) if (excess(middle) < 0) == (direction == "present-first") else (low, middle)
        steps = [0, 0.5, 1, 2, 4, 8, 16, 32, 64]
        ends = [low + s for s in steps] if direction == "present-first" else [low - s for s in steps[::-1]]
        return float(mpmath.quad(excess, ends))


@pytest.mark.family
@pytest.mark.parametrize("effect", [0.1, 2.0])
@pytest.mark.parametrize("share", [0.1, 0.6, 0.9])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("noise", "density"), [(Logistic, logistic), (Gumbel, gumbel)])
def test_one_release_has_the_integral_of_the_densities(
    noise: type[LogConcaveNoise], density: Any, effect: float, share: float, direction: Direction
) -> None:
    exact = quadrature(density, effect, share * effect, direction)
    found = PrivacyLoss([(noise(1.0, effect), 1)], direction).delta(share * effect)
    assert found.lower <= exact <= found.upper
    assert found.relative_width < 1e-2


@pytest.mark.parametrize(("scale", "sensitivity"), [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0)])
def test_other_arguments_are_refused(scale: float, sensitivity: float) -> None:
    with pytest.raises(ValueError, match=r"scale|sensitivity"):
        Logistic(scale, sensitivity)
