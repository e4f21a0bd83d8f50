"""What it costs to audit every record: run by hand, ``python tests/benchmarks/per_instance.py``.

Kinds: one look at all records (norms, and whether the model is right) for each kind of model, against a pass of norms
alone, against one gradient after the other, and against what nothing can beat that goes through the model forwards and
backwards: torch's own gradient of the sum over as many records at once, without any norms. CPU seconds, interleaved,
least of several, with one thread and with two; and how many records are taken at once.

Norms: what observing adds to a run, against computing all per-example norms once for each observed step, and against
one gradient after the other. Means: Theorem 3.6 for many records by one product of matrices, against drawing every
record's mini-batches one by one. The ratio of looks to norms has to stay below 1.3.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from math import prod

import numpy as np
import torch

from dpspec.contract import Facts, FrozenMap, TrainingJob
from dpspec.models.providers import MODELS
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.native import NativeTrainer
from dpspec_per_instance import mean_rule
from dpspec_per_instance.observers import NormObserver

#: Kind, options, shape of a record, records of a look, records of a loop, classes.
KINDS: tuple[tuple[str, dict[str, object], tuple[int, ...], int, int, int], ...] = (
    ("logistic", {}, (64,), 50_000, 200, 2),
    ("linear", {}, (64,), 50_000, 200, 10),
    ("mlp", {"hidden": [32]}, (64,), 50_000, 200, 10),
    ("mlp", {"hidden": [256]}, (784,), 10_000, 200, 10),
    ("tabular-mlp", {}, (14,), 10_000, 200, 2),
    ("cnn-small", {}, (1, 28, 28), 1_024, 200, 10),
    ("lenet5", {}, (1, 28, 28), 2_048, 200, 10),
    ("transformer", {}, (64,), 512, 50, 2),
    ("resnet20", {}, (3, 32, 32), 64, 12, 10),
    ("wide-resnet-16-4", {}, (3, 32, 32), 16, 6, 10),
)

#: Of the columns of the table.
WIDTHS = (28, 8, 9, 9, 8, 9, 11, 9, 12)


def kinds(rounds: int) -> None:
    """A table for the number of threads that torch has now."""
    print(f"{torch.get_num_threads()} thread(s); microseconds of CPU time for one record")
    titles = zip(
        ("", "chunk", "norms", "look", "passes", "loop", "loop/look", "plain", "loop/plain"), WIDTHS, strict=True
    )
    print("".join(f"{title:>{width}}" for title, width in titles))
    for kind, options, shape, records, few, classes in KINDS:
        facts = Facts(
            records=records, features=prod(shape), classes=classes, shape=shape,
            vocabulary=5_000 if kind == "transformer" else None,
        )  # fmt: skip
        place, name = next(model.factory for model in MODELS if model.kind == kind).split(":")
        module = getattr(import_module(place), name)(FrozenMap(options), facts).build(0)
        source = torch.Generator().manual_seed(0)
        x = torch.randn(records, *shape, generator=source)
        if kind == "transformer":
            x = torch.randint(1, 5_000, (records, *shape), generator=source).float()
        y = torch.randint(0, classes, (records,), generator=source)
        model = FlatModel(module)
        state = model.initial()
        chunk = model.chunk(state, x, y)
        contenders: dict[str, tuple[Callable[[], object], int]] = {
            "norms": (lambda: model.look(state, x, y), records),  # noqa: B023
            "look": (lambda: model.look(state, x, y), records),  # noqa: B023
            "loop": (lambda: one_by_one(module, x[:few], y[:few]), few),  # noqa: B023
            "plain": (lambda: plain(module, x, y, chunk), records),  # noqa: B023
        }
        found = dict.fromkeys(contenders, float("inf"))
        for _ in range(rounds):
            for what, (work, count) in contenders.items():
                found[what] = min(found[what], seconds(work, 1) / count * 1e6)
        norms, look, loop, alone = found.values()
        shown = (
            *(" ".join([kind, "x".join(map(str, shape))]), str(chunk), f"{norms:.1f}", f"{look:.1f}"),
            *(f"{look / norms:.2f}", f"{loop:.0f}", f"{loop / look:.1f}", f"{alone:.1f}", f"{loop / alone:.1f}"),
        )
        print("".join(f"{text:>{width}}" for text, width in zip(shown, WIDTHS, strict=True)), flush=True)


def plain(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, chunk: int) -> None:
    """The gradient of the summed loss, nothing by record: forward and backward, as torch has them."""
    for some_x, some_y in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        loss = torch.nn.functional.cross_entropy(module(some_x), some_y, reduction="sum")
        torch.autograd.grad(loss, list(module.parameters()))


def seconds(work: Callable[[], object], times: int = 5) -> float:
    """The least CPU time of a few."""
    found = []
    for _ in range(times):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def norms(records: int = 50_000, steps: int = 40, every: int = 5) -> None:
    """Observing, against the norms alone."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(records, 64)).astype(np.float32), rng.integers(0, 10, records)
    phase = {"steps": steps, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "poisson", "rate": 0.01}}

    def job(observed: bool) -> TrainingJob:
        model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
        made = TrainingJob(
            x=x, y=y, model=model, phases=[FrozenMap(phase)], expected_batch_size=100.0, device="cpu", seed=0,
            options=FrozenMap({"learning_rate": 0.1, "reduction": "mean"}),
        )  # fmt: skip
        if observed:
            watcher = NormObserver(made, torch.tensor(x), torch.tensor(y), range(1, steps + 1, every))
            made = TrainingJob(**{**made.__dict__, "observers": (watcher,)})
        return made

    trainer = NativeTrainer()
    plain, watched = (seconds(lambda o=o: trainer.train(job(o))) for o in (False, True))  # type: ignore[misc]
    model = FlatModel(job(False).model)
    state, tx, ty = model.initial(), torch.tensor(x), torch.tensor(y)
    looks = len(range(1, steps + 1, every))
    alone = looks * seconds(lambda: model.look(state, tx, ty))
    slow = looks * seconds(lambda: one_by_one(job(False).model, tx[:200], ty[:200]), 2) * records / 200
    observing = watched - plain
    print(
        f"{records} records, {looks} observations: {observing:.3f} s, {observing / alone:.2f} times the norms alone "
        f"({alone:.3f} s); one record after the other {slow:.1f} s ({slow / observing:.0f}x)"
    )
    if observing > 1.3 * alone:
        raise SystemExit("observing costs more than 1.3 times the norms alone")


