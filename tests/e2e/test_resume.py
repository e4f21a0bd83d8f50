"""A run that is killed goes on where it stopped, and ends as if it had never been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

SPEC = """\
dpspec: 1
name: killed
mechanism:
  kind: group
  noise_multiplier: 1.5
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 150
data: {kind: synthetic, records: 400, features: 64, classes: 10}
model: {kind: linear}
training: {backend: counted}
claims:
  - {id: one, kind: approx-dp, epsilon: 20.0, delta: 1e-5}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 100}, runs: 4, seed: 5}
"""

#: A trial trains twice: with canaries, and the twin without.
PER_TRIAL = 2


def trainings(tmp_path: Path) -> int:
    log = tmp_path / "trainings.txt"
    return len(log.read_text().splitlines()) if log.exists() else 0


def outcome(path: Path) -> dict[str, Any]:
    """A result without what depends on when and where it was made."""
    result = json.loads(path.read_text(encoding="utf-8"))
    (audit,) = result["audits"]
    for trial in audit["trials"]:
        trial.pop("recorded")
    audit.pop("seconds")
    audit.pop("stored_trials")
    return {key: audit[key] for key in sorted(audit)}


@pytest.mark.ci
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_killed_and_run_again(dpspec: Run, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "killed.yaml").write_text(SPEC, encoding="utf-8")
    command = [sys.executable, "-m", "dpspec", "run", "killed.yaml"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    victim = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, **quiet)
    records = tmp_path / ".dpspec" / "store" / "trials"
    deadline = time.monotonic() + 120
    while len(list(records.glob("*/*/record.json"))) < 2 and victim.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(victim.pid, signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL, "it ended before it could be killed"
    stored = len(list(records.glob("*/*/record.json")))
    assert 2 <= stored < 4

    before = trainings(tmp_path)
    done = dpspec("run", "killed.yaml", "--report", "json=resumed.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert trainings(tmp_path) - before == PER_TRIAL * (4 - stored)

    whole = dpspec("run", "killed.yaml", "--store", "elsewhere", "--report", "json=whole.json")
    assert whole.returncode == 0
    assert outcome(tmp_path / "resumed.json") == outcome(tmp_path / "whole.json")

    before = trainings(tmp_path)
    changed = ["claims.one.epsilon=0.001", "audit.confidence=0.99", "claims.one.expect=[open, refuted]"]
    done = dpspec("run", "killed.yaml", *(word for text in changed for word in ("--set", text)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert trainings(tmp_path) == before, "a changed claim trained again"
