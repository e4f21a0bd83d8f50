"""Test by replaying one step that updates of disjoint datasets add up, as they do for public constants.

At rate 1 and without noise a step moves the model by

    u(A) = c + learning rate / divisor * (sum over A of clipped gradients),

with c independent of the records, for example weight decay. If learning rate, divisor, clip norm and preprocessing of a
record do not depend on other records, then u(A + B) - u(A) - u(B) = -c up to rounding, for all A and B. The test
compares two pairs of datasets. Training on A is repeated with another seed and reversed records, because the backend's
own randomness makes the result inconclusive.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.frozen import FrozenMap
from dpspec.contract.phase import Phase, poisson_sampling
from dpspec.contract.providers import Cancelled, Trainer, TrainingJob
from dpspec.stats.conformance.evidence import ReplayedStep
from dpspec.training.gradients import flat_model

#: Maximum number of records in each of the four datasets.
_RECORDS = 8

#: Relative rounding error of float32.
_HALF_ULP = 2.0**-24


def replayed_step(trainer: Trainer, job: TrainingJob) -> ReplayedStep | None:
    """Replay the first step of ``job`` on two disjoint datasets and their union, twice, on the CPU.

    None if the trainer rejects the step or there are too few records.
    """
    places = np.unique(np.linspace(0, len(job.x) - 1, 4 * _RECORDS).round().astype(int))
    if len(places) < 4:
        return None
    before = flat_model.flatten(job.model).detach().cpu().double()
    phase = Phase.of(job.phases[0])
    everything = poisson_sampling(1.0)
    if phase.sampling.is_poisson:
        everything = {"scheme": phase.sampling.scheme, "rate": 1.0}
    if phase.sampling.of_users:
        everything = {**everything, "unit": "user", "records_per_user": job.y.shape[1]}
    # Plain descent replaces the declared optimizer, because Adam's updates are not additive.
    plain = {key: value for key, value in job.options.items() if key not in ("optimizer", "schedule")}
    step = replace(
        job,
        phases=(phase.replace(steps=1, noise_multiplier=0.0, sampling=everything),),
        options=FrozenMap(plain),
        device="cpu",
        records=job.public_records,
        canaries=None,
        observers=(),
        progress=None,
        resumable=None,
    )
    sets = [places[k::4] for k in range(4)]
    try:
        alone = [_update(trainer, step, rows, before) for rows in sets]
        pairs = [np.sort(np.concatenate(two)) for two in (sets[:2], sets[2:])]
        both = [_update(trainer, step, rows, before) for rows in pairs]
        again = _update(trainer, replace(step, seed=step.seed + 1), sets[0][::-1].copy(), before)
    except Cancelled:
        raise
    except Exception:  # backends raise arbitrary errors for unsupported jobs
        return None
    length = float(sum(update.norm() for update in alone))
    apart = (both[0] - alone[0] - alone[1]) - (both[1] - alone[2] - alone[3])
    found = [float(apart.norm()), float((again - alone[0]).norm())]
    # Updates are differences of rounded parameters, bounded by the start plus the distance.
    reached = before.abs() + torch.stack([update.abs() for update in (*alone, *both)]).amax(0)
    rounding = 6.0 * _HALF_ULP * float(reached.norm())
    if not np.isfinite([length, rounding, *found]).all() or length == 0.0:
        return None
    return ReplayedStep(
        records=len(places), apart=found[0] / length, random=found[1] / length, rounding=rounding / length
    )


def _update(
    trainer: Trainer, job: TrainingJob, rows: np.ndarray[tuple[int], np.dtype[np.int64]], before: Tensor
) -> Tensor:
    alone = replace(job, x=job.x[rows], y=job.y[rows], model=copy.deepcopy(job.model))
    trainer.train(alone)
    return flat_model.flatten(alone.model).detach().cpu().double() - before
