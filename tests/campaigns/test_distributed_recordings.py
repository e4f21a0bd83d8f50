"""A few attacks on trainings in several processes, one for each requirement."""

from pathlib import Path

import pytest
from campaigns import distributed_recordings as campaign

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        *("one_record_less_and_one_more", "a_second_sum", "recorded_windows_apart"),
        *("a_term_outside_of_the_criterion", "opposite_noise"),
    ],
)
def test_an_attack_is_not_proved(name: str, tmp_path: Path) -> None:
    assert campaign.attacked(name, tmp_path) != "PROVED"


@pytest.mark.ci
@pytest.mark.parametrize("sharded", [False, True])
def test_a_killed_rank_is_not_proved(sharded: bool, tmp_path: Path) -> None:
    assert campaign.kill(tmp_path / "run", 0.5, sharded=sharded) != "PROVED"


@pytest.mark.ci
def test_killed_jobs_are_not_proved_over_too_few_steps(tmp_path: Path) -> None:
    assert not campaign.resumed(tmp_path).startswith("wrong")
