"""False alarms and stops of e-values; the table by hand: ``python tests/campaigns/sequential_stops.py``."""

import pytest
from campaigns import sequential_stops
from scipy.stats import binom


@pytest.mark.family
@pytest.mark.parametrize("name", sequential_stops.nulls())
@pytest.mark.parametrize(("runs", "seeds"), [(60, 200), pytest.param(500, 1000, marks=pytest.mark.slow)])
def test_no_more_than_five_of_a_hundred_sound_audits_stop(name: str, runs: int, seeds: int) -> None:
    mechanism, claim = sequential_stops.nulls()[name]
    assert sequential_stops.false_alarms(mechanism, claim, runs, seeds) <= binom.ppf(0.999, seeds, 0.05)


def test_a_step_without_noise_is_refuted_after_a_few_dozen_more_runs_than_coins_need() -> None:
    assert max(sequential_stops.stops(sequential_stops.FAULTS["a step without noise"], 5)) < 1000
