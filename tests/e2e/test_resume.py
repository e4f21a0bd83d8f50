"""A run that is killed within a trial continues where it stopped: a trial trains twice, with canaries and without."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from campaigns.faults import outcome

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
training: {{backend: stepwise, optimizer: {{kind: momentum}}, schedule: {{kind: cosine, warmup: 10}}}}
claims:
  - {{id: one, kind: approx-dp, epsilon: 20.0, delta: 1e-5}}
audit: {{method: one-run, canary: {{space: gradient, kind: orthogonal, count: 100}}, runs: 1, seed: 5}}
"""

pytestmark = [pytest.mark.ci, pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")]


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def test_killed_in_its_second_training(dpspec: Run, environment: dict[str, str], tmp_path: Path) -> None:
    log, unfinished = tmp_path / "steps.txt", tmp_path / ".dpspec" / "store" / "unfinished"
    (tmp_path / "killed.yaml").write_text(SPEC, encoding="utf-8")
    command = [sys.executable, "-m", "dpspec", "run", "killed.yaml"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    victim = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, **quiet)
    deadline = time.monotonic() + 120
    while len(lines(log)) < STEPS + 45 and victim.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(victim.pid, signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL, "it ended before it could be killed"
    before = lines(log)
    first, second, reached = before[0][0], before[-1][0], int(before[-1][1])
    assert first != second
    assert reached < STEPS
    assert list(unfinished.glob("*/*.npz"))
    for store, report in ((".dpspec/store", "resumed"), ("elsewhere", "whole")):
        done = dpspec("run", "killed.yaml", "--store", store, "--report", f"json={report}.json")
        assert done.returncode == 0, done.stdout + done.stderr
        if report == "resumed":
            after = lines(log)[len(before) :]
    assert {seed for seed, _ in after} == {second}, "a training that had ended was made again"
    numbers = [int(step) for _, step in after]
    assert numbers == list(range(numbers[0], STEPS + 1))
    assert reached - 10 < numbers[0] <= reached + 1
    assert not list(unfinished.glob("*"))
    assert outcome(tmp_path / "resumed.json") == outcome(tmp_path / "whole.json")
