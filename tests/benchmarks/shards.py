"""One run of a large data set looked at by one trial, and by several on one worker and on two: by hand.

    python tests/benchmarks/shards.py [RECORDS] [SHARDS]
    python tests/benchmarks/shards.py runs

The second form is of many runs of ``group`` and ``rero``, trained together and in blocks (``audit.shard_runs``): the
CPU seconds of all blocks, and so what the busier of two workers would take if nothing else ran.

Of the first form, printed are first the CPU seconds of each trial by itself, and so what the busier of two workers
would take if nothing else ran. Then what they did take on this machine: the seconds from the first trial's start to the
last one's end, the CPU seconds of all processes, the load of the machine meanwhile, and by how much the epsilons of
single records differ.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from dpspec.contract.events import Event, StageStarted, TrialFinished
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.results.result import AuditResult
from dpspec.engine.running.run_options import RunOptions
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.training.threads import limited

TEXT = """\
dpspec: 1
name: shards
mechanism:
  kind: per-instance
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {{scheme: poisson, rate: 0.005}}
  steps: 100
  orders: [2, 4, 8, 16, 32]
  composition: {{observe_every: 1}}
data: {{kind: synthetic, pattern: blobs, records: {records}, features: 64, classes: 10}}
model: {{kind: mlp, hidden: [512]}}
training: {{learning_rate: 0.2}}
threat_model: {{points: all, direction: remove}}
claims: [{{id: everyone, kind: approx-dp, epsilon: 9.0, delta: 1e-6}}]
audit: {{method: many-run, runs: 1, seed: 1}}
"""

#: 64 runs on the handwritten digits.
RUNS = {
    "group": """\
dpspec: 1
name: runs
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.05}, steps: 20}
data: {kind: digits, split: {test: 0.2}}
model: {kind: mlp, hidden: [32]}
training: {learning_rate: 0.5}
claims: [{id: one, kind: approx-dp, epsilon: 9.0, delta: 1e-5}]
audit: {method: many-run, runs: 64, canary: {space: gradient, kind: orthogonal, count: 1}, seed: 1}
""",
    "rero": """\
dpspec: 1
name: runs
mechanism: {kind: rero, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.05}, steps: 20}
data: {kind: digits, split: {test: 0.2}}
model: {kind: mlp, hidden: [32]}
training: {learning_rate: 0.5}
threat_model: {prior: {candidates: 16}}
claims: [{id: one, kind: rero, kappa: 0.0625, gamma: 0.9}]
audit: {method: many-run, runs: 64, seed: 1}
""",
}


def seconds_of_all() -> float:
    """CPU seconds of this process and of the workers that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def alone(folder: Path, overrides: list[str]) -> list[float]:
    """CPU seconds of each chunk of trials in this process, once rows and libraries are loaded."""
    catalog = load_catalog()
    prepared = prepare(load_specs([folder / "spec.yaml"], catalog, overrides).specs[0], catalog)
    inputs = prepared.audit.trial_inputs(prepared.spec)
    context = RunContext(prepared, catalog, inputs, device="cpu")
    _ = context.data
    found = []
    with limited(1):
        for chunk in prepared.plan().chunks:
            began = time.process_time()
            list(prepared.audit.trials(inputs, context, chunk))
            found.append(time.process_time() - began)
    context.close()
    return found


def measure(folder: Path, name: str, overrides: list[str], options: RunOptions) -> tuple[AuditResult, float]:
    """The result and the wall seconds of its trials; a line for people."""
    catalog, marks = load_catalog(), []

    def listen(event: Event) -> None:
        if isinstance(event, TrialFinished) or (isinstance(event, StageStarted) and event.stage == "trials"):
            marks.append(time.monotonic())

    spec = load_specs([folder / "spec.yaml"], catalog, overrides).specs
    before = seconds_of_all()
    result = run(spec, catalog, store=Store(folder / name), listeners=[listen], options=options)
    wall, cpu = marks[-1] - marks[0], seconds_of_all() - before
    load = os.getloadavg()[0]
    print(
        f"{name:28} {wall:8.1f} s   CPU {cpu:8.1f} s   {len(result.audits[0].trials):3} trials   load {load:.1f}",
        flush=True,
    )
    return result.audits[0], wall


def epsilons(audit: AuditResult) -> list[float]:
    """Of all records."""
    return [float(value) for s in audit.series if s.name == "records" for value in s.columns["epsilon"]]


def runs_in_blocks() -> None:
    """A line for each kind and size of block."""
    with tempfile.TemporaryDirectory() as name:
        for kind, text in RUNS.items():
            (Path(name) / "spec.yaml").write_text(text, encoding="utf-8")
            alone(Path(name), ["audit.runs=16"])  # imports, and whatever is done once in a process
            whole = None
            for together in (64, 32, 16, 8):
                each = alone(Path(name), [f"audit.shard_runs={together}"])
                total = sum(each)
                whole = whole or total
                busiest = max(sum(each[::2]), sum(each[1::2]))
                print(
                    f"{kind:6} {together:3} runs together: {total:6.1f} CPU s; of two workers the busier has "
                    f"{busiest:6.1f}, a ratio of {whole / busiest:.2f}",
                    flush=True,
                )


def main() -> None:
    """Print both parts."""
    if sys.argv[1:] == ["runs"]:
        runs_in_blocks()
        return
    records, shards = ([int(given) for given in sys.argv[1:]] + [60_000, 8][len(sys.argv) - 1 :])[:2]
    shared = f"audit.shard_records={-(-records // shards)}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spec.yaml").write_text(TEXT.format(records=records), encoding="utf-8")
        (whole,), each = alone(folder, []), alone(folder, [shared])
        busiest = max(sum(each[::2]), sum(each[1::2]))
        print(f"one trial: {whole:.1f} CPU s; {len(each)} shards: {sum(each):.1f}, at most {max(each):.1f} each")
        print(f"shards by two workers: {busiest:.1f} CPU s, a ratio of {whole / busiest:.2f}", flush=True)
        one = RunOptions(executor="local", workers=1, threads=1, device="cpu")
        two = RunOptions(executor="local", workers=2, threads=1, device="cpu")
        first, _ = measure(folder, "one trial", [], one)
        apart, in_turn = measure(folder, "shards, one worker", [shared], one)
        spread, at_once = measure(folder, "shards, two workers", [shared], two)
    print(f"shards on one worker against two: {in_turn / at_once:.2f}")
    pairs = zip(epsilons(first), epsilons(spread), strict=True)
    print(f"epsilons of records differ by at most {max(abs(a - b) / a for a, b in pairs):.1e}")
    print(f"one worker and two: {'the same' if apart.findings == spread.findings else 'NOT the same'} findings")


if __name__ == "__main__":
    main()
