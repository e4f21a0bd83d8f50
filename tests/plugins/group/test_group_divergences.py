"""Rényi divergences and rho of DP-SGD for groups, against quadrature on a plain grid."""

import math

import numpy as np
import pytest

from dpspec.contract import Phase
from dpspec_group import theory


def phase(**options: object) -> Phase:
    sampling = {"scheme": "poisson", "rate": 0.01}
    return Phase({"steps": 100, "noise_multiplier": 1.1, "clip_norm": 1.0, "sampling": sampling, **options})


def divergence(k: int, rate: float, sigma: float, order: float, direction: str) -> float:
    z = np.linspace(-60.0, 60.0, 240_001)
    base = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)
    terms = [
        math.log(math.comb(k, j) * rate**j * (1.0 - rate) ** (k - j)) - 0.5 * np.square(z - j / sigma)
        for j in range(k + 1)
    ]
    mixed = np.logaddexp.reduce(terms, axis=0) - 0.5 * math.log(2.0 * math.pi)
    first, second = (mixed, base) if direction == "remove" else (base, mixed)
    return math.log(float(np.sum(np.exp(order * first + (1.0 - order) * second))) * (z[1] - z[0])) / (order - 1.0)


@pytest.mark.family
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("seed", range(10))
def test_divergences_agree_with_a_plain_grid(direction: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, rate, sigma = int(rng.integers(1, 4)), 10.0 ** rng.uniform(-2, -0.3), rng.uniform(0.8, 3.0)
    order = float(rng.uniform(1.2, 8.0))
    one = phase(noise_multiplier=sigma, sampling={"scheme": "poisson", "rate": rate})
    found = theory.rdp_interval([one], k, 1000, order, direction)
    exact = 100.0 * divergence(k, rate, sigma, order, direction)
    assert found.lower * (1.0 - 1e-7) <= exact <= found.upper * (1.0 + 1e-7)
    assert found.relative_width < 1e-8
    rho = theory.rho_interval([one], k, 1000, direction)
    assert found.upper <= rho.upper * order * (1.0 + 1e-8)


def test_rho_is_not_amplified_and_orders_beyond_quadrature_have_bounds() -> None:
    exact = 100.0 * 9.0 / (2.0 * 1.1**2)
    rho = theory.rho_interval([phase()], 3, 1000, "both")
    assert rho.lower <= exact <= rho.upper
    far = theory.rdp_interval([phase()], 3, 1000, 1e9, "both")
    assert far.upper >= 1e9 * exact * (1.0 - 1e-8)
    assert far.lower >= 1e9 * exact * (1.0 - 1e-6)
    assert theory.rho_interval([phase()], 1, 1000, "add").lower == 0.0
    shuffled = phase(sampling={"scheme": "shuffled", "batch_size": 10})
    assert theory.rdp_interval([shuffled], 1, 1000, 2.0, "both").lower == 0.0
    allocated = phase(sampling={"scheme": "random-allocation", "epoch_steps": 10})
    assert theory.rdp_interval([allocated], 1, 1000, 2.0, "both").upper == math.inf
