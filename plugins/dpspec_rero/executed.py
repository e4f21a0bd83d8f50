"""The run that the spec declares, for one trial: its phases as a backend reads them, its rows, its seeds.

A step releases the sum of the drawn records' gradients, each scaled down to the sensitivity in the norm that the noise
is calibrated to, plus noise of the declared scale. l2 norms and Gaussian noise are what every backend offers. Scaling
to an l1 norm needs gradients that are written out: for Laplace noise a part of the native loop is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import dpspec.contract as dps

if TYPE_CHECKING:
    from torch import Tensor

    from dpspec.training.clipping import Clip
    from dpspec.training.persample import ClippedSum, FlatModel

Array = np.ndarray[Any, Any]

#: Gradients that are written out: bytes at a time.
_BYTES = 48 * 2**20


def phases_trained(phases: Sequence[dps.FrozenMap]) -> tuple[dps.FrozenMap, ...]:
    """The phases with ``clip_norm`` and ``noise_multiplier`` in place of ``sensitivity`` and ``scale``.

    The clip norm is that of the norm that the noise is calibrated to: l1 for Laplace noise, whose deviation is sqrt(2)
    times its scale.
    """
    return tuple(_phase(phase) for phase in phases)


def _phase(phase: dps.FrozenMap) -> dps.FrozenMap:
    noise = str(phase.get("noise", "gaussian"))
    rest = {key: value for key, value in phase.items() if key not in ("scale", "sensitivity")}
    if "scale" in phase:
        bound = float(next(iter(phase["sensitivity"].values())))
        deviation = float(phase["scale"]) * (math.sqrt(2.0) if noise == "laplace" else 1.0)
        rest |= {"clip_norm": bound, "noise_multiplier": deviation / bound}
    return dps.FrozenMap({**rest, "noise": noise})


def job_of(
    inputs: dps.FrozenMap, context: dps.Context, index: int, rows: tuple[Array, Array], purpose: str = "training"
) -> dps.TrainingJob:
    """The run of trial ``index`` on the records ``rows``, (n, ...) and (n,)."""
    phases = phases_trained(dps.phases_of(inputs["mechanism"]))
    sampling = phases[0]["sampling"]
    rate = float(sampling["rate"]) if sampling["scheme"] == "poisson" else 1.0
    return dps.TrainingJob(
        x=rows[0],
        y=rows[1],
        model=context.model.build(context.seed(index, "model")),
        phases=phases,
        options=inputs["training"],
        expected_batch_size=max(1.0, rate * len(rows[0])),
        device=context.device,
        seed=context.seed(index, purpose),
        cancelled=context.cancelled,
    )


def train_all(context: dps.Context, jobs: Sequence[dps.TrainingJob]) -> None:
    """Train every job; together where the backend can and the noise lets it."""
    from dpspec.training.batched import train_many

    if not laplace(jobs[0].phases):
        train_many(context.trainer, jobs)
        return
    for job in jobs:
        _train_laplace(job)


def laplace(phases: Sequence[dps.FrozenMap]) -> bool:
    """Whether phases, all of which have one noise when they are trained, have Laplace noise."""
    return phases[0].get("noise") == "laplace"


def _train_laplace(job: dps.TrainingJob) -> None:
    from dpspec.training.native import parts_of, tensors, train_with
    from dpspec.training.persample import FlatModel

    rows = tensors(job.x, job.y, job.device)
    train_with(job, replace(parts_of(job), contributions=AbsoluteSum(FlatModel(job.model, device=job.device), *rows)))


class AbsoluteSum:
    """The part ``contributions`` of the loop: a sum of gradients g, each times min(1, clip_norm / ||g||_1)."""

    def __init__(self, model: FlatModel, x: Tensor, y: Tensor) -> None:
        """``x`` (n, ...) and ``y`` (n,) stand on the model's device."""
        self._model, self._x, self._y = model, x, y
        self._some = max(1, _BYTES // (4 * model.size))

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
        """The clipped sum of ``indices`` (b,) at ``state`` (P,); the norms are l1 norms after clipping."""
        import torch

        from dpspec.training.clipping import clipper, no_norms
        from dpspec.training.persample import ClippedSum

        total, norms = torch.zeros_like(state), [no_norms(state.device)]
        for some in torch.split(indices.to(state.device), self._some):
            rows = self._model.rows(state, self._x[some], self._y[some])
            clipped = scaled(rows, clipper(clip).clip_norm, ord=1)
            total += clipped.sum(0)
            norms.append(torch.linalg.vector_norm(clipped, ord=1, dim=1, dtype=torch.float64))
        return ClippedSum(total, torch.cat(norms))


def scaled(rows: Tensor, bound: float, ord: int) -> Tensor:
    """Gradients (..., P) scaled down to an l1 or l2 norm of ``bound``; zero where they are not finite."""
    import torch

    from dpspec.training.clipping import clip_factors

    norms = torch.linalg.vector_norm(rows, ord=ord, dim=-1, dtype=torch.float64)
    return torch.nan_to_num(rows * clip_factors(norms, bound).unsqueeze(-1), nan=0.0, posinf=0.0, neginf=0.0)
