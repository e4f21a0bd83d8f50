"""The campaign over teams' scripts, in small: how many lines a recording adds, and what a replay finds beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import team_scripts as campaign

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ["opacus_tabular", "opacus_images", "opacus_lora", "lightning_opacus"])
def test_two_lines_are_all_that_a_recording_adds_to_a_script_with_opacus(name: str) -> None:
    added = campaign.added(name)
    assert [line.partition("(")[0] for line in added] == ["import dpspec", "with dpspec.record"]


def test_a_loop_of_one_s_own_says_five_things_a_step() -> None:
    added = {line.partition("(")[0] for line in campaign.added("plain_microbatches")}
    told = {"run.sampled", "run.clipped", "run.summed", "run.noised", "run.stepped"}
    assert added == {"import dpspec", "recording = dpspec.record", "with recording as run:", *told}


@pytest.mark.ci
def test_what_no_recording_shows_a_replay_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.of_preparation()
    told = capsys.readouterr().out
    assert "dpspec.replay  records as prepared" in told
    assert "not found: one run does not show where its records were prepared" in told
