"""What a plan says of time is a range that holds what trials took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.engine.running.run_options import span

#: By spec: the plan's seconds, and the processor's for all trials, on one core.
TOOK = {
    "quickstart": (4.95, 4.93),
    "black-box": (41.96, 16.29),
    "epsilon-2": (3.68, 1.92),
    "families": (1.82, 1.25),
    "hidden-states[1]": (0.27, 0.60),
    "many-runs": (40.98, 17.34),
    "planted-records-final[group_size=1]": (0.39, 2.35),
    "planted-records": (0.35, 2.35),
    "scores": (0.01, 0.01),
    "rero-digits": (9.81, 43.40),
    "rero-levels-16": (4.91, 8.52),
    "per-instance-digits": (10.76, 4.07),
}


@pytest.mark.parametrize("name", TOOK)
def test_what_was_measured_lies_within(name: str) -> None:
    planned, took = TOOK[name]
    low, high = span(planned)
    assert low <= took <= high


@given(st.floats(min_value=0.0, max_value=1e9))
def test_the_plan_lies_within(seconds: float) -> None:
    low, high = span(seconds)
    assert low <= seconds < high
