"""A few leaking trainings; by hand: ``python tests/campaigns/unprivate_recordings.py``."""

import pytest
from campaigns import unprivate_recordings as campaign

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.ci
@pytest.mark.parametrize("words", ["in_a_buffer", "declared", "ten_indices", "same_noise"])
def test_leaks_are_flagged_or_named(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(words) == 0, capsys.readouterr().out
