"""The cost of recording a training in several processes that share its parameters with FSDP2 (gloo, CPU).

    python tests/benchmarks/recorded_ranks.py [--world 1 2 4] [--width 64 512 1024] [--layers 3] [--batch 16]
        [--steps 100]

Each setting trains twice in the same processes, without and with a recorder, which take turns step by step. The first
50 steps are audited: their cost is fixed, and is printed in seconds. Medians and means are of the later steps. Times
are CPU times of rank 0 with its network threads. Bytes on the network are counted at the loopback device, so nothing
else may use it (``unshare -n`` gives the script its own).
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from torch import distributed, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.ranks import FEATURES, Ranked

from dpspec_recording.folder.audit_facts import FIRST


def loopback() -> int:
    """Bytes that the loopback device has sent."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


@dataclass
class Wide(Ranked):
    width: int = 64
    layers: int = 3

    def module(self) -> nn.Module:
        inner = [(nn.Linear(self.width, self.width), nn.Tanh()) for _ in range(self.layers - 2)]
        first, last = nn.Linear(FEATURES, self.width), nn.Linear(self.width, max(2, self.world))
        return nn.Sequential(first, nn.Tanh(), *(module for pair in inner for module in pair), last)


def steps(training: Wide, recorded: bool) -> Any:
    with training.recorder() if recorded else contextlib.nullcontext():
        while True:
            for x, y in training.loader:
                training.step(x, y)
                yield


def measure(training: Wide, rank: int, count: int, results: Any) -> None:
    bare = replace(training, loop=None)
    bare.build(rank)
    pair = {"without": steps(bare, False), "with": steps(training, True)}
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in pair}
    for _ in range(FIRST + count):
        for name, each in pair.items():
            distributed.barrier()
            sent, start = loopback(), time.process_time()
            next(each)
            spent = time.process_time() - start
            distributed.barrier()
            found[name].append((spent, loopback() - sent))
    for each in pair.values():
        each.close()
    if rank == 0:
        results.put(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--width", type=int, nargs="+", default=[64, 512, 1024])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="records per rank in a step")
    parser.add_argument("--steps", type=int, default=100, help="after the first 50")
    options = parser.parse_args()
    print("columns in pairs: without and with a recorder; the folder is per step and rank")
    print(
        "ranks  parameters  layers  ms per step, median  ms per step, mean   bytes sent by all     folder  first steps"
    )
    for world in options.world:
        for width in options.width:
            with tempfile.TemporaryDirectory() as place:
                results = get_context("fork").Queue()
                training = Wide(
                    Path(place) / "run",
                    world=world,
                    sharded=True,
                    batch=options.batch * world,
                    records=20 * options.batch * world,
                    width=width,
                    layers=options.layers,
                    loop=lambda training, rank, results=results: measure(training, rank, options.steps, results),
                )
                codes = training.run()
                if codes != [0] * world:
                    sys.exit(f"ranks ended with {codes}")
                times = results.get()
                first = [sum(spent for spent, _ in steps[:FIRST]) for steps in times.values()]
                later = {name: steps[FIRST:] for name, steps in times.items()}
                folder = sum(p.stat().st_size for p in Path(place).rglob("*") if p.is_file())
            row = f"{world:5d}  {sum(p.numel() for p in training.module().parameters()):10d}  {options.layers:6d}"
            for average in (statistics.median, statistics.fmean):
                row += "  " + "".join(f"{1e3 * average([t for t, _ in later[name]]):9.2f}" for name in later)
            row += "  " + "".join(f"{statistics.median(n for _, n in later[name]):11.0f}" for name in later)
            print(f"{row}  {folder / (FIRST + options.steps) / world:8.0f}  {first[1] - first[0]:9.3f} s", flush=True)


if __name__ == "__main__":
    main()
