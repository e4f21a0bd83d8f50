"""The backend ``native``: a job's parts, put together and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dpspec.contract.frozen import FrozenMap
from dpspec.contract.providers import TrainingJob
from dpspec.training import flat
from dpspec.training.contributions import RecordsAndCanaries
from dpspec.training.dpsgd import GaussianNoise, Parts, Sgd, run
from dpspec.training.persample import FlatModel
from dpspec.training.schedule import Schedule


class NativeTrainer:
    """Trains by DP-SGD and shows observers everything that it does."""

    def train(self, job: TrainingJob) -> None:
        """Run the job; ``job.model`` ends trained. Raises ``Cancelled``, or ``ValueError`` for a job that is off."""
        train_with(job, parts_of(job))


def parts_of(job: TrainingJob) -> Parts:
    """The parts of the loop, as the job declares them."""
    model = FlatModel(job.model, device=job.device)
    x, y = tensors(job.x, job.y, job.device)
    contributions = RecordsAndCanaries(model, x, y, job.canaries)
    return Parts(
        initial=model.initial(),
        schedule=Schedule.of(job.phases, contributions.records),
        contributions=contributions,
        noise=GaussianNoise(),
        update=update_of(job.options, job.expected_batch_size),
    )


def train_with(job: TrainingJob, parts: Parts) -> None:
    """Run a job with parts that may have been replaced; the model is written once, at the end."""
    final = run(parts, job.seed, observers=job.observers, progress=job.progress, cancelled=job.cancelled)
    flat.load(job.model, final)


def update_of(options: FrozenMap, expected_batch_size: float) -> Sgd:
    """The update of a spec's training options."""
    reduction = options["reduction"]
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be sum or mean, got {reduction!r}")
    divisor = expected_batch_size if reduction == "mean" else 1.0
    return Sgd(learning_rate=float(options["learning_rate"]), divisor=divisor)


def tensors(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], device: str | torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the rows on a device: float32 features (n, ...), int64 labels (n,)."""
    return torch.tensor(x, dtype=torch.float32, device=device), torch.tensor(y, dtype=torch.int64, device=device)
