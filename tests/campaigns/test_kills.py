"""Runs and recordings that are killed, in small; by hand: ``python tests/campaigns/kills.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs another process's clock")

#: The mechanism whose runs are the shortest, and the recorder, in one process; the others with --run-slow.
QUICK = ("preprocessing", "recorder")
SLOW = ("group", "modelmix", "per-instance", "rero")


@pytest.mark.ci
@pytest.mark.parametrize(
    "kinds", [QUICK, *(pytest.param((kind,), marks=pytest.mark.slow) for kind in SLOW)], ids=" ".join
)
def test_what_was_killed_comes_out_as_if_it_had_not_been(kinds: tuple[str, ...], tmp_path: Path) -> None:
    script = str(Path(__file__).parent / "kills.py")
    times = "1" if kinds == QUICK else "2"
    command = ["python", script, "--times", times, "--steps", "300", "--kinds", *kinds]
    path = os.pathsep.join([warm.programs(tmp_path / "programs"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("; 0 wrong") == len(kinds)
