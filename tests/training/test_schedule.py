"""Phases become steps; what makes no sense is refused by name."""

from __future__ import annotations

import pytest

from dpspec.training.loop.dpsgd import Schedule
from dpspec.training.loop.samplers import Full, Poisson

PHASE = {"steps": 2, "noise_multiplier": 0.5, "clip_norm": 3.0, "sampling": {"scheme": "poisson", "rate": 0.1}}


def test_phases_follow_each_other():
    schedule = Schedule.of([PHASE, {**PHASE, "steps": 1, "sampling": {"scheme": "full"}}], 7)
    assert schedule.total == 3
    assert [phase.sampler for phase in schedule] == [Poisson(7, 0.1), Poisson(7, 0.1), Full(7)]
    assert schedule.phases[0].deviation == 1.5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", 0),
        ("noise_multiplier", -1.0),
        ("noise_multiplier", float("nan")),
        ("clip_norm", 0.0),
        ("clip_norm", float("inf")),
    ],
)
def test_refused(key, value):
    with pytest.raises(ValueError, match=key):
        Schedule.of([{**PHASE, key: value}], 7)
