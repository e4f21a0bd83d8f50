"""The power of replays; the table by hand: ``python tests/campaigns/replay_power.py``."""

import pytest
from campaigns.replay_power import SCHEDULES, run


@pytest.mark.ci
@pytest.mark.parametrize("name", ["mixup", "scaled by the largest norm"])
def test_a_fault_at_all_steps_is_found_and_the_same_run_without_it_is_proved(name: str) -> None:
    assert run(name, SCHEDULES["all"]).status == ("open", "deviates")
    assert run(name, lambda step, source: False).status == ("proved", "no-deviation-found")
