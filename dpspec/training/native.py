"""The backend ``native``: a job's parts, put together and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dpspec.contract.providers import TrainingJob
from dpspec.training import flat
from dpspec.training.checkpoint import checkpoint_of
from dpspec.training.contributions import RecordsAndCanaries
from dpspec.training.dpsgd import Parts, run
from dpspec.training.noise import noise_of
from dpspec.training.optimizers import update_of
from dpspec.training.persample import FlatModel
from dpspec.training.schedule import Schedule


class NativeTrainer:
    """Trains by DP-SGD and shows observers everything that it does."""

    def train(self, job: TrainingJob) -> None:
        """Run the job; ``job.model`` ends trained. Raises ``Cancelled``, or ``ValueError`` for a job that is off."""
        train_with(job, parts_of(job))

    def train_many(self, jobs: Sequence[TrainingJob]) -> None:
        """Run jobs of one kind all at once; see :func:`~dpspec.training.batched.run_batched`."""
        from dpspec.training.batched import run_batched

        for job, final in zip(jobs, run_batched(jobs), strict=True):
            flat.load(job.model, final)


def parts_of(job: TrainingJob) -> Parts:
    """The parts of the loop, as the job declares them."""
    model = FlatModel(job.model, device=job.device)
    x, y = tensors(job.x, job.y, job.device)
    contributions = RecordsAndCanaries(model, x, y, job.canaries)
    schedule = Schedule.of(job.phases, contributions.records)
    return Parts(
        initial=model.initial(),
        schedule=schedule,
        contributions=contributions,
        noise=noise_of(schedule.noise),
        update=update_of(job.options, job.expected_batch_size, schedule.total),
    )


def train_with(job: TrainingJob, parts: Parts) -> None:
    """Run a job with parts that may have been replaced; the model is written once, at the end."""
    final = run(
        parts,
        job.seed,
        observers=job.observers,
        progress=job.progress,
        cancelled=job.cancelled,
        checkpoint=checkpoint_of(job, parts.initial),
    )
    flat.load(job.model, final)


def tensors(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], device: str | torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the rows on a device: float32 features (n, ...), int64 labels (n,)."""
    return torch.tensor(x, dtype=torch.float32, device=device), torch.tensor(y, dtype=torch.int64, device=device)
