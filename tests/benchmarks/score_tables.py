"""What judging a table of scores costs: time and the peak of memory of a whole ``dpspec run``, by format. By hand:

    python tests/benchmarks/score_tables.py [--rows 1000000] [--method one-run]

The promise is 60 seconds and 1 GiB at a million rows. Every run is a process of its own, on an empty store. Beside the
seconds by the clock stand those of the processor, for machines that have other things to do.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SPEC = """\
dpspec: 1
name: large-table
mechanism: {{kind: group, noise_multiplier: 2.0, clip_norm: 1.0, sampling: {{scheme: poisson, rate: 0.2}}, steps: 20}}
data: {{kind: declared, records: 2000000}}
threat_model: {{access: final-model}}
claims:
  - {{id: one, kind: approx-dp, epsilon: 4.0, delta: 1e-5, expect: [supported, refuted, open]}}
audit:
  method: {method}
  scores: {{path: table.{suffix}, coin: coin, score: score, id: id}}
  expect: {expect}
"""


def write(path: Path, rows: int, mu: float) -> None:
    """A table with names of canaries and scores in all their digits."""
    source = np.random.default_rng(0)
    coins = source.integers(0, 2, rows)
    scores = source.normal(size=rows) + mu * coins
    names = np.array([f"canary-{number:07}" for number in range(rows)])
    if path.suffix == ".csv":
        rows_of = zip(names.tolist(), coins.tolist(), scores.tolist(), strict=True)
        path.write_text("id,coin,score\n" + "".join(f"{n},{c},{s!r}\n" for n, c, s in rows_of), encoding="utf-8")
    elif path.suffix == ".npz":
        np.savez(path, id=names, coin=coins, score=scores)
    else:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        parquet.write_table(pa.table({"id": names, "coin": coins, "score": scores}), path)


def measure(folder: Path, suffix: str, rows: int, method: str, mu: float) -> tuple[float, float, float, str]:
    """Seconds by the clock and of the processor, MiB at the peak, and the verdict that was printed."""
    write(folder / f"table.{suffix}", rows, mu)
    expect = "deviates" if mu > 2.0 else "not-run"
    (folder / "spec.yaml").write_text(SPEC.format(method=method, suffix=suffix, expect=expect), encoding="utf-8")
    command = [sys.executable, "-m", "dpspec", "run", "spec.yaml", "--store", f"store-{suffix}-{mu}"]
    began, used = time.monotonic(), _processor_seconds()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        printed = run.stdout.read()
        run.wait()
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024.0
    lines = [line.strip() for line in printed.splitlines() if " one [" in line]
    return seconds, _processor_seconds() - used, peak, " ".join(lines[:2]) if lines else printed[-300:]


def _processor_seconds() -> float:
    of = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of.ru_utime + of.ru_stime


def main() -> None:
    """One line for each format and strength; the peak is the largest so far."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--method", choices=["one-run", "many-run"], default="one-run")
    parser.add_argument("--only", default="", help="one format, or one mu: csv, 4.0")
    given = parser.parse_args()
    for suffix in ("csv", "npz", "parquet"):
        for mu in (0.0, 0.5, 4.0):
            if given.only not in ("", suffix, str(mu)):
                continue
            with tempfile.TemporaryDirectory() as folder:
                seconds, used, peak, said = measure(Path(folder), suffix, given.rows, given.method, mu)
            costs = f"{seconds:.1f} s ({used:.1f} s of the processor), {peak:.0f} MiB at most so far"
            print(f"{suffix}, mu {mu}: {costs}; {said}", flush=True)


if __name__ == "__main__":
    main()
