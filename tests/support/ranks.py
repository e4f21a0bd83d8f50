"""A small training with Opacus in several local processes, with an optional fault."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from msgspec.structs import replace
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as Whole
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping_fsdp import GradSampleModuleFastGradientClippingFSDP
from opacus.optimizers import DistributedDPOptimizer, FSDPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from opacus.utils.fsdp_utils import FSDP2Wrapper
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from dpspec_recording.folder.reader import RunFolder
from support.opacus_training import PrivateTraining

RECORDS, FEATURES = 300, 6

#: Methods that faults replace, and that are put back after each training.
_REPLACED = (
    (DistributedDPOptimizer, "reduce_gradients"),
    (FSDPOptimizerFastGradientClipping, "add_noise"),
    (DPTensorFastGradientClipping, "backward"),
    (GradSampleModuleFastGradientClippingFSDP, "get_norm_sample"),
)


@dataclass
class Ranked(PrivateTraining):
    """One training. Every rank calls ``prepare`` and ``loop`` with this object and its rank, and ``within`` instead of
    :meth:`train` in the recorded block.

    seed: of all ranks; by default ``seed_of`` plus the rank.
    """

    folder: Path
    world: int = 2
    ghost: bool = False
    torchs: bool = False
    sharded: bool = False
    physical: int | None = None
    batch: int = 60
    records: int = RECORDS
    epochs: int = 4
    noise: float = 1.0
    clip: float = 0.5
    reduction: str = "mean"
    optimizer: str = "sgd"
    seed: int | None = None
    seed_of: int = 1000
    prepare: Callable[[Ranked, int], None] | None = None
    loop: Callable[[Ranked, int], None] | None = None
    within: Callable[[Ranked, int], None] | None = None

    def build(self, rank: int) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.records, FEATURES, generator=generator)
        torch.manual_seed(7)
        model: Any = self.module()
        torch.manual_seed(self.seed_of + rank if self.seed is None else self.seed)
        wrapper: Any = FSDP2Wrapper if self.sharded else DistributedDataParallel if self.torchs else Whole
        model = wrapper(model)
        kinds: Any = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        self.data = TensorDataset(x, (x[:, 0] > 0).long())
        mode = "ghost_fsdp" if self.sharded else "ghost" if self.ghost else "hooks"
        self.make_private(model, kinds[self.optimizer](model.parameters(), lr=0.1), self.plain_loader(), mode)

    def module(self) -> nn.Module:
        classes = self.world if self.sharded else 2  # Opacus needs a row of each parameter for each rank
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, max(2, classes)))

    def plain_loader(self) -> Any:
        return DataLoader(self.data, batch_size=self.batch)

    def train_in_chunks(self, rank: int) -> None:
        """Add up the sums of three physical batches for each step, without a memory manager."""
        for _ in range(self.epochs):
            for x, y in self.loader:
                for number, part in enumerate(zip(x.tensor_split(3), y.tensor_split(3), strict=True)):
                    self.private.signal_skip_step(number < 2)
                    self.step(*part)

    def run(self, *further: Ranked) -> list[int | None]:
        """Train in all processes, then the further trainings in the same ones, and return the exit codes.

        A rank gives up when another one has ended.
        """
        context = mp.get_context("fork")
        with tempfile.TemporaryDirectory() as meeting:
            every = [
                context.Process(target=_work, args=((self, *further), rank, meeting)) for rank in range(self.world)
            ]
            for one in every:
                one.start()
            for one in every:
                one.join(120)
        return [one.exitcode for one in every]


def after_scaling(training: Ranked, change: Callable[[Any], object]) -> None:
    """Call ``change`` with the optimizer after the hook of each step, where the noisy sum is scaled already."""
    hook = training.private.step_hook

    def both(optimizer: Any) -> None:
        hook(optimizer)
        change(optimizer)

    training.private.attach_step_hook(both)


def reduced(change: Callable[[Any, Callable[[Any], None]], None]) -> Callable[[Ranked, int], None]:
    """Prepare a replaced sum over the ranks; ``change`` gets the optimizer and the sum."""

    def prepare(training: Ranked, rank: int) -> None:
        original = DistributedDPOptimizer.reduce_gradients
        DistributedDPOptimizer.reduce_gradients = lambda self: change(self, original)

    return prepare


def dealt(training: Ranked, rank: int) -> None:
    """Prepare batches that torch's sampler deals to the ranks."""
    training.loader = DataLoader(training.data, batch_size=30, sampler=DistributedSampler(training.data))


def killed(training: Ranked, rank: int) -> None:
    """Train until rank 1 ends after three steps."""
    for number, (x, y) in enumerate(training.loader):
        if rank == 1 and number == 3:
            os._exit(9)
        training.step(x, y)


def _work(trainings: tuple[Ranked, ...], rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting}/store",
        rank=rank,
        world_size=trainings[0].world,
        timeout=timedelta(seconds=60),
    )
    methods = [(kind, name, getattr(kind, name)) for kind, name in _REPLACED]
    for training in trainings:
        training.build(rank)
        if training.prepare is not None:
            training.prepare(training, rank)
        if training.loop is not None:
            training.loop(training, rank)
        else:
            with training.recorder():
                training.within(training, rank) if training.within is not None else training.train()
        for kind, name, method in methods:
            setattr(kind, name, method)
    distributed.destroy_process_group()


def infinite(name: str, monkeypatch: Any) -> None:
    """Let readers of a folder find an infinite number in each step of a rank."""
    original = RunFolder.internal

    def edited(folder: RunFolder) -> Iterator[Any]:
        for step in original(folder):
            changed = replace(step.rank, **{name: getattr(step.rank, name) + np.float16(np.inf)})
            yield replace(step, rank=changed)

    monkeypatch.setattr(RunFolder, "internal", edited)
