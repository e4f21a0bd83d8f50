"""The backend ``native``: one job, or many jobs in one batch.

Each run of a batch draws the same batches and noise as if trained separately; only sums differ by rounding. Batched
runs cannot be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dpspec.contract.frozen import FrozenMap
from dpspec.contract.phase import Phase
from dpspec.contract.providers import Cancelled, Trainer, TrainingJob
from dpspec.training.device import full_precision, generator
from dpspec.training.device import tensors as tensors  # plugins import this name
from dpspec.training.gradients import flat_model, memory
from dpspec.training.gradients.clipping import Clip, clipper
from dpspec.training.gradients.fetching import send
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.gradients.stacked_models import StackedModel, tiles
from dpspec.training.loop.checkpoint import Checkpoint, job_digest
from dpspec.training.loop.contributions import RecordsAndCanaries, UsersAndCanaries
from dpspec.training.loop.dpsgd import Parts, Schedule, noise_of, run
from dpspec.training.loop.optimizers import update_of


def train_many(trainer: Trainer, jobs: Sequence[TrainingJob]) -> None:
    together = getattr(trainer, "train_many", None)
    if together is not None:
        together(jobs)
        return
    for job in jobs:
        trainer.train(job)


def run_batched(jobs: Sequence[TrainingJob], *, members: Sequence[Tensor] | None = None) -> Tensor:
    """Run R jobs in one batch; returns their final parameters (R, P). The jobs' models are not changed.

    Jobs share phases, options, expected batch size, device and kind of model. Rows that are the same array are copied
    to the device once. Only the first job reports progress.
    """
    if not jobs:
        raise ValueError("at least one job is required")
    if any(draws_users(job.phases) for job in jobs):
        raise ValueError("jobs that draw users are run in turn")
    first = jobs[0]
    for job in jobs:
        for what in ("phases", "options", "expected_batch_size", "device"):
            if getattr(job, what) != getattr(first, what):
                raise ValueError(f"jobs that run together must have the same {what}")
        if repr(job.model) != repr(first.model) or flat_model.Layout.of(job.model) != flat_model.Layout.of(first.model):
            raise ValueError("jobs that run together must have the same kind of model")
        if len(job.x) != len(job.y):
            raise ValueError(f"{len(job.x)} records but {len(job.y)} labels")
    runs = _Runs(jobs, members)
    device = torch.device(first.device)
    schedules = [Schedule.of(job.phases, count) for job, count in zip(jobs, runs.records, strict=True)]
    total = schedules[0].total
    noise = noise_of(schedules[0].noise)
    update = update_of(first.options, first.expected_batch_size, total)
    coins = [generator(job.seed, "sampling") for job in jobs]
    sources = [generator(job.seed, "noise", device) for job in jobs]
    states = torch.stack([flat_model.flatten(job.model) for job in jobs]).to(device)
    with torch.no_grad(), full_precision(device):
        for job, state in zip(jobs, states, strict=True):
            for observer in job.observers:
                observer.released(0, state)
        for step, phases in enumerate(zip(*schedules, strict=True), start=1):
            if any(job.cancelled is not None and job.cancelled() for job in jobs):
                raise Cancelled
            batches = [phase.sampler.draw(source) for phase, source in zip(phases, coins, strict=True)]
            sums, norms = runs.clipped_sums(states, batches, phases[0].clip)
            noises = torch.stack([noise(s, phases[0].deviation, g) for s, g in zip(sums, sources, strict=True)])
            states = update(states, sums + noises)
            for place, job in enumerate(jobs):
                for observer in job.observers:
                    observer.sampled(step, batches[place])
                    observer.clipped(step, norms[place])
                    observer.noised(step, noises[place])
                    observer.released(step, states[place])
            if first.progress is not None:
                first.progress(step, total)
    return states


class _Runs:
    def __init__(self, jobs: Sequence[TrainingJob], members: Sequence[Tensor] | None) -> None:
        if members is not None and len(members) != len(jobs):
            raise ValueError(f"{len(jobs)} jobs but {len(members)} members")
        # Concatenate all distinct arrays of rows, with each run's offsets.
        arrays = {(id(job.x), id(job.y)): job for job in jobs}
        pooled = {key: tensors(job.x, job.y, job.device) for key, job in arrays.items()}
        starts = dict(zip(pooled, np.cumsum([0, *(len(x) for x, _ in pooled.values())]).tolist(), strict=False))
        self._x = torch.cat([x for x, _ in pooled.values()])
        self._y = torch.cat([y for _, y in pooled.values()])
        self._rows: list[Tensor] = []
        for place, job in enumerate(jobs):
            own = torch.arange(len(job.x)) if members is None else members[place].to("cpu", torch.int64)
            self._rows.append(own + starts[id(job.x), id(job.y)])
        self._most: int | None = None
        model, none = FlatModel(jobs[0].model, device=jobs[0].device), (self._x[:0], self._y[:0])
        self._stacked = StackedModel(jobs[0].model, self._x, self._y)
        self._canaries = [
            RecordsAndCanaries(model, *none, job.canaries) if job.canaries is not None else None for job in jobs
        ]
        planted = [canaries.records if canaries is not None else 0 for canaries in self._canaries]
        self.records = [len(rows) + count for rows, count in zip(self._rows, planted, strict=True)]

    def clipped_sums(self, states: Tensor, batches: Sequence[Tensor], clip: Clip) -> tuple[Tensor, list[Tensor]]:
        how = clipper(clip)
        reals = [int(torch.searchsorted(b, len(rows))) for b, rows in zip(batches, self._rows, strict=True)]
        drawn = [rows[b[:n]] for b, rows, n in zip(batches, self._rows, reals, strict=True)]
        where = send(pad_sequence(drawn, batch_first=True), states.device)
        inside = send(torch.arange(where.shape[1]) < torch.tensor(reals)[:, None], states.device)

        def added(chunk: int) -> tuple[Tensor, Tensor]:
            sums = torch.zeros_like(states)
            norms = torch.zeros(where.shape, dtype=torch.float64, device=states.device)
            for runs, records in tiles(where.shape[0], where.shape[1], chunk):
                at = runs, records
                rows = self._x[where[at]], self._y[where[at]]
                norms[at] = self._stacked.add_clipped(sums[runs], states[runs], *rows, inside[at], how)
            return sums, norms

        (sums, norms), self._most = memory.halving(added, self._stacked.chunk(how), self._most)
        found = [row[:n] for row, n in zip(norms, reals, strict=True)]
        for place, (canaries, batch) in enumerate(zip(self._canaries, batches, strict=True)):
            if canaries is not None and len(batch) > reals[place]:
                planted = canaries(states[place], batch[reals[place] :] - len(self._rows[place]), clip)
                sums[place] += planted.sum
                found[place] = torch.cat([found[place], planted.norms])
        return sums, found


class NativeTrainer:
    def train(self, job: TrainingJob) -> None:
        train_with(job, parts_of(job))

    def train_many(self, jobs: Sequence[TrainingJob]) -> None:
        if any(draws_users(job.phases) for job in jobs):
            for job in jobs:
                self.train(job)
            return
        for job, final in zip(jobs, run_batched(jobs), strict=True):
            flat_model.load(job.model, final)


def draws_users(phases: Sequence[FrozenMap]) -> bool:
    return any(Phase.of(phase).sampling.of_users for phase in phases)


def parts_of(job: TrainingJob) -> Parts:
    model = FlatModel(job.model, device=job.device)
    x, y = tensors(job.x, job.y, job.device)
    schedule = Schedule.of(job.phases, len(x) + (job.canaries.count if job.canaries is not None else 0))
    contributions = RecordsAndCanaries(model, x, y, job.canaries)
    if schedule.records_per_user is not None:
        contributions = UsersAndCanaries(model, x, y, job.canaries, most=schedule.records_per_user, seed=job.seed)
    elif y.ndim > 1:
        raise ValueError("each entry of the job is a user, and its phases draw records: write sampling.unit: user")
    return Parts(
        initial=model.initial(),
        schedule=schedule,
        contributions=contributions,
        noise=noise_of(schedule.noise),
        update=update_of(job.options, job.expected_batch_size, schedule.total),
    )


def train_with(job: TrainingJob, parts: Parts) -> None:
    """Run a job with possibly replaced parts. The model is written once, at the end."""
    checkpoint = None
    if job.resumable is not None:
        checkpoint = Checkpoint(job.resumable, lambda: job_digest(job, parts.initial))
    final = run(
        parts,
        job.seed,
        observers=job.observers,
        progress=job.progress,
        cancelled=job.cancelled,
        checkpoint=checkpoint,
    )
    flat_model.load(job.model, final)
