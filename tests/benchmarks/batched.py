"""Many small runs at once against the same runs one after the other: ``python tests/benchmarks/batched.py``.

Both train the same jobs (Poisson batches, clipping, noise, a step); interleaved, the median of five. Read the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from dpspec.contract import FrozenMap, TrainingJob
from dpspec.training.loop.native import NativeTrainer, run_batched

FEATURES, CLASSES, RECORDS = 64, 10, 1437

MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(FEATURES, CLASSES),
    "mlp, 32 hidden": lambda: nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
    "mlp, 128 hidden": lambda: nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    "cnn, 8 channels": lambda: nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, CLASSES)),
    ),
}


def jobs(model: Callable[[], nn.Module], batch: int, runs: int, steps: int, device: str) -> list[TrainingJob]:
    """The same rows for all runs, seeds of their own."""
    source = np.random.default_rng(0)
    x = source.standard_normal((RECORDS, FEATURES)).astype(np.float32)
    y = source.integers(0, CLASSES, RECORDS)
    sampling = {"scheme": "poisson", "rate": batch / RECORDS}
    phase = FrozenMap({"steps": steps, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": sampling})
    options = FrozenMap({"learning_rate": 0.1, "reduction": "mean"})
    return [
        TrainingJob(
            x=x,
            y=y,
            model=model(),
            phases=(phase,),
            options=options,
            expected_batch_size=float(batch),
            device=device,
            seed=seed,
        )
        for seed in range(runs)
    ]


def seconds(work: Callable[[], object], device: str) -> float:
    """How long it takes, until the device is done."""
    began = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--alone", type=int, default=8, help="how many of the runs are timed one after the other")
    given = parser.parse_args()
    print(
        f"{given.runs} runs, {torch.get_num_threads()} threads, {given.device}; milliseconds for one step of all runs"
    )
    print(f"{'model':<16} {'batch':>5} {'together':>9} {'one by one':>11} {'ratio':>6}")
    for name, model in MODELS.items():
        for batch in (16, 64):
            every = jobs(model, batch, given.runs, given.steps, given.device)
            some = every[: given.alone]
            pairs = []
            for _ in range(6):
                together = seconds(lambda: run_batched(every), given.device)  # noqa: B023
                alone = seconds(lambda: [NativeTrainer().train(job) for job in some], given.device)  # noqa: B023
                pairs.append((together, alone * given.runs / len(some)))
            warm = pairs[1:]
            ratio = statistics.median(alone / together for together, alone in warm)
            times = [statistics.median(column) / given.steps * 1e3 for column in zip(*warm, strict=True)]
            print(f"{name:<16} {batch:>5} {times[0]:>9.2f} {times[1]:>11.1f} {ratio:>6.1f}", flush=True)


if __name__ == "__main__":
    main()
