"""How facts of ranks and of parts become one."""

import doctest
from dataclasses import fields, replace
from typing import get_args

import msgspec
import pytest

from dpspec_recording.folder import merging
from dpspec_recording.folder.audit_facts import AuditFacts
from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.merging import (
    Across,
    joined,
)
from dpspec_recording.observers.sensitivity.clip_limits import ClipLimitFacts
from dpspec_recording.observers.update_rule.reported_gradients import GradientFacts
from dpspec_recording.step_replay.facts import ReplayFacts, SizeFacts


def test_the_example_of_joined_facts() -> None:
    results = doctest.testmod(merging)
    assert results.failed == 0
    assert results.attempted >= 2


def test_each_fact_of_the_recorder_says_how_it_is_joined() -> None:
    own = [each for kind in (Facts, AuditFacts) for each in fields(kind) if each.name != "observed"]
    assert all({*each.metadata} == {*get_args(Across)} for each in own)


@pytest.mark.parametrize(
    ("one", "other", "of_ranks", "of_parts"),
    [
        (
            AuditFacts(steps=40, audited=20, share=0.5),
            AuditFacts(steps=30, audited=30, share=0.2),
            AuditFacts(steps=30, audited=20, share=0.2),
            AuditFacts(steps=70, audited=50, share=0.2),
        ),
        (
            ClipLimitFacts(larger=2, smallest=0.5, largest=2.0),
            ClipLimitFacts(larger=3, smallest=1.0, largest=1.5),
            ClipLimitFacts(larger=3, smallest=0.5, largest=2.0),
            ClipLimitFacts(larger=5, smallest=0.5, largest=2.0),
        ),
        (
            GradientFacts(steps=4, summed=4, different=0, hidden=0.1),
            GradientFacts(steps=5, summed=4, different=1, hidden=0.3),
            GradientFacts(steps=4, summed=4, different=0, hidden=0.1),
            GradientFacts(steps=9, summed=8, different=1, hidden=0.3),
        ),
        (
            SizeFacts(steps=1, lowest=-1.0, highest=-0.9, removed=0.5),
            SizeFacts(steps=2, lowest=-1.1, highest=0.0, removed=0.7),
            SizeFacts(steps=3, lowest=-1.1, highest=0.0, removed=0.7),
            SizeFacts(steps=3, lowest=-1.1, highest=0.0, removed=0.7),
        ),
    ],
)
def test_facts_of_ranks_are_of_the_same_steps_and_facts_of_parts_of_other_steps(
    one: object, other: object, of_ranks: object, of_parts: object
) -> None:
    assert joined([one, other], "ranks") == of_ranks
    assert joined([one, other], "parts") == of_parts


SIZES = SizeFacts(steps=1, lowest=-1.0, highest=-0.9, removed=0.5)
REPLAYS = ReplayFacts(
    tried=9,
    replayed=8,
    replacements=30,
    moved=1.5,
    failure="",
    origins={"table": 1},
    varying=0,
    testing=0,
    sizes=SIZES,
    replaced=("float32 (B, 20)",),
    unreplayed=(),
)


def test_facts_within_facts_are_joined_over_those_that_have_them() -> None:
    without = replace(REPLAYS, sizes=None, failure="why", unreplayed=("why",))
    assert joined([REPLAYS, without], "parts") == replace(
        REPLAYS, tried=18, replayed=16, replacements=60, origins={"table": 2}, failure="why", unreplayed=("why",)
    )
    assert joined([without, without], "parts").sizes is None


def test_the_form_on_disk_has_the_names() -> None:
    written = msgspec.to_builtins(REPLAYS)
    assert isinstance(written, dict)
    assert {name: written[name] for name in ("tried", "moved", "sizes")} == {
        "tried": 9,
        "moved": 1.5,
        "sizes": {"steps": 1, "lowest": -1.0, "highest": -0.9, "removed": 0.5},
    }
    assert msgspec.convert(written, ReplayFacts) == REPLAYS
    with pytest.raises(ValueError, match="Expected `object`, got `array`"):
        msgspec.convert([*written.values()], ReplayFacts)
    with pytest.raises(ValueError, match="missing required field `tried`"):
        msgspec.convert({name: value for name, value in written.items() if name != "tried"}, ReplayFacts)
