"""The cost of a recording: steps of a model with Opacus, with and without a recorder, alternating.

    python tests/benchmarks/recording.py [--model mlp cnn text] [--batch 64 256] [--steps 300]

The CNN has 1.2 million parameters, the MLP 12 thousand. "text" is four blocks of a transformer without attention, 0.9
million parameters, on sequences of 64 tokens, with ghost clipping. The two trainings of a model take
turns after ten steps, so that a busy machine slows both, and each finds its own code in the processor's caches, as it
does without the other. Times are CPU times of the process. The first 50 steps are audited, and some steps are replayed:
their cost is fixed, and is printed in seconds. Medians and means are of the later steps that are not replayed.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from itertools import product
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpspec

TURN, FIRST, WORDS, LENGTH = 10, 50, 1000, 64


def network(kind):
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 10))
    if kind == "text":
        blocks = [(nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4)]
        every = [module for block in blocks for module in block]
        return nn.Sequential(nn.Embedding(WORDS, 128), *every, nn.Linear(128, WORDS))
    sizes = ((3, 32, 1), (32, 64, 2), (64, 64, 2))
    layers = [(nn.Conv2d(a, b, 3, stride=stride, padding=1), nn.ReLU()) for a, b, stride in sizes]
    convolutions = [layer for pair in layers for layer in pair]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 8 * 8, 270), nn.ReLU(), nn.Linear(270, 10))


def training(kind, batch):
    """A generator that makes one step at each ``next``, and the parts of its training."""
    torch.manual_seed(0)
    shape = (64,) if kind == "mlp" else (3, 32, 32)
    data = TensorDataset(torch.randn(40 * batch, *shape), torch.randint(0, 10, (40 * batch,)))
    if kind == "text":
        data = TensorDataset(*torch.randint(0, WORDS, (2, 40 * batch, LENGTH)))
    model, engine, criterion = network(kind), PrivacyEngine(accountant="rdp"), nn.CrossEntropyLoss()
    model, optimizer, *others, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        criterion=criterion,
        grad_sample_mode="ghost" if kind == "text" else "hooks",
    )
    criterion = others[0] if others else criterion  # of Opacus, with ghost clipping

    def steps():
        while True:
            for x, y in loader:
                optimizer.zero_grad()
                shape = {"shape": y.shape} if others else {}
                criterion(model(x).flatten(0, -2), y.flatten(), **shape).backward()
                optimizer.step()
                yield len(x)

    return steps(), {"model": model, "optimizer": optimizer, "loader": loader, "engine": engine}


def measure(kind, batch, count):
    """Print the cost of a recording of one model."""
    seconds, first, replayed = {"without": [], "with": []}, {"without": 0.0, "with": 0.0}, []
    with tempfile.TemporaryDirectory() as folder:
        trainings = {name: training(kind, batch) for name in seconds}
        where, parts = Path(folder) / "run", trainings["with"][1]
        with dpspec.record(where, **parts) as run:
            replays = run._training._replays
            for start in range(0, FIRST + count, TURN):
                for name, (steps, _) in trainings.items():
                    for _ in range(TURN):
                        begun, tried = time.process_time(), replays.counts[0]
                        size = next(steps)
                        spent = time.process_time() - begun
                        first[name] += spent if start < FIRST else 0.0
                        if start >= FIRST:
                            times = replayed if replays.counts[0] > tried else seconds[name]
                            times.append(spent / max(1, size))
        size = sum(path.stat().st_size for path in where.iterdir()) / (FIRST + count)
    parameters = sum(p.numel() for p in parts["model"].parameters())
    print(f"{kind}: {parameters} parameters, batch {batch}, {torch.get_num_threads()} threads")
    print(f"  first    {first['with'] - first['without']:8.3f} s longer for {FIRST} steps with the recorder")
    longer = batch * (sum(replayed) - len(replayed) * statistics.median(seconds["without"]))
    print(f"  replayed {longer:8.3f} s longer for {len(replayed)} later steps")
    for name, times in seconds.items():
        middle = 1e3 * statistics.median(times) * batch
        print(f"  {name:8} {middle:8.3f} ms per step of {batch} records (median of {len(times)} later ones)")
    for words, average in (
        ("medians", statistics.median),
        ("means, with audited steps", statistics.fmean),
    ):
        print(f"  ratio    {average(seconds['with']) / average(seconds['without']):8.3f} of {words}")
    print(f"  folder   {size:8.0f} bytes per step, {size / 10:.0f} MB at 10^5 steps")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("cnn", "mlp", "text"), nargs="+", default=("mlp", "cnn", "text"))
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--steps", type=int, help="default: 300 for the MLP, 60 for the CNN")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for kind, batch in product(given.model, given.batch):
        measure(kind, batch, given.steps or (300 if kind == "mlp" else 60))


if __name__ == "__main__":
    main()
