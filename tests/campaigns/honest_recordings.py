"""Honest trainings, each recorded and checked: none may deviate, and none may stay open without a stated reason.

    python tests/campaigns/honest_recordings.py [--only WORDS] [--seeds 25]

One line per training: the exit code of ``dpspec check --epsilon 100``, the first line of its output, the status of each
channel that is neither verified, tested nor assumed. Exits with 1 if a training deviates, or if its verdict is not the
expected one.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from opacus import PrivacyEngine
from opacus.schedulers import (
    ExponentialGradClip,
    ExponentialNoise,
    LambdaGradClip,
    LambdaNoise,
    StepGradClip,
    StepNoise,
)
from opacus.utils.batch_memory_manager import BatchMemoryManager
from support.opacus_training import Training
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler as schedulers
from torch.utils.checkpoint import checkpoint
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import dpspec
from dpspec.cli.app import main as dpspec_command

Run = Callable[[Path], None]

#: Torch's optimizers that step without a closure, with the options that people set.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd nesterov, weight decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.05, foreach=True),
    "sgd maximize": lambda p: torch.optim.SGD(p, lr=1e-4, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True, betas=(0.8, 0.95)),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-3),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
}

#: Schedulers of the learning rate; all but the last step without looking at the data.
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: schedulers.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [4, 9], 0.3),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.2, 1.0, 8),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.95),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 20),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 20),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 5),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 5),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=40),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda n: 0.97**n),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda n: 0.99),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 5), schedulers.CosineAnnealingLR(o, 20)], [5]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.LinearLR(o, 0.1, 1.0, 5), schedulers.ExponentialLR(o, 0.98)]
    ),
}


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def table(records: int = 300) -> TensorDataset:
    x = torch.randn(records, 6)
    return TensorDataset(x, (x[:, 0] > 0).long())


def pictures() -> TensorDataset:
    return TensorDataset(torch.randn(200, 1, 8, 8), torch.randint(0, 2, (200,)))


def words() -> TensorDataset:
    return TensorDataset(torch.randint(0, 30, (200, 7)), torch.randint(0, 2, (200,)))


class Flipped(Dataset):
    """A dataset with a random augmentation of each record alone."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return (-x if torch.rand(()) < 0.5 else x), y


def opacus(
    folder: Path,
    *,
    seed: int = 0,
    model: Callable[[], nn.Module] = small,
    data: Callable[[], Any] = table,
    optimizer: Callable[[Any], torch.optim.Optimizer] = OPTIMIZERS["sgd"],
    schedule: Callable[[Any], Any] | None = None,
    scheduled: Callable[[Any], Any] | None = None,
    per_epoch: bool = False,
    parameters: Callable[[nn.Module], Any] = nn.Module.parameters,
    epochs: int = 2,
    batch: int = 30,
    workers: int = 0,
    physical: int | None = None,
    forward: Callable[[nn.Module, Any], Any] = lambda model, x: model(x),
    after_step: Callable[[nn.Module], None] = lambda model: None,
    before: Callable[[nn.Module], None] = lambda model: None,
    **engine_options: Any,
) -> None:
    """Train with Opacus and record it. ``schedule`` schedules torch's optimizer, ``scheduled`` Opacus' one."""
    torch.manual_seed(seed)
    network = model()
    before(network)
    engine = PrivacyEngine()
    network, private, loader = engine.make_private(
        module=network,
        optimizer=optimizer(parameters(network)),
        data_loader=DataLoader(data(), batch_size=batch, num_workers=workers),
        **{"noise_multiplier": 1.1, "max_grad_norm": 1.0} | engine_options,
    )
    schedule_of = schedule(private.original_optimizer) if schedule is not None else None
    private_schedule = scheduled(private) if scheduled is not None else None
    with dpspec.record(folder, model=network, optimizer=private, loader=loader, engine=engine):
        for _ in range(epochs):
            batches: Any = contextlib.nullcontext(loader)
            if physical is not None:
                batches = BatchMemoryManager(data_loader=loader, max_physical_batch_size=physical, optimizer=private)
            with batches as logical:
                for x, y in logical:
                    private.zero_grad()
                    cross_entropy(forward(network, x), y).backward()
                    private.step()
                    after_step(network)
                    if not per_epoch:
                        for one in (schedule_of, private_schedule):
                            if one is not None:
                                one.step()
            if per_epoch:
                for one in (schedule_of, private_schedule):
                    if one is not None:
                        one.step()


