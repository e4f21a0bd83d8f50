"""What scheduling costs: a matrix of fake trials that only wait, on Ray or on processes of this machine, by hand.

    python tests/benchmarks/scheduling.py --executor ray --trials 10000 --cells 100 --seconds 30 --slots 200

``--slots`` says how many CPUs Ray is told that this machine has: trials that wait need none of them. Printed is what
the run took, what it would have taken if trials had followed each other without a gap, and the CPU time of the caller.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import counting

from dpspec.contract import Context, FrozenMap, Plan, Spec, Trial
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import TrialFinished
from dpspec.engine.running.run_options import RunOptions
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.builtin import EXECUTORS

SECONDS = "DPSPEC_BENCHMARK_SECONDS"


class WaitingAudit(counting.CountingAudit):
    """The counting mechanism, whose trials take as long as they are told to."""

    def plan(self, spec: Spec, facts: Any) -> Plan:
        plan = super().plan(spec, facts)
        return dataclasses.replace(plan, seconds=float(os.environ[SECONDS]) * plan.trials)

    def trials(self, inputs: FrozenMap, context: Context, indices: Sequence[int]) -> Iterator[Trial]:
        for index in indices:
            time.sleep(float(os.environ[SECONDS]))
            yield from super().trials(inputs, context, [index])


def catalog() -> Catalog:
    """The counting catalog with this audit, and our executors."""
    plain = counting.catalog()
    offered = plain.mechanisms["counting"]
    waiting = dataclasses.replace(offered.provider, audit="scheduling:WaitingAudit")
    return dataclasses.replace(
        plain,
        mechanisms={"counting": dataclasses.replace(offered, provider=waiting)},
        executors={e.kind: dataclasses.replace(offered, provider=e) for e in EXECUTORS},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="ray")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--slots", type=int, default=200)
    given = parser.parse_args()
    os.environ[SECONDS] = str(given.seconds)
    here = Path(__file__).resolve()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here.parents[1]), str(here.parent)])  # for workers
    if given.executor == "ray":
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        import ray

        ray.init(num_cpus=given.slots, include_dashboard=False, logging_level="error", log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        cells = [round(0.5 + n / given.cells, 6) for n in range(given.cells)]
        text = counting.EXAMPLE.replace("runs: 5", f"runs: {given.trials // given.cells}")
        (Path(folder) / "spec.yaml").write_text(f"{text}matrix: {{mechanism.epsilon: {cells}}}\n", encoding="utf-8")
        specs = load_specs([Path(folder) / "spec.yaml"], catalog()).specs
        ended: list[float] = []

        def listen(event: object) -> None:
            if isinstance(event, TrialFinished):
                ended.append(time.monotonic())
                if len(ended) % 500 == 0:
                    print(f"{len(ended)} trials", flush=True)

        # The slots are there once each has a process: a cluster is not started for every run.
        options = RunOptions(
            executor=given.executor, workers=given.slots if given.executor == "local" else None, device="cpu"
        )
        began, cpu = time.monotonic(), time.process_time()
        result = run(specs, catalog(), store=Store(Path(folder) / "store"), listeners=[listen], options=options)
        wall, cpu = time.monotonic() - began, time.process_time() - cpu
    count = sum(len(audit.trials) for audit in result.audits)
    ideal = count * given.seconds / given.slots
    warm = (len(ended) - given.slots) * given.seconds / given.slots  # between the first wave and the last trial
    between = ended[-1] - ended[given.slots - 1]
    print(f"{count} trials of {given.seconds} s in {given.cells} cells on {given.slots} slots of {given.executor}")
    print(f"wall {wall:.1f} s, without a gap {ideal:.1f} s: {wall / ideal - 1:+.2%}")
    print(f"after the first wave {between:.1f} s, without a gap {warm:.1f} s: {between / warm - 1:+.2%}")
    print(f"CPU of the caller {cpu:.1f} s: {1e3 * cpu / count:.1f} ms for each trial")


if __name__ == "__main__":
    main()
