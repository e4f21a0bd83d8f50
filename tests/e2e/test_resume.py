"""A run that is killed, between trials or within one, continues where it stopped and ends as if it had never been."""

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

STEPS = 150

SPEC = f"""\
dpspec: 1
name: killed
mechanism:
  kind: group
  noise_multiplier: 1.5
  clip_norm: 1.0
  sampling: {{scheme: poisson, rate: 0.1}}
  steps: {STEPS}
data: {{kind: synthetic, records: 400, features: 64, classes: 10}}
model: {{kind: linear}}
training: {{backend: counted}}
claims:
  - {{id: one, kind: approx-dp, epsilon: 20.0, delta: 1e-5}}
audit: {{method: one-run, canary: {{space: gradient, kind: orthogonal, count: 100}}, runs: 4, seed: 5}}
"""
STEPWISE = "{backend: stepwise, optimizer: {kind: momentum}, schedule: {kind: cosine, warmup: 10}}"

#: A trial trains twice: with canaries, and the twin without.
PER_TRIAL = 2

pytestmark = [pytest.mark.ci, pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")]


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def outcome(path: Path) -> dict[str, Any]:
    """A result without what depends on when and where it was made."""
    result = json.loads(path.read_text(encoding="utf-8"))
    (audit,) = result["audits"]
    for trial in audit["trials"]:
        trial.pop("recorded")
    audit.pop("seconds")
    audit.pop("stored_trials")
    return {key: audit[key] for key in sorted(audit)}


def kill(folder: Path, environment: dict[str, str], text: str, ready: Callable[[], bool]) -> None:
    """Run a spec in ``folder`` and kill it once it is ready."""
    (folder / "killed.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "dpspec", "run", "killed.yaml"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    victim = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **quiet)
    deadline = time.monotonic() + 120
    while not ready() and victim.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(victim.pid, signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL, "it ended before it could be killed"


def resume(dpspec: Run) -> None:
    """Run the killed spec again."""
    done = dpspec("run", "killed.yaml", "--report", "json=resumed.json")
    assert done.returncode == 0, done.stdout + done.stderr


def compare(dpspec: Run, folder: Path) -> None:
    """Compare the resumed run with one that was never killed."""
    whole = dpspec("run", "killed.yaml", "--store", "elsewhere", "--report", "json=whole.json")
    assert whole.returncode == 0
    assert outcome(folder / "resumed.json") == outcome(folder / "whole.json")


def test_killed_between_trials(dpspec: Run, environment: dict[str, str], tmp_path: Path) -> None:
    records, log = tmp_path / ".dpspec" / "store" / "trials", tmp_path / "trainings.txt"
    kill(tmp_path, environment, SPEC, lambda: len(list(records.glob("*/*/record.json"))) >= 2)
    stored = len(list(records.glob("*/*/record.json")))
    assert 2 <= stored < 4
    before = len(lines(log))
    resume(dpspec)
    assert len(lines(log)) - before == PER_TRIAL * (4 - stored)
    compare(dpspec, tmp_path)

    before = len(lines(log))
    changed = ["claims.one.epsilon=0.001", "audit.confidence=0.99", "claims.one.expect=[open, refuted]"]
    done = dpspec("run", "killed.yaml", *(word for text in changed for word in ("--set", text)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines(log)) == before, "a changed claim trained again"


def test_killed_in_its_second_training(dpspec: Run, environment: dict[str, str], tmp_path: Path) -> None:
    log, unfinished = tmp_path / "steps.txt", tmp_path / ".dpspec" / "store" / "unfinished"
    text = SPEC.replace("{backend: counted}", STEPWISE).replace("runs: 4", "runs: 1")
    kill(tmp_path, environment, text, lambda: len(lines(log)) >= STEPS + 45)
    before = [line.split() for line in lines(log)]
    first, second = before[0][0], before[-1][0]
    reached = int(before[-1][1])
    assert first != second
    assert reached < STEPS
    assert list(unfinished.glob("*/*.npz"))
    resume(dpspec)
    after = [line.split() for line in lines(log)[len(before) :]]
    assert {seed for seed, _ in after} == {second}, "a training that had ended was made again"
    numbers = [int(step) for _, step in after]
    assert numbers == list(range(numbers[0], STEPS + 1))
    assert reached - 10 < numbers[0] <= reached + 1
    assert not list(unfinished.glob("*"))
    compare(dpspec, tmp_path)
