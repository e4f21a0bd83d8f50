"""The cost of a recording: steps of a model with Opacus, with and without a recorder, alternating.

    python tests/benchmarks/recording.py [--model mlp cnn text] [--batch 64 256] [--steps 300] [--parts]

The CNN has 1.2 million parameters, the MLP 12 thousand. "text" is four blocks of a transformer without attention, 0.9
million parameters, on sequences of 64 tokens, with ghost clipping. The two trainings of a model take turns after ten
steps, each in its own process, so that a busy machine slows both. Times are CPU times of the process. The first 50
steps are audited, and some steps are replayed: their cost is fixed, and is printed in seconds. Medians and means are of
the later steps that are not replayed.
``--parts`` divides the milliseconds of a recorded step among what the recorder does, each without the parts inside it;
the clock costs about a microsecond for each call.
"""

import argparse
import collections
import contextlib
import functools
import multiprocessing
import statistics
import tempfile
import time
import warnings
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpspec
from dpspec_recording.adapters.opacus import OpacusTraining
from dpspec_recording.model_hook import ModelHook
from dpspec_recording.observers.rules import Rules
from dpspec_recording.observers.update_rule.second_optimizer import RecordInputs
from dpspec_recording.step_replay.loaded_batch import _NotedCollate
from dpspec_recording.step_replay.watch import ReplayedSteps
from dpspec_recording.sums.stepped_gradients import SteppedGradients
from dpspec_recording.watched_training import WatchedTraining
from dpspec_recording.watching.module_values import ModuleValues
from dpspec_recording.watching.optimizer_updates import AuditedUpdates
from dpspec_recording.watching.options import OptionWatch
from dpspec_recording.watching.parameter_watch import ParameterWatch

#: The methods of each part of the recorder.
PARTS = {
    "copies of the sum and of the noise": [(OpacusTraining, "_begin_sum _after_sum _before_noise _after_noise")],
    "statistics of noise, and norms": [(OpacusTraining, "read")],
    "divisor, and sums between steps": [(SteppedGradients, "compare divide keep keep_divided end")],
    "parameters (versions, digests)": [(ParameterWatch, "moved advance"), (ModuleValues, "compare")],
    "update and state of the optimizer": [(AuditedUpdates, "before_step after_step")],
    "options and learning rate": [(OptionWatch, "read changes")],
    "rules": [(Rules, "after_step"), (RecordInputs, "_observe")],
    "replays: batches, and steps": [
        (ReplayedSteps, "_load _begin _note before_noise after_step"),
        (_NotedCollate, "__call__"),
    ],
    "hooks of the model": [(ModelHook, "__call__")],
    "writing": [(WatchedTraining, "_write_waiting")],
    "the other code around a step": [(WatchedTraining, "guarded")],
}

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


def serve(kind, batch, pipe: Connection):
    """Make as many steps of a training without a recorder as each message says, and send their seconds and sizes."""
    warnings.simplefilter("ignore")
    steps, _ = training(kind, batch)
    while count := pipe.recv():
        pipe.send([timed(steps) for _ in range(count)])


def timed(steps):
    begun = time.process_time()
    size = next(steps)
    return time.process_time() - begun, size


@contextlib.contextmanager
def without_recorder(kind, batch):
    """A function that makes steps in a process of its own: here, the recorder would replay the other optimizer."""
    pipe, other_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(kind, batch, other_end))
    process.start()

    def made(count):
        pipe.send(count)
        return pipe.recv()

    try:
        yield made
    finally:
        pipe.send(0)
        process.join()


class Clock:
    """The seconds of each part of the recorder since the last :meth:`take`."""

    def __init__(self):
        self.seconds, self._inside = collections.Counter(), [0.0]

    def _timed(self, part, method):
        @functools.wraps(method)
        def timed(*arguments, **options):
            begun = time.thread_time()
            self._inside.append(0.0)
            try:
                return method(*arguments, **options)
            finally:
                spent = time.thread_time() - begun
                self.seconds[part] += spent - self._inside.pop()
                self._inside[-1] += spent

        return timed

    @contextlib.contextmanager
    def running(self):
        with contextlib.ExitStack() as undo:
            for part, methods in PARTS.items():
                for kind, name in [(kind, name) for kind, names in methods for name in names.split()]:
                    method = getattr(kind, name)
                    undo.callback(setattr, kind, name, method)
                    setattr(kind, name, self._timed(part, method))
            yield self

    def take(self):
        seconds, self.seconds = self.seconds, collections.Counter()
        return seconds


def measure_parts(kind, batch, count):
    """Print the milliseconds of each part of the recorder in audited and in later steps."""
    rows = {"audited": [], "later": []}
    totals = {"audited": [], "later": [], "without": []}
    steps, parts = training(kind, batch)
    with (
        Clock().running() as clock,
        without_recorder(kind, batch) as plain,
        tempfile.TemporaryDirectory() as folder,
        dpspec.record(Path(folder) / "run", **parts) as run,
    ):
        replays = run._training._training.replayer
        for number in range(FIRST + count):
            ((unrecorded, _),) = plain(1)
            clock.take()
            tried = replays.facts.tried
            spent, _ = timed(steps)
            if replays.facts.tried == tried and number % FIRST > 1:  # not replayed, and warm
                totals["without"].append(unrecorded)
                name = "audited" if number < FIRST else "later"
                totals[name].append(spent)
                rows[name].append(clock.take())
    print(f"{kind}, batches of {batch}, milliseconds per step: means, and medians of whole steps")
    for part in PARTS:
        means = (1e3 * statistics.fmean(row[part] for row in rows[name]) for name in rows)
        print("  {:36} audited {:7.3f}  later {:7.3f}".format(part, *means))
    for name, seconds in totals.items():
        mean, median = 1e3 * statistics.fmean(seconds), 1e3 * statistics.median(seconds)
        print(f"  a step, {name:28} mean {mean:7.3f}  median {median:7.3f}")


def measure(kind, batch, count):
    """Print the cost of a recording of one model."""
    seconds, first, replayed = {"without": [], "with": []}, {"without": 0.0, "with": 0.0}, []
    with tempfile.TemporaryDirectory() as folder, without_recorder(kind, batch) as plain:
        steps, parts = training(kind, batch)
        where = Path(folder) / "run"
        with dpspec.record(where, **parts) as run:
            replays = run._training._training.replayer
            for start in range(0, FIRST + count, TURN):
                rows = [("without", *row, False) for row in plain(TURN)]
                for _ in range(TURN):
                    tried = replays.facts.tried
                    row = timed(steps)
                    rows.append(("with", *row, replays.facts.tried > tried))
                for name, spent, size, is_replayed in rows:
                    first[name] += spent if start < FIRST else 0.0
                    if start >= FIRST:
                        times = replayed if is_replayed else seconds[name]
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
    parser.add_argument("--parts", action="store_true", help="what a recorded step spends its time on")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for kind, batch in product(given.model, given.batch):
        (measure_parts if given.parts else measure)(kind, batch, given.steps or (300 if kind == "mlp" else 60))


if __name__ == "__main__":
    main()