def plain(
    folder: Path,
    *,
    seed: int = 0,
    optimizer: Callable[[Any], torch.optim.Optimizer] = OPTIMIZERS["sgd"],
    schedule: Callable[[Any], Any] | None = None,
    steps: int = 25,
    rate: float = 0.1,
    noise: float = 1.3,
    clip: float = 0.7,
    mean: bool = True,
) -> None:
    """A loop written by hand, which reports its batches, norms, sum and noise to the recorder."""
    torch.manual_seed(seed)
    data, model = table(), small()
    x, y = data.tensors
    stepper = optimizer(model.parameters())
    schedule_of = schedule(stepper) if schedule is not None else None
    with dpspec.record(
        folder, model=model, optimizer=stepper, noise_multiplier=noise, clip_norm=clip, rate=rate, records=len(x)
    ) as run:
        for _ in range(steps):
            drawn = torch.nonzero(torch.rand(len(x)) < rate).reshape(-1)
            run.sampled(drawn)
            total = [torch.zeros_like(p) for p in model.parameters()]
            norms = []
            for i in drawn.tolist():
                grads = torch.autograd.grad(cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
                norm = torch.sqrt(sum(g.square().sum() for g in grads))
                factor = min(1.0, clip / (float(norm) + 1e-6))
                norms.append(float(norm) * factor)
                for sum_, grad in zip(total, grads, strict=True):
                    sum_ += factor * grad
            run.clipped(norms)
            run.summed(total)
            added = [noise * clip * torch.randn_like(t) for t in total]
            run.noised(added)
            for p, sum_, extra in zip(model.parameters(), total, added, strict=True):
                p.grad = (sum_ + extra) / (rate * len(x) if mean else 1.0)
            stepper.step()
            run.stepped()
            if schedule_of is not None:
                schedule_of.step()


class Counting(nn.Module):
    """Has attributes of its own that training does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()
        self.labels = ["no", "yes"]
        self.scale = torch.ones(2)
        self.register_buffer("mask", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.body(self.mask * x)


class LowRank(nn.Module):
    """A frozen layer and a trained update of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 16)
        self.base.requires_grad_(False)
        self.down, self.up, self.head = nn.Linear(6, 2, bias=False), nn.Linear(2, 16, bias=False), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.base(x) + self.up(self.down(x))))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 2)
    )


def recurrent() -> nn.Module:
    from opacus.layers import DPGRU

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.gru, self.head = nn.Embedding(30, 8), DPGRU(8, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.gru(self.embed(x))[0][:, -1])

    return Last()


def half(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x).float()


def recomputed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model, x.clone().requires_grad_(), use_reentrant=True)


def evaluated(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.zeros(1, 6))
    model.train()


def averaged() -> Callable[[nn.Module], None]:
    averages: list[nn.Module] = []

    def update(model: nn.Module) -> None:
        if not averages:
            averages.append(copy.deepcopy(model._module))
        with torch.no_grad():
            for kept, now in zip(averages[0].parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 0.1)

    return update


def two_groups(model: nn.Module) -> Any:
    parameters = list(model.parameters())
    return [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:], "weight_decay": 1e-3}]


def trained(model: nn.Module) -> Any:
    return [p for p in model.parameters() if p.requires_grad]


def frozen(model: nn.Module) -> None:
    next(model.parameters()).requires_grad_(False)


def of_training(folder: Path, **made: Any) -> None:
    Training(**made).run(folder)


