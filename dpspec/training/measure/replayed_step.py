"""One step on data sets, and on two of them together: where constants are public, updates add up.

At a rate of 1 and without noise a step moves the model by

    u(A) = c + learning rate / divisor * (sum over A of clipped gradients),

c what moves it whatever the records are, as the decay of weights does. Where learning rate, divisor, clip norm, and
what is done to a record before its gradient is taken depend on no other record, u(A + B) - u(A) - u(B) is -c up to
rounding, whatever A and B hold: the same for A and B as for two other data sets. A divisor that counts the records, a
clip norm that is a quantile of gradients, a mean that is subtracted from all records, a sum that is clipped as a whole
make the two differ. There is no chance in it, but for what a backend adds of its own: A is trained on again with
another seed, its records the other way round, and where that is another update (a step that is random, sums of half
precision) nothing is said.

It sees nothing of rates (everybody is drawn), of the size of the noise (there is none), of a clip norm that clips no
gradient, and of whatever a backend does after its first step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.frozen import FrozenMap
from dpspec.contract.phase import Phase
from dpspec.contract.providers import Cancelled, Trainer, TrainingJob
from dpspec.stats.conformance.evidence.measured import ReplayedStep
from dpspec.training.gradients import flat_model

#: How many records each of the four data sets has, at most.
_RECORDS = 8

#: The part of a float32 number that rounding to nearest can change.
_HALF_ULP = 2.0**-24


def replayed_step(trainer: Trainer, job: TrainingJob) -> ReplayedStep | None:
    """Take the first step of ``job`` on some of its records, on some others, and on both, twice over, on the CPU.

    Plain descent takes the place of what the job declares, as Adam's updates do not add up. None where the trainer
    refuses such a step, or where there are too few records; raises ``Cancelled`` as the trainer does.
    """
    places = np.unique(np.linspace(0, len(job.x) - 1, 4 * _RECORDS).round().astype(int))
    if len(places) < 4:
        return None
    before = flat_model.flatten(job.model).detach().cpu().double()
    step = replace(
        job,
        phases=(_everybody(Phase.of(job.phases[0]), job),),
        options=_plain(job.options),
        device="cpu",
        records=job.public_records,
        canaries=None,
        observers=(),
        progress=None,
        resumable=None,
    )
    sets = [places[k::4] for k in range(4)]
    try:
        alone = [_moved(trainer, step, rows, before) for rows in sets]
        pairs = [np.sort(np.concatenate(two)) for two in (sets[:2], sets[2:])]
        both = [_moved(trainer, step, rows, before) for rows in pairs]
        again = _moved(trainer, replace(step, seed=step.seed + 1), sets[0][::-1].copy(), before)
    except Cancelled:
        raise
    except Exception:  # a backend may refuse such a job in any words
        return None
    length = float(sum(update.norm() for update in alone))
    apart = (both[0] - alone[0] - alone[1]) - (both[1] - alone[2] - alone[3])
    found = [float(apart.norm()), float((again - alone[0]).norm())]
    # Updates are differences of rounded parameters, none longer than where they began and how far they went.
    reached = before.abs() + torch.stack([update.abs() for update in (*alone, *both)]).amax(0)
    rounding = 6.0 * _HALF_ULP * float(reached.norm())
    if not np.isfinite([length, rounding, *found]).all() or length == 0.0:
        return None
    return ReplayedStep(
        records=len(places), apart=found[0] / length, random=found[1] / length, rounding=rounding / length
    )


def _everybody(phase: Phase, job: TrainingJob) -> Phase:
    """One step without noise that draws every record, or every user with all records."""
    poisson = phase.sampling.scheme == "poisson"
    drawn: Mapping[str, str | float] = {"scheme": "poisson", "rate": 1.0} if poisson else {"scheme": "full"}
    if phase.sampling.of_users:
        drawn = {**drawn, "unit": "user", "records_per_user": job.y.shape[1]}
    return phase.replace(steps=1, noise_multiplier=0.0, sampling=drawn)


def _plain(options: FrozenMap) -> FrozenMap:
    return FrozenMap({key: value for key, value in options.items() if key not in ("optimizer", "schedule")})


def _moved(
    trainer: Trainer, job: TrainingJob, rows: np.ndarray[tuple[int], np.dtype[np.int64]], before: Tensor
) -> Tensor:
    """By how much a step on these rows moves the parameters (P,), float64."""
    alone = replace(job, x=job.x[rows], y=job.y[rows], model=copy.deepcopy(job.model))
    trainer.train(alone)
    return flat_model.flatten(alone.model).detach().cpu().double() - before
