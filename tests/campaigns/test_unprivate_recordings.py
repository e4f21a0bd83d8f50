"""A few scripts of the campaign over leaking trainings; by hand: ``python tests/campaigns/unprivate_recordings.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import unprivate_recordings as campaign

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.ci
@pytest.mark.parametrize("name", ["permuted", "behind_a", "code_in", "ten_indices", "not_reported"])
def test_leaks_are_flagged_or_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unprivate_recordings.py", "--only", name])
    assert campaign.main() == 0, capsys.readouterr().out


def test_a_leak_in_another_channel_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, _, script = campaign.SCRIPTS[0]
    monkeypatch.setattr(campaign, "SCRIPTS", [(name, "violated", "noise", script), (name, "assumes", "order", script)])
    monkeypatch.setattr(sys, "argv", ["unprivate_recordings.py"])
    assert campaign.main() == 1