def one_by_one(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """The straightforward way: a gradient per record."""
    found = []
    for place in range(len(x)):
        loss = torch.nn.functional.cross_entropy(model(x[place : place + 1]), y[place : place + 1])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        found.append(float(torch.sqrt(torch.stack([part.square().sum() for part in parts]).sum())))
    return found


def means(records: int = 1500, width: int = 2410, points: int = 30, order: int = 8) -> None:
    """One product of matrices, against every record's mini-batches one by one."""
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(records, width)).astype(np.float32) / width**0.5
    chosen = np.arange(points)

    def together() -> object:
        batches = mean_rule.draw(np.random.default_rng(1), records, 64 / records, 20, 20, order)
        return mean_rule.estimate_kinds(gradients, gradients[chosen], chosen, batches, None, 0.8)

    def one_by_one() -> None:
        generator = np.random.default_rng(1)
        for point in chosen[:2]:
            others = np.delete(np.arange(records), point)
            for _ in range(2):  # directions

                def mean(of: np.ndarray) -> np.ndarray:
                    drawn = of[generator.random(len(of)) < 64 / records]
                    return gradients[drawn].mean(axis=0) if len(drawn) else np.zeros(width, dtype=np.float32)

                exponents = np.zeros((20, 20))
                for o in range(20):
                    base = mean(others)
                    for i in range(20):
                        v = np.stack([mean(np.arange(records)) - base for _ in range(order)])
                        exponents[o, i] = 0.5 * (np.square(v.sum(0)).sum() - np.square(v).sum()) / 0.64
                mean_rule.plug_in(exponents, order)

    fast, slow = seconds(together, 2), seconds(one_by_one, 1) * points / 2
    print(f"{points} records, both directions: {fast:.2f} s, one by one {slow:.1f} s ({slow / fast:.0f}x)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kinds", action="store_true", help="nothing but the kinds of models")
    given = parser.parse_args()
    for count in given.threads:
        torch.set_num_threads(count)
        kinds(given.rounds)
    if not given.kinds:
        torch.set_num_threads(1)
        norms()
        means()
