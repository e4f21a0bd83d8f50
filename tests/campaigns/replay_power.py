"""How often ``dpspec check`` finds faults in a share of 100 steps, with the default audit.

    python tests/campaigns/replay_power.py [NAME ...] [--runs 10]

Prints one row for each fault: the number of deviating runs if the fault acts at all steps, from step 41 on, and at 10 %
and 1 % of the steps, chosen at random; then the median number of replayed steps. Losses are trained with Opacus, other
clippings with a custom loop.
"""

import argparse
import random
import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from support.checked_runs import CheckedRun, checked
from support.public_mistakes.parts import SECRET, OpacusTraining, OwnLoop, norms_of
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from dpspec_recording.observers.sensitivity.replays import Replays

STEPS = 100

#: Whether the fault acts at a step, counted from 1.
Schedule = Callable[[int, random.Random], bool]

SCHEDULES: Mapping[str, Schedule] = {
    "all": lambda step, source: True,
    "from 41": lambda step, source: step > 40,
    "10 %": lambda step, source: source.random() < 0.1,
    "1 %": lambda step, source: source.random() < 0.01,
}


def mixup(model: Any, x: Tensor, y: Tensor) -> Tensor:
    order = torch.randperm(len(x))
    outputs = model(0.7 * x + 0.3 * x[order])
    return 0.7 * cross_entropy(outputs, y) + 0.3 * cross_entropy(outputs, y[order])


def batch_statistics(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model((x - x.mean(0)) / (x.std(0) + 1e-5)), y)


def class_weights(model: Any, x: Tensor, y: Tensor) -> Tensor:
    counts = torch.bincount(y, minlength=2).clamp_min(1)
    return cross_entropy(model(x), y, weight=len(y) / (2.0 * counts))


def in_batch_negatives(model: Any, x: Tensor, y: Tensor) -> Tensor:
    embedded = normalize(model(x))
    return cross_entropy(embedded @ embedded.T / 0.1, torch.arange(len(x)))


def mining(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none").topk((len(x) + 1) // 2).values.mean()


LOSSES = {
    "mixup": mixup,
    "batch statistics": batch_statistics,
    "class weights of the batch": class_weights,
    "in-batch negatives": in_batch_negatives,
    "mining": mining,
}

#: Of a custom loop: from gradients (b, ...) of each parameter and the clip norm C to their sum.
SUMS: Mapping[str, Callable[[list[Tensor], float], list[Tensor]]] = {
    "clipping of the mean": lambda rows, clip: [
        row.sum(0) * (clip / norms_of([row.mean(0)[None] for row in rows])).clamp_max(1.0) for row in rows
    ],
    "each layer clipped to C": lambda rows, clip: [
        torch.einsum("i,i...", (clip / norms_of([row])).clamp_max(1.0), row) for row in rows
    ],
    "two backward passes": lambda rows, clip: [
        2.0 * torch.einsum("i,i...", (clip / norms_of(rows)).clamp_max(1.0), row) for row in rows
    ],
    "no clipping": lambda rows, clip: [row.sum(0) for row in rows],
    "scaled by the largest norm": lambda rows, clip: [
        row.sum(0) * (clip / norms_of(rows).max()).clamp_max(1.0) for row in rows
    ],
}


def opacus_run(folder: Path, fault: Callable[..., Tensor], acts: Callable[[int], bool]) -> None:
    training, step = OpacusTraining(), 0
    torch.manual_seed(SECRET + random.SystemRandom().getrandbits(30))
    with training.recorder(folder):
        while step < STEPS:
            for x, y in training.loader:
                step += 1
                if step <= STEPS:
                    loss = fault if len(x) and acts(step) else lambda model, x, y: cross_entropy(model(x), y)
                    training.step(loss(training.model, x, y))


def own_run(folder: Path, fault: Callable[[list[Tensor], float], list[Tensor]], acts: Callable[[int], bool]) -> None:
    loop = OwnLoop()
    torch.manual_seed(SECRET + random.SystemRandom().getrandbits(30))
    with loop.recorder(folder) as run:
        for step in range(1, STEPS + 1):
            drawn = loop.poisson()
            rows = loop.rows(drawn)
            norms, total = loop.clipped(rows)
            if len(drawn) and acts(step):
                total = fault(rows, loop.clip)
            loop.step(run, drawn, norms, total, loop.noise())


def run(name: str, schedule: Schedule) -> CheckedRun:
    source = random.SystemRandom()

    def acts(step: int) -> bool:
        return schedule(step, source)

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "run"
        if name in LOSSES:
            opacus_run(path, LOSSES[name], acts)
        else:
            own_run(path, SUMS[name], acts)
        result = checked(path, epsilon=100.0)
        result.run  # noqa: B018 (read before the folder is removed)
        return result


def row(name: str, runs: int) -> str:
    cells, replayed = [], []
    for schedule in SCHEDULES.values():
        results = [run(name, schedule) for _ in range(runs)]
        cells.append(sum(result.conformance.status == "deviates" for result in results))
        replayed += [facts.replayed for result in results if (facts := result.run.fact(Replays))]
    return f"| {name} | {' | '.join(map(str, cells))} | {statistics.median(replayed):.0f} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*LOSSES, *SUMS])
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    for fault_name in options.names:
        print(row(fault_name, options.runs), flush=True)
