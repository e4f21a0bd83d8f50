"""The faults that tests of a recorded run look for."""

import doctest
from collections.abc import Sequence

import pytest

from dpspec.stats.conformance.measurement import Measurement
from dpspec_recording.outcomes import faults
from dpspec_recording.outcomes.conditions import ASSUMABLE, CONDITIONS, TESTED, channel_of, stated
from dpspec_recording.outcomes.faults import Fault

FAULT = Fault(
    name="a-fault", condition="noise-scale", title="steps", observed="reported", source="here", advice="Mend it."
)


def test_the_example_of_a_fault() -> None:
    assert doctest.testmod(faults).failed == 0
    assert doctest.testmod(faults).attempted >= 3


@pytest.mark.parametrize(
    ("count", "whole", "expected"), [(0, True, (1.0, "steps, exact", True)), (3, False, (0.0, "steps", False))]
)
def test_a_comparison_of_all_steps_is_exact(count: int, whole: bool, expected: Sequence[object]) -> None:
    test = FAULT.none_found(count, "note", 0.1, whole=whole)
    assert (test.check.p_value, test.check.test, test.is_exact) == tuple(expected)
    assert (test.check.note, test.check.detectable, test.text) == ("note", 0.1, "steps")
    assert (test.name, test.channel, test.fix) == ("a-fault", "noise", "Mend it.")


def test_a_measurement_keeps_its_title_and_may_have_other_advice() -> None:
    test = FAULT.measured(Measurement("other", 1.0, 2.0, 0.5, None), "", limit_of="one-step", advice="Else.")
    assert (test.text, test.check.test, test.limit_of, test.fix) == ("other", "other", "one-step", "Else.")


def test_each_condition_has_a_statement_or_advice() -> None:
    """Channels of which nothing more is known are conditions too, which a user can assume."""
    channels = {condition.channel for condition in CONDITIONS.values()}
    silent = [c.name for c in CONDITIONS.values() if not c.text and not c.advice and c.name not in channels]
    assert silent == ["noise-shape"]
    assert all(condition.advice.endswith(".") for condition in CONDITIONS.values() if condition.advice)
    assert {channel_of(name) for name in ASSUMABLE} == channels - {None}
    assert {"accounting", "canaries", "nothing-unseen"} <= {*TESTED}


def test_an_assumption_states_its_condition() -> None:
    assert stated("order", "; because").text == f"{CONDITIONS['order'].text}; because"
    assert stated("order", status="false", text="none").text == "none"
    with pytest.raises(KeyError):
        stated("ordr")
