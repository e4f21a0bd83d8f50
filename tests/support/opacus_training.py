"""Small trainings with Opacus in every supported mode, with or without a recorder."""

from __future__ import annotations

import contextlib
import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dpspec
from support.checked_runs import CheckedRun, Question, check_run

RECORDS, FEATURES = 300, 6


def record_losses(model: Any, batch: Any) -> torch.Tensor:
    """Return the loss of each record, (b,)."""
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def physical_batches(loader: Any, optimizer: Any, most: int | None) -> Any:
    """Return a context with the batches of an epoch, in parts of at most ``most`` records unless None."""
    if most is None:
        return contextlib.nullcontext(loader)
    return BatchMemoryManager(data_loader=loader, max_physical_batch_size=most, optimizer=optimizer)


class PrivateTraining:
    """A training from ``make_private``, with ``model``, ``private`` (the optimizer), ``loader`` and other attributes.

    epochs, noise, clip: of the subclass. physical: the largest physical batch, or None.
    """

    accountant = "rdp"
    reduction = "mean"
    physical: int | None = None

    def make_private(self, model: Any, optimizer: Any, loader: Any, mode: str = "hooks", **given: Any) -> None:
        """Make the parts with gradients of single records by ``mode`` of Opacus."""
        criterion = nn.CrossEntropyLoss(reduction=self.reduction)
        self.engine = PrivacyEngine(accountant=self.accountant)
        made = self.engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=self.noise,
            criterion=criterion,
            loss_reduction=self.reduction,
            grad_sample_mode=mode,
            **{"max_grad_norm": self.clip, **given},
        )
        self.model, self.private, self.loader = made[0], made[1], made[-1]
        self.criterion = made[2] if "ghost" in mode else criterion

    def recorder(self, folder: Any = None, **given: Any) -> Any:
        parts = {"model": self.model, "optimizer": self.private, "loader": self.loader, "engine": self.engine}
        return dpspec.record(folder or self.folder, **{**parts, **given})

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        self.criterion(self.model(x), y).backward()
        self.private.step()

    def train(self, each: Any = None) -> None:
        """Train, and call ``each`` with this object after each step."""
        for _ in range(self.epochs):
            with physical_batches(self.loader, self.private, self.physical) as batches:
                for batch in batches:
                    self.step(*batch)
                    if each is not None:
                        each(self)


#: Added to seeds, so that they are not guessable.
SECRET = 0x5A17_93C2_10B4_4D


@dataclass
class Training(PrivateTraining):
    clipping: str = "flat"
    physical: int | None = None
    workers: int = 0
    poisson: bool = True
    batch: int = 30
    noise: float = 1.1
    clip: float = 1.0
    epochs: int = 2
    reduction: str = "mean"
    accountant: str = "rdp"
    optimizer: str = "sgd"
    seed: int = 0
    canaries: int = 0

    def build(self) -> Training:
        torch.manual_seed(SECRET + self.seed)
        x = torch.randn(RECORDS, FEATURES)
        data: Any = TensorDataset(x, (x[:, 0] > 0).long())
        if self.canaries:
            data = dpspec.plant(data, kind="mislabelled", count=self.canaries, classes=2, seed=self.seed)
        model = self.module()
        kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        kinds["momentum"] = functools.partial(torch.optim.SGD, momentum=0.9)
        adaptive = {
            "target_unclipped_quantile": 0.5,
            "clipbound_learning_rate": 0.2,
            "max_clipbound": 10.0,
            "min_clipbound": 0.1,
            "unclipped_num_std": 3.0,
        }
        ghost = self.clipping == "ghost"
        self.make_private(
            model,
            kinds[self.optimizer](model.parameters(), lr=0.05),
            DataLoader(data, batch_size=self.batch, shuffle=not self.poisson, num_workers=self.workers),
            "ghost" if ghost else "hooks",
            max_grad_norm=[self.clip] * 4 if self.clipping == "per_layer" else self.clip,
            poisson_sampling=self.poisson,
            clipping="flat" if ghost else self.clipping,
            noise_generator=torch.Generator().manual_seed(SECRET + self.seed + 1),
            **(adaptive if self.clipping == "adaptive" else {}),
        )
        return self

    def module(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 2))

    def run(self, folder: Any = None, each: Any = None) -> list[torch.Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.build()
            with self.recorder(folder) if folder is not None else contextlib.nullcontext() as run:
                self.train(each)
            if run is not None and self.canaries:
                run.score(self.model, record_losses)
        return [p.detach().clone() for p in self.model.parameters()]


def recorded(
    folder: Any, script: Any = Training.train, *, prepare: Any = None, asked: Any = None, **made: Any
) -> CheckedRun:
    """Check a claim about a training that ``script`` runs in the block, after ``prepare`` has changed it."""
    training = Training(**made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        if prepare is not None:
            prepare(training)
        with training.recorder(folder):
            script(training)
    return check_run(folder, Question(**{"delta": 1e-5, "epsilon": 100.0, **(asked or {})}))


def after_each(name: str, change: Any) -> Any:
    """Prepare a training that calls ``change`` with the optimizer after each call of its method ``name``."""

    def prepare(training: Training) -> None:
        original = getattr(training.private, name)

        def method() -> None:
            original()
            change(training.private)

        setattr(training.private, name, method)

    return prepare


def scheduled(make: Any) -> Any:
    """Return a script that trains with a scheduler, made from the optimizer within the block."""

    def script(training: Training) -> None:
        schedule = make(training.private)
        training.train(each=lambda _: schedule.step())

    return script


def two_passes(training: Training) -> None:
    """Ghost clipping without the criterion: the script makes the two backward passes."""
    for _ in range(training.epochs):
        for x, y in training.loader:
            losses = cross_entropy(training.model(x), y, reduction="none")
            losses.mean().backward(retain_graph=True)
            training.private.zero_grad()
            weights = training.model.get_clipping_coef()
            training.model.disable_hooks()
            (weights * losses).sum().backward()
            training.model.enable_hooks()
            training.private.step()
            training.private.zero_grad()
