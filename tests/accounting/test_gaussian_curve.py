"""Full batches leave plain Gaussians, whose whole curve has a closed form: every delta of one call gets its answer."""

from __future__ import annotations

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
