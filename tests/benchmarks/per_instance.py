"""What it costs to audit every record: run by hand, ``python tests/benchmarks/per_instance.py``.

Norms: what observing adds to a run, against computing all per-example norms once for each observed step, and against
one gradient after the other. Means: Theorem 3.6 for many records by one product of matrices, against drawing every
record's mini-batches one by one. The first ratio has to stay below 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from dpspec.contract import FrozenMap, TrainingJob
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.native import NativeTrainer
from dpspec_per_instance.observers import NormObserver
from dpspec_per_instance.printed import mean_rule


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
    alone = looks * seconds(lambda: model.norms(state, tx, ty))
    slow = looks * seconds(lambda: one_by_one(job(False).model, tx[:200], ty[:200]), 2) * records / 200
    observing = watched - plain
    print(
        f"{records} records, {looks} observations: {observing:.3f} s, {observing / alone:.2f} times the norms alone "
        f"({alone:.3f} s); one record after the other {slow:.1f} s ({slow / observing:.0f}x)"
    )
    if observing > 2.0 * alone:
        raise SystemExit("observing costs more than twice the norms alone")


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
    torch.set_num_threads(1)
    norms()
    means()
