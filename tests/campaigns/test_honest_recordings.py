"""The campaign over honest recordings with one seed; by hand: ``python tests/campaigns/honest_recordings.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import honest_recordings as campaign

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.ci
@pytest.mark.parametrize("name", ["opacus", "plain loop"])
def test_honest_trainings_are_proved(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["honest_recordings.py", "--only", name, "--seeds", "1"])
    assert campaign.main() == 0, capsys.readouterr().out
