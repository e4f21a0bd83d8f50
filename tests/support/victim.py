"""A run of dpspec as the victim of faults: started in a process group of its own, watched, and compared afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import warm

SPEC = """\
dpspec: 1
name: victim
mechanism:
  kind: group
  noise_multiplier: 1.5
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: %(steps)d
data: {kind: npz, path: rows.npz, classes: 10}
model: {kind: linear}
training: {learning_rate: 1.0}
claims:
  - {id: one, kind: approx-dp, epsilon: 30.0, delta: 1e-5}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 100}, runs: %(runs)d, seed: 5}
"""

#: What a shell shows as 130: told so, or ended by the signal itself while there was nothing left to tell.
INTERRUPTED = (130, -signal.SIGINT)


@dataclass(frozen=True)
class Ended:
    """How a run ended, and what it said to the user."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """The line that tells what happened: the error, or else the last one."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("error") or "Interrupted" in line]
        return (told or lines or [""])[-1].strip()

    @property
    def trained(self) -> int:
        """How many trials it set out to train."""
        return sum(int(n) for n in re.findall(r": (\d+) of \d+ trials to train", self.err))

    @property
    def clean(self) -> bool:
        """Whether it told nothing in Python's words and took nothing for a bug of its own."""
        return "Traceback" not in self.err and "bug in dpspec" not in self.err and "Exception ignored" not in self.err


class Victim:
    """A folder with a spec, its data and a store, in which runs are started and hurt.

    steps, runs: how long a trial is, and how many there are; ``changes`` are ``--set`` options of every run.
    """

    def __init__(self, folder: Path, *, steps: int = 150, runs: int = 4, changes: Sequence[str] = ()) -> None:
        self.folder, self.runs = folder, runs
        self._set = [part for change in changes for part in ("--set", change)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "victim.yaml").write_text(SPEC % {"steps": steps, "runs": runs}, encoding="utf-8")
        self.rows(0)

    def rows(self, seed: int) -> None:
        """Write the data file: the same bytes for the same seed."""
        import numpy as np

        source = np.random.default_rng(seed)
        y = np.arange(400) % 10
        np.savez(self.folder / "rows.npz", x=source.normal(size=(400, 64)) + y[:, None] / 5.0, y=y)

    def environment(self, **more: str) -> dict[str, str]:
        """What runs are started with: one thread, a plain page."""
        return {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **more}

    def start(
        self,
        *options: str,
        before: Callable[[], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a run, in a group of its own; ``before`` is called in its process first."""
        command = [sys.executable, "-m", "dpspec", "run", "victim.yaml", *self._set, *options]

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
            if before is not None:
                before()

        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment(**(environment or {})),
            start_new_session=True,
            preexec_fn=prepare,
            **pipes,
        )

    def run(self, *options: str, **how: Any) -> Ended:
        return ended(self.start(*options, **how))

    def forked(self, *options: str) -> Ended:
        """Run to the end in a fork of a process that has imported all: where no fault meets the process itself."""
        command = ["run", "victim.yaml", *self._set, *options]
        done = warm.dpspec(*command, cwd=self.folder, env=self.environment(), timeout=600)
        return Ended(done.returncode, done.stdout, done.stderr)

    def again(self, *options: str, fresh: bool = False) -> tuple[Ended, dict[str, Any] | None]:
        """Run once more, with nothing in its way; what the audit came to, None where it did not.

        fresh: in an interpreter of its own, as those that are hurt, and not in a fork of one that has imported all.
        """
        report = self.folder / "again.json"
        report.unlink(missing_ok=True)
        done = (self.run if fresh else self.forked)(*options, "--report", f"json={report}")
        return done, outcome(report) if report.is_file() else None

    def stored(self, store: str = ".dpspec/store") -> int:
        """How many trials a store holds."""
        return len(list((self.folder / store / "trials").glob("*/*/record.json")))

    def wait_for(self, process: subprocess.Popen[str], trials: int, store: str = ".dpspec/store") -> None:
        """Wait until so many trials are stored, or the run has ended."""
        while self.stored(store) < trials and process.poll() is None:
            time.sleep(0.01)


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for a process; whatever is left of its group is killed after ten minutes."""
    try:
        out, err = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += "\nerror: it hangs"
    return Ended(process.returncode, out, err)


def hurt(process: subprocess.Popen[str], how: signal.Signals) -> None:
    """Send a signal to all of a run's processes, if there are any left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def outcome(path: Path) -> dict[str, Any]:
    """A result without what depends on when and where it was made."""
    result = json.loads(path.read_text(encoding="utf-8"))
    for audit in result["audits"]:
        audit.pop("seconds")
        audit.pop("stored_trials")
        for trial in audit["trials"]:
            trial.pop("recorded")
    return {"audits": result["audits"], "confidence": result["confidence"], "notes": result["notes"]}
