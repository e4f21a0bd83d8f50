"""A few trainings of the campaign in JAX; by hand: ``python tests/campaigns/jax_recordings.py``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

for needed in ("jax", "optax", "jax_privacy"):
    pytest.importorskip(needed)

sys.path.insert(0, str(Path(__file__).parent))
campaign = importlib.import_module("jax_recordings")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ci]


@pytest.mark.parametrize("name", ["of the page", "execution plan", "schedule", "own schedule"])
def test_sound_trainings_are_proved(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.of_sound(name), capsys.readouterr().out


@pytest.mark.parametrize("name", ["half the noise", "too many steps", "repeated key", "shuffled", "fitted outside"])
def test_faults_are_found(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.of_fault(name), capsys.readouterr().out


def test_updates_of_optax_are_repeated_and_functions_of_scripts_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.of_optimizers(), capsys.readouterr().out
