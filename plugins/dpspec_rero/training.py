"""The training run of one trial: phases, rows and seeds of its job.

Each gradient is scaled down to the sensitivity, in the norm that calibrates the noise. An l1 norm requires materialized
gradients, so Laplace noise replaces a part of the native loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.gradients.clipping import Clip, clip_factors, clipper, no_norms
from dpspec.training.gradients.fetching import send
from dpspec.training.gradients.persample import ClippedSum, FlatModel
from dpspec.training.loop.native import parts_of, tensors, train_many, train_with
from dpspec_rero.options import adds_laplace, trained_phases

Array = np.ndarray[Any, Any]

#: Bytes of materialized gradients per chunk.
_BYTES = 48 * 2**20


def make_job(
    inputs: dps.FrozenMap, context: dps.Context, index: int, rows: tuple[Array, Array], purpose: str = "training"
) -> dps.TrainingJob:
    """The run of trial ``index`` on the records ``rows``, (n, ...) and (n,)."""
    phases = trained_phases(dps.Phase.all_of(inputs["mechanism"]))
    return kit.training_job(
        inputs, context, index, purpose, rows=rows, phases=phases, records=len(rows[0]), resumable=False
    )


def train_all(context: dps.Context, jobs: Sequence[dps.TrainingJob]) -> None:
    """Train every job, in one batch if the backend and the noise support it."""
    if not adds_laplace(jobs[0].phases):
        train_many(context.trainer, jobs)
        return
    for job in jobs:
        _train_laplace(job)


def scale_rows(rows: Tensor, bound: float, ord: int) -> Tensor:
    """Scale gradients (..., P) down to an l1 or l2 norm of ``bound``; gradients that are not finite become 0."""
    norms = torch.linalg.vector_norm(rows, ord=ord, dim=-1, dtype=torch.float64)
    return torch.nan_to_num(rows * clip_factors(norms, bound).unsqueeze(-1), nan=0.0, posinf=0.0, neginf=0.0)


class AbsoluteSum:
    """The part ``contributions`` of the loop: a sum of gradients g, each times min(1, clip_norm / ||g||_1)."""

    def __init__(self, model: FlatModel, x: Tensor, y: Tensor) -> None:
        """``x`` (n, ...) and ``y`` (n,) are on the model's device."""
        self._model, self._x, self._y = model, x, y
        self._chunk = max(1, _BYTES // (4 * model.size))

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
        """The clipped sum of ``indices`` (b,) at ``state`` (P,); the norms are l1 norms after clipping."""
        total, norms = torch.zeros_like(state), [no_norms(state.device)]
        for chunk in torch.split(send(indices, state.device), self._chunk):
            rows = self._model.rows(state, self._x[chunk], self._y[chunk])
            clipped = scale_rows(rows, clipper(clip).clip_norm, ord=1)
            total += clipped.sum(0)
            norms.append(torch.linalg.vector_norm(clipped, ord=1, dim=1, dtype=torch.float64))
        return ClippedSum(total, torch.cat(norms))


def _train_laplace(job: dps.TrainingJob) -> None:
    rows = tensors(job.x, job.y, job.device)
    train_with(job, replace(parts_of(job), contributions=AbsoluteSum(FlatModel(job.model, device=job.device), *rows)))
