"""Certified deltas meet simulated ones; 300 settings by hand: ``python tests/campaigns/monte_carlo.py``."""

import numpy as np
import pytest
from campaigns import monte_carlo

from dpspec.accounting import Mixture


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.ci) for number in range(1, 10))])
def test_certified_deltas_meet_simulated_ones(number: int) -> None:
    setting = monte_carlo.setting_of(0, number)
    found = monte_carlo.compare(setting, np.random.default_rng([0, number, 1]), 4000)
    assert found.meets, (setting.name, found)


def test_noise_that_is_a_tenth_less_than_declared_is_found() -> None:
    simulated = monte_carlo._mixture(monte_carlo._drawn(2, 0.5), (np.zeros(1), np.ones(1)), 1.0)
    for declared, is_right in ((1.0, True), (1.1, False)):
        phases = ((Mixture.poisson(2, 0.5, declared), simulated, 20),)
        setting = monte_carlo.Setting("two records", phases, "present-first", 0.05)
        assert monte_carlo.compare(setting, np.random.default_rng(1), 4000).meets == is_right
