"""The speed and memory of DP-SGD by dpspec and by Opacus, on the same models and batches. Run by hand:

    python tests/benchmarks/training.py [--rounds 5] [--model KIND]

A whole step is forward, backward, clip, noise and update; "gradients" is the part before noise: clipped sums or norms
with dpspec and in Opacus' ghost mode, and in its mode "hooks" a gradient per record. Every measurement has a process of
its own, so that its peak memory is its own, and the sides take turns. Times are CPU seconds on one thread. The table
shows medians over the rounds; machines are noisy, so read the ratios.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from math import prod
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from dpspec.contract import Facts, FrozenMap, TrainingJob
from dpspec.models.architectures import MODELS
from dpspec.registry.loader import resolve
from dpspec.training.loop.native import parts_of, train_with

#: The kind of the model, the shape of its records and the batch.
SETTINGS = {"cnn-small": ((1, 28, 28), 256), "resnet20": ((3, 32, 32), 64)}
MODES = ("dpspec", "hooks", "ghost")
CLASSES, REPEATS = 10, 5

Work = Callable[[], Any]


def ours(module: Any, x: Any, y: Any) -> tuple[Work, Work]:
    """One step of the native backend, and its clipped sum."""
    phase = {"steps": 1, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "full"}}
    job = TrainingJob(
        x=x.numpy(),
        y=y.numpy(),
        model=module,
        phases=(FrozenMap(phase),),
        options=FrozenMap({"learning_rate": 0.1, "reduction": "mean"}),
        expected_batch_size=float(len(x)),
        device="cpu",
        seed=1,
    )
    parts = parts_of(job)
    everything = parts.schedule.phases[0].sampler.draw(None)
    return lambda: train_with(job, parts), lambda: parts.contributions(parts.initial, everything, 1.0)


def theirs(mode: str, module: Any, x: Any, y: Any) -> tuple[Work, Work]:
    """The same of Opacus' engine in one mode, without its loader."""
    from opacus import PrivacyEngine

    made = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
        criterion=torch.nn.CrossEntropyLoss(),
    )
    module, optimizer = made[:2]
    criterion = made[2] if mode == "ghost" else torch.nn.CrossEntropyLoss()

    def gradients() -> None:
        optimizer.zero_grad()
        criterion(module(x), y).backward()

    def step() -> None:
        gradients()
        optimizer.step()

    return step, gradients


def one(mode: str, kind: str) -> dict[str, float]:
    """One measurement: seconds of a step and of its gradients, and peak memory in MiB."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if mode != "dpspec":
        import opacus  # noqa: F401  counted among the libraries, not among what a step needs
    shape, batch = SETTINGS[kind]
    facts = Facts(records=batch, features=prod(shape), classes=CLASSES, shape=shape)
    (model,) = (model for model in MODELS if model.kind == kind)
    module = resolve(model.factory)(FrozenMap({}), facts).build(0)  # type: ignore[operator]
    source = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *shape, generator=source)
    y = torch.randint(0, CLASSES, (batch,), generator=source)
    before = _peak()
    step, gradients = ours(module, x, y) if mode == "dpspec" else theirs(mode, module, x, y)
    step()
    found = {"step": _seconds(step), "more": _peak() - before, "peak": _peak()}
    return {**found, "gradients": _seconds(gradients)}


def _seconds(work: Work) -> float:
    found = []
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return median(found)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(kind: str, rounds: int) -> None:
    """Measure all modes in turns and print their medians."""
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode in MODES:
            done = subprocess.run([sys.executable, __file__, "--one", mode, "--model", kind], stdout=-1, check=True)
            found[mode].append(json.loads(done.stdout))
    shape, batch = SETTINGS[kind]
    print(f"\n{kind}, {batch} records of {'x'.join(map(str, shape))}, one thread")
    print(f"{'':<12}{'step':>11}{'time':>8}{'gradients':>12}{'time':>8}{'peak':>9}{'of a step':>11}")
    print(f"{'':<12}{'records/s':>11}{'/ ours':>8}{'records/s':>12}{'/ ours':>8}{'MiB':>9}{'MiB':>11}")
    middle = {mode: {key: median(row[key] for row in rows) for key in rows[0]} for mode, rows in found.items()}
    for mode, row in middle.items():
        step, gradients = row["step"], row["gradients"]
        ratios = step / middle["dpspec"]["step"], gradients / middle["dpspec"]["gradients"]
        print(f"{mode:<12}{batch / step:>11.0f}{ratios[0]:>8.2f}{batch / gradients:>12.0f}{ratios[1]:>8.2f}", end="")
        print(f"{row['peak']:>9.0f}{row['more']:>11.0f}", flush=True)


def main() -> None:
    """Print one table per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=SETTINGS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one, given.model)))
        return
    for kind in [given.model] if given.model else SETTINGS:
        table(kind, given.rounds)


if __name__ == "__main__":
    main()
