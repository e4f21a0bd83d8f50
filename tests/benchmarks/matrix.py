"""What a second core is worth: a matrix of short audits on one core and on two, in turns, by hand.

    python tests/benchmarks/matrix.py --cells 200 --rounds 2

Each run is ``dpspec run`` in processes of its own that may use one core or two, keeps its trials in a store of its own,
and computes all bounds anew. Printed are the wall time and the CPU time of the process that was started and of its
workers, and how many times as fast two cores are: by the clock, which is right on a machine where nobody else is busy,
and by CPU time, as if both cores had been free and the workers had waited for every moment of the process that was
started. Then what all runs found is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CELLS = """
dpspec: 1
name: cells
mechanism:
  kind: modelmix
  noise_multiplier: 1.0
  clip_norm: 1.0
  linf_truncation: 4
  mixing: {threshold: 0.5}
  sampling: {scheme: poisson, rate: 0.1}
  steps: 60
data: {kind: digits, split: {test: 0.2}}
model: {kind: linear}
training: {backend: native, learning_rate: 0.5}
claims:
  - {id: unmixed, kind: approx-dp, epsilon: 20.0, delta: 1e-5, expect: [proved, open, supported]}
audit:
  method: one-run
  canary: {space: gradient, kind: one-hot, count: 64}
  seed: 1
"""


@dataclass(frozen=True)
class Spent:
    """Seconds: by the clock, and of CPU in the process that was started and in its workers."""

    wall: float
    caller: float
    workers: float

    def __str__(self) -> str:
        return f"{self.wall:7.1f} s, CPU {self.caller:.1f} s and {self.workers:.1f} s of workers"


def timed() -> None:
    """``dpspec`` with the rest of the command line; what it spent goes to stderr, last."""
    from dpspec.__main__ import main as dpspec

    began, sys.argv = time.monotonic(), ["dpspec", *sys.argv[2:]]
    code = dpspec()
    wall = time.monotonic() - began
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    spent = [wall, mine.ru_utime + mine.ru_stime, theirs.ru_utime + theirs.ru_stime]
    sys.stderr.write(f"\n{json.dumps(spent)}\n")
    sys.exit(code)


def run(spec: Path, cores: int, result: Path) -> Spent:
    """One run of a spec with so many cores."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    with tempfile.TemporaryDirectory() as store:
        done = subprocess.run(
            [sys.executable, __file__, "--timed", "run", spec, "--store", store, "--report", f"json={result}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}:\n{done.stderr}")
    return Spent(*json.loads(done.stderr.splitlines()[-1]))


def found(result: Path) -> list[object]:
    """What a run found, without times and places."""
    parts = ("name", "findings", "series", "checks", "evidence", "verdicts", "conformance")
    return [[audit[part] for part in parts] for audit in json.loads(result.read_text(encoding="utf-8"))["audits"]]


def main() -> None:
    """Print a line for each run, then the ratios: of the fastest ones, and of those that took least CPU time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    runs: dict[int, list[Spent]] = {1: [], 2: []}
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        spec, result = Path(folder) / "cells.yaml", Path(folder) / "result.json"
        noise = [round(1.0 + 2.0 * n / given.cells, 6) for n in range(given.cells)]
        spec.write_text(f"{CELLS.strip()}\nmatrix: {{mechanism.noise_multiplier: {noise}}}\n", encoding="utf-8")
        for turn in range(given.rounds):
            for cores, told in runs.items():
                spent = run(spec, cores, result)
                told.append(spent)
                outcomes.append(found(result))
                load = os.getloadavg()[0]
                print(f"round {turn + 1}, {cores} cores: {spent}; load of the machine {load:.1f}", flush=True)
    clock = min(spent.wall for spent in runs[1]) / min(spent.wall for spent in runs[2])
    cpu = min(spent.caller for spent in runs[1]) / min(spent.caller + spent.workers / 2 for spent in runs[2])
    print(f"{given.cells} cells: two cores are {clock:.2f} times as fast by the clock, {cpu:.2f} by CPU time")
    same = all(outcome == outcomes[0] for outcome in outcomes)
    print("all runs found the same" if same else "RUNS FOUND DIFFERENT THINGS")
    sys.exit(not same)


if __name__ == "__main__":
    timed() if sys.argv[1:2] == ["--timed"] else main()
