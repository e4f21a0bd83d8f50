"""The cost of a recording: steps of a model with Opacus, with and without a recorder, alternating.

    python tests/benchmarks/recording.py [--model mlp cnn] [--batch 64] [--steps 300] [--device cpu] [--probe]

The CNN has 1.2 million parameters, the MLP 12 thousand; both are measured by default. --probe turns on the sensitivity
probe.

Steps alternate between the trainings of a model, so that a busy machine slows all of them. Times on a CPU are CPU times
of the process, times on a GPU are wall-clock times. Memory is the peak of tensors that are alive on a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpspec


def network(kind):
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 10))
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 270),
        nn.ReLU(),
        nn.Linear(270, 10),
    )


def training(kind, batch, device):
    """A generator that makes one step at each ``next``, and the parts of its training."""
    torch.manual_seed(0)
    shape = (64,) if kind == "mlp" else (3, 32, 32)
    data = TensorDataset(torch.randn(40 * batch, *shape), torch.randint(0, 10, (40 * batch,)))
    model = network(kind).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    criterion = nn.CrossEntropyLoss()

    def steps():
        while True:
            for x, y in loader:
                optimizer.zero_grad()
                criterion(model(x.to(device)), y.to(device)).backward()
                optimizer.step()
                if device != "cpu":
                    torch.cuda.synchronize()
                yield len(x)

    return steps(), model, optimizer, loader, engine


def loss(model, batch):
    device = next(model.parameters()).device
    return nn.functional.cross_entropy(model(batch[0].to(device)), batch[1].to(device), reduction="none")


def measure(kind, given):
    """Print the cost of a recording of one model."""
    clock = time.process_time if given.device == "cpu" else time.perf_counter
    steps = given.steps or (300 if kind == "mlp" else 60)
    names = ["without", "with"]
    seconds = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        trainings = {name: training(kind, given.batch, given.device) for name in names}
        before = torch.cuda.memory_allocated() if given.device != "cpu" else 0
        _, model, optimizer, loader, engine = trainings["with"]
        where = Path(folder) / "run"
        probe = {"loss": loss} if given.probe else {}
        parts = {"model": model, "optimizer": optimizer, "loader": loader, "engine": engine}
        stack.enter_context(dpspec.record(where, **parts, **probe))
        kept = torch.cuda.memory_allocated() - before if given.device != "cpu" else 0
        peaks = {}
        for number in range(steps + 2):
            for name, (next_step, *_) in trainings.items():
                if given.device != "cpu":
                    torch.cuda.reset_peak_memory_stats()
                begun = clock()
                size = next(next_step)
                if number >= 2:
                    seconds[name].append((clock() - begun) / max(1, size))
                if given.device != "cpu":
                    peaks[name] = max(peaks.get(name, 0), torch.cuda.max_memory_allocated())
        stack.close()
        size = sum(path.stat().st_size for path in where.iterdir()) / (steps + 2)
    parameters = sum(p.numel() for p in model.parameters())
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    mean = {name: statistics.fmean(times) for name, times in seconds.items()}
    print(f"{kind}: {parameters} parameters, batch {given.batch}, {given.device}, {torch.get_num_threads()} threads")
    for name, value in middle.items():
        print(f"  {name:8} {1e3 * value * given.batch:8.3f} ms per step of {given.batch} records (median of {steps})")
    print(f"  ratio    {middle['with'] / middle['without']:8.3f} of medians")
    print(f"  ratio    {mean['with'] / mean['without']:8.3f} of means, with the steps that are recomputed")
    print(f"  folder   {size:8.0f} bytes per step, {size / 10:.0f} MB at 10^5 steps")
    if given.device != "cpu":
        print(
            f"  kept on the device {kept / 1e6:.1f} MB; peaks { ({k: round(v / 1e6, 1) for k, v in peaks.items()}) } MB"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("cnn", "mlp"), nargs="+", default=("mlp", "cnn"))
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, help="default: 300 for the MLP, 60 for the CNN")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for kind in given.model:
        measure(kind, given)


if __name__ == "__main__":
    main()
