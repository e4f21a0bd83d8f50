"""A small training with Opacus in several jobs, with checkpoints between them."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from support.opacus_training import PrivateTraining
from support.ranks import Ranked

RECORDS, FEATURES = 400, 6


@dataclass
class Job(PrivateTraining):
    """One job. ``change`` gets it after the checkpoint is loaded and before the recording begins.

    restores: the loaded parts of the checkpoint. saves: steps after which a checkpoint is saved; the last one stays.
    killed: whether the process ends within the block. seed: None for the system's randomness.
    """

    folder: Path
    steps: int = 20
    noise: float = 1.0
    clip: float = 1.0
    optimizer: str = "sgd"
    ghost: bool = False
    seed: int | None = None
    saves: int = 0
    killed: bool = False
    resume: bool = True
    poisson: bool = True
    batch: int = 40
    data_seed: int = 0
    planted: Any = None
    restores: tuple[str, ...] = ("model", "optimizer", "accountant", "scheduler")
    change: Callable[[Job], None] | None = None
    during: Callable[[Job], None] | None = None
    given: dict[str, Any] = field(default_factory=dict)

    def build(self) -> None:
        x = torch.randn(RECORDS, FEATURES, generator=torch.Generator().manual_seed(self.data_seed))
        data = self.planted or TensorDataset(x, (x[:, 0] > 0).long())
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 2))
        torch.seed() if self.seed is None else torch.manual_seed(self.seed)
        kinds: Any = {
            "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
        }
        self.make_private(
            model,
            kinds[self.optimizer](model.parameters()),
            DataLoader(data, batch_size=self.batch, shuffle=not self.poisson),
            "ghost" if self.ghost else "hooks",
            poisson_sampling=self.poisson,
        )
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.private.original_optimizer, 0.99)

    def parts(self) -> dict[str, Any]:
        parts = {"model": self.model._module, "optimizer": self.private, "accountant": self.engine.accountant}
        return {**parts, "scheduler": self.scheduler}

    def save(self) -> bytes:
        content = io.BytesIO()
        states = {name: part.state_dict() for name, part in self.parts().items()}
        torch.save({**states, "generator": torch.get_rng_state()}, content)
        return content.getvalue()

    def load(self, checkpoint: bytes) -> None:
        read = torch.load(io.BytesIO(checkpoint), weights_only=False)
        for name, part in self.parts().items():
            if name in self.restores:
                part.load_state_dict(read[name])
        if "generator" in self.restores:
            torch.set_rng_state(read["generator"])

    def batches(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def run(self, checkpoint: bytes | None = None) -> bytes:
        """Train for ``steps`` steps, and return the last checkpoint."""
        self.build()
        if checkpoint is not None:
            self.load(checkpoint)
        if self.change is not None:
            self.change(self)
        self.recording = self.recorder(resume=self.resume, **self.given)
        self.recording.__enter__()
        for step, (x, y) in zip(range(1, self.steps + 1), self.batches(), strict=False):
            self.step(x, y)
            self.scheduler.step()
            if self.during is not None:
                self.during(self)
            if self.saves and step % self.saves == 0:
                checkpoint = self.save()
        if self.killed:
            kill(self.recording)
        else:
            self.recording.__exit__(None, None, None)
            checkpoint = self.save()
        assert checkpoint is not None
        return checkpoint


def kill(recorder: Any) -> None:
    """Leave a block like a killed process, without an end record."""
    training = recorder._training
    training.detach()
    training.writer.close()
    training.writer = None


class RankedJobs:
    """Jobs of two ranks, with checkpoints in a file that rank 0 writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.jobs = folder / "run", folder / "checkpoint", 0

    def prepare(self, training: Ranked, rank: int) -> None:
        if self.file.exists():
            read = torch.load(self.file, weights_only=False)
            for name, part in self.parts(training).items():
                part.load_state_dict(read[name])

    def parts(self, training: Ranked) -> dict[str, Any]:
        model = training.model._module.module
        return {"model": model, "optimizer": training.private, "accountant": training.engine.accountant}

    def save(self, training: Ranked) -> None:
        torch.save({name: part.state_dict() for name, part in self.parts(training).items()}, f"{self.file}.new")
        os.replace(f"{self.file}.new", self.file)

    def run(
        self,
        *,
        epochs: int = 2,
        killed: tuple[int, int] | None = None,
        after: tuple[int, float] | None = None,
        recorded: Sequence[int] = (),
        **given: Any,
    ) -> list[int | None]:
        """killed: a rank, and the step after which it is killed; after: a rank, and seconds of training. recorded: the
        last recorded step of each rank.

        A checkpoint is saved after every fifth step.
        """

        def loop(training: Ranked, rank: int) -> None:
            step = 0
            if after is not None and after[0] == rank:
                threading.Thread(target=lambda: (time.sleep(after[1]), os.kill(os.getpid(), signal.SIGKILL))).start()
            with ExitStack() as block:
                block.enter_context(training.recorder(resume=True))
                for _ in range(training.epochs):
                    for x, y in training.loader:
                        training.step(x, y)
                        step += 1
                        if step % 5 == 0 and rank == 0:
                            self.save(training)
                        if recorded and step == recorded[rank]:
                            block.close()
                        if killed == (rank, step):
                            os.kill(os.getpid(), signal.SIGKILL)
            if rank == 0:
                self.save(training)

        self.jobs += 1
        made = {"batch": 100, "seed_of": 1000 * self.jobs, "prepare": self.prepare, **given}
        return Ranked(self.folder, epochs=epochs, loop=loop, **made).run()
