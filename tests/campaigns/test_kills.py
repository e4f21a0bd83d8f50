"""Runs and recordings that are killed, in small; by hand: ``python tests/campaigns/kills.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs another process's clock")

#: The mechanism whose runs are the shortest, and the recorder, in one process; the others with --run-slow.
QUICK = ("preprocessing", "recorder")
SLOW = ("group", "modelmix", "per-instance", "rero")


@pytest.mark.parametrize(
    "kinds", [QUICK, *(pytest.param((kind,), marks=pytest.mark.slow) for kind in SLOW)], ids=" ".join
)
def test_what_was_killed_comes_out_as_if_it_had_not_been(kinds: tuple[str, ...]) -> None:
    script = str(Path(__file__).parent / "kills.py")
    command = [sys.executable, script, "--times", "2", "--steps", "500", "--kinds", *kinds]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("; 0 wrong") == len(kinds)
