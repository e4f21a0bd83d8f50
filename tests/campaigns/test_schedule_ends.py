"""Both ends of the bounds of a few random recordings; by hand: ``python tests/campaigns/schedule_ends.py``."""

import pytest
from campaigns import schedule_ends as campaign


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_the_truth_is_between_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(4, seed=7) == 0, capsys.readouterr().out
