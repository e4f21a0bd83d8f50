"""Full batches leave plain Gaussians, whose whole curve has a closed form: every delta of one call gets its answer."""

from __future__ import annotations

import math

import pytest

from dpspec.accounting import gaussian
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.pld import PrivacyLoss

DELTAS = [1e-4, 1e-12, 1e-6, 1e-8, 1e-10]


@pytest.mark.parametrize("direction", ["both", "present-first", "absent-first"])
def test_each_delta_of_one_call_is_answered_like_a_call_of_its_own(direction):
    loss = PrivacyLoss(((Mixture.full(1, 1.0), 2000), (Mixture.full(1, 2.0), 100)), direction)
    mu = (2000 + 100 / 4) ** 0.5
    together = loss.epsilons(DELTAS)
    assert together == [loss.epsilon(delta) for delta in DELTAS]
    for delta, found in zip(DELTAS, together, strict=True):
        assert found.lower <= gaussian.epsilon(delta, mu) <= found.upper
        assert found.lower > 1000.0


@pytest.mark.parametrize("sigma", [1e-4, 1e-7, 1e-30, 1e-100])
def test_effects_beyond_any_grid_have_the_bound_without_sampling(sigma: float) -> None:
    """Wide, but true, and soon."""
    loss = PrivacyLoss.of(Mixture.poisson(3, 0.1, sigma)).compose(10)
    interval = loss.epsilon(1e-6)
    effect = 3.0 / sigma * math.sqrt(10)
    assert interval.lower <= 0.5 * effect * effect <= interval.upper
    assert interval.upper == pytest.approx(0.5 * effect * effect, rel=0.1)
    assert loss.delta(1.0).upper == 1.0
