"""Correct recordings with one seed; by hand: ``python tests/campaigns/honest_recordings.py``."""

import pytest
from campaigns import honest_recordings as campaign


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", ["opacus", "plain loop"])
def test_correct_trainings_are_proved(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(words, seeds=1) == 0, capsys.readouterr().out