def cases(seeds: int) -> Iterator[tuple[str, Run, str]]:
    """Every training: its name, the training, and the expected start of the verdict line."""
    for name, optimizer in OPTIMIZERS.items():
        yield f"opacus, {name}", lambda f, o=optimizer: opacus(f, optimizer=o), "PROVED"
        yield f"plain loop, {name}", lambda f, o=optimizer: plain(f, optimizer=o), "PROVED"
    for name, schedule in SCHEDULES.items():
        momentum = OPTIMIZERS["sgd momentum"]
        yield f"opacus, {name}", lambda f, s=schedule, o=momentum: opacus(f, optimizer=o, schedule=s), "PROVED"
        yield f"plain loop, {name}", lambda f, s=schedule, o=momentum: plain(f, optimizer=o, schedule=s), "PROVED"
    for name in ("StepLR", "OneCycleLR", "CosineAnnealingLR"):
        yield (
            f"opacus, {name} around the private optimizer, adamw, once an epoch",
            lambda f, s=SCHEDULES[name]: opacus(f, optimizer=OPTIMIZERS["adamw"], scheduled=s, per_epoch=True),
            "PROVED",
        )
    opacus_schedules: dict[str, Callable[[Any], Any]] = {
        "ExponentialNoise": lambda o: ExponentialNoise(o, gamma=0.99),
        "StepNoise": lambda o: StepNoise(o, step_size=5, gamma=0.9),
        "LambdaNoise": lambda o: LambdaNoise(o, noise_lambda=lambda n: 0.99**n),
        "ExponentialGradClip": lambda o: ExponentialGradClip(o, gamma=0.99),
        "StepGradClip": lambda o: StepGradClip(o, step_size=5, gamma=0.9),
        "LambdaGradClip": lambda o: LambdaGradClip(o, scheduler_function=lambda n: 0.99**n),
    }
    for name, schedule in opacus_schedules.items():
        yield f"opacus, {name}", lambda f, s=schedule: opacus(f, scheduled=s), "PROVED"
    for clipping in ("flat", "per_layer", "adaptive", "ghost"):
        for physical in (None, 7):
            for kind in ("sgd", "adamw"):
                yield (
                    f"opacus, clipping {clipping}, {kind}, physical batches of {physical}",
                    lambda f, c=clipping, p=physical, k=kind: of_training(f, clipping=c, physical=p, optimizer=k),
                    "OPEN" if clipping == "adaptive" else "PROVED",
                )
    for accountant in ("rdp", "gdp", "prv"):
        yield f"opacus, accountant {accountant}", lambda f, a=accountant: of_training(f, accountant=a), "PROVED"
    yield "opacus, sum of losses", lambda f: of_training(f, reduction="sum"), "PROVED"
    yield "opacus, sum of losses, physical batches", lambda f: of_training(f, reduction="sum", physical=8), "PROVED"
    for workers in (1, 2):
        yield f"opacus, {workers} workers", lambda f, w=workers: of_training(f, workers=w), "PROVED"
        yield f"opacus, {workers} workers, memory", lambda f, w=workers: of_training(f, workers=w, physical=9), "PROVED"
    for canaries in (20, 60):
        yield f"opacus, {canaries} canaries", lambda f, c=canaries: of_training(f, canaries=c), "PROVED"
    yield "opacus, one step an epoch", lambda f: opacus(f, batch=300, epochs=3), "PROVED"
    yield "opacus, batches of one record", lambda f: opacus(f, batch=1, epochs=1), "PROVED"
    yield "opacus, 200 steps", lambda f: opacus(f, epochs=20), "PROVED"
    yield "opacus, large noise", lambda f: opacus(f, noise_multiplier=20.0), "PROVED"
    yield "opacus, small clip norm", lambda f: opacus(f, max_grad_norm=1e-3), "PROVED"
    yield "opacus, large clip norm", lambda f: opacus(f, max_grad_norm=1e3), "PROVED"
    yield "opacus, convolutions, dropout, group norm", lambda f: opacus(f, model=convolutional, data=pictures), "PROVED"
    yield "opacus, embedding and recurrent layer", lambda f: opacus(f, model=recurrent, data=words), "PROVED"
    yield "opacus, embedding, physical batches", lambda f: opacus(f, model=recurrent, data=words, physical=6), "PROVED"
    yield "opacus, low-rank update", lambda f: opacus(f, model=LowRank, parameters=trained), "PROVED"
    yield "opacus, frozen layer", lambda f: opacus(f, before=frozen, parameters=trained), "PROVED"
    yield "opacus, two parameter groups", lambda f: opacus(f, parameters=two_groups), "PROVED"
    yield (
        "opacus, two parameter groups, OneCycleLR",
        lambda f: opacus(
            f, parameters=two_groups, optimizer=OPTIMIZERS["sgd momentum"], schedule=SCHEDULES["OneCycleLR"]
        ),
        "PROVED",
    )
    yield "opacus, attributes and buffers", lambda f: opacus(f, model=Counting), "PROVED"
    yield "opacus, recomputed activations", lambda f: opacus(f, forward=recomputed), "PROVED"
    yield "opacus, bfloat16 autocast", lambda f: opacus(f, forward=half), "PROVED"
    yield "opacus, evaluation after each step", lambda f: opacus(f, after_step=evaluated), "PROVED"
    yield "opacus, averaged copy", lambda f: opacus(f, after_step=averaged()), "PROVED"
    yield "opacus, augmentation", lambda f: opacus(f, data=lambda: Flipped(table())), "PROVED"
    yield "opacus, subset", lambda f: opacus(f, data=lambda: Subset(table(400), range(50, 350))), "PROVED"
    yield "opacus, concatenated", lambda f: opacus(f, data=lambda: ConcatDataset([table(100), table(200)])), "PROVED"
    yield "opacus, functorch gradients", lambda f: opacus(f, grad_sample_mode="functorch"), "PROVED"
    yield "opacus, expanded weights", lambda f: opacus(f, grad_sample_mode="ew"), "PROVED"
    yield "plain loop, sum", lambda f: plain(f, mean=False), "PROVED"
    yield "plain loop, 100 steps", lambda f: plain(f, steps=100, rate=0.03), "PROVED"
    yield "plain loop, one step", lambda f: plain(f, steps=1), "PROVED"
    yield "plain loop, small clip norm", lambda f: plain(f, clip=1e-3), "PROVED"
    for seed in range(1, seeds + 1):
        yield f"opacus, seed {seed}", lambda f, s=seed: opacus(f, seed=s), "PROVED"
        yield f"plain loop, seed {seed}", lambda f, s=seed: plain(f, seed=s), "PROVED"


def judged(folder: Path) -> tuple[int, str]:
    """Exit code and text of ``dpspec check``, for add-remove neighbors by Opacus' public options."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = dpspec_command(["check", str(folder), "--epsilon", "100", "--all"])
    return int(code), out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", default="", help="only trainings whose name contains these words")
    parser.add_argument("--seeds", type=int, default=25)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    wrong = []
    for name, train, expected in cases(given.seeds):
        if given.only not in name:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            try:
                train(folder)
                code, text = judged(folder)
            except Exception as error:
                code, text = -1, f"ERROR {type(error).__name__}: {error}"
        first = " ".join(text.split("\n\n")[0].split()).removeprefix("Claims ")
        verdict = first.partition(" ")[0].rstrip(",")
        deviates = re.search(r"(?<!NO )\bDEVIAT|\bviolated\b", text) is not None
        counts[verdict] += 1
        bad = verdict != expected or deviates
        if bad:
            wrong.append(name)
        print(f"{'WRONG ' if bad else ''}{name}: exit {code}, {first[:200]}", flush=True)
        if bad:
            print(text[:4000])
    print(f"\n{sum(counts.values())} trainings: {dict(counts)}; {len(wrong)} not as expected: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
