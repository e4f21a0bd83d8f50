"""Independent runs of one model and one schedule, all at once: a step computes the gradients of all runs together.

A small model leaves a device idle: a run of its own spends its time on starting operations, and many runs at once
hardly take longer than one. Each run keeps generators of its own, so that it draws the very batches and the very noise
that it would draw alone; only sums differ, by rounding. Such runs are short, and are not resumed when they are killed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dpspec.contract.providers import Cancelled, Trainer, TrainingJob
from dpspec.training import flat
from dpspec.training.clipping import Clip, clipper
from dpspec.training.contributions import RecordsAndCanaries
from dpspec.training.native import tensors
from dpspec.training.noise import noise_of
from dpspec.training.optimizers import update_of
from dpspec.training.persample import FlatModel
from dpspec.training.schedule import Schedule
from dpspec.training.seeds import generator
from dpspec.training.stacked import StackedModel


def train_many(trainer: Trainer, jobs: Sequence[TrainingJob]) -> None:
    """Train every job, each with a model of its own: together where the trainer has a ``train_many``, or in turn."""
    together = getattr(trainer, "train_many", None)
    if together is not None:
        together(jobs)
        return
    for job in jobs:
        trainer.train(job)


def run_batched(jobs: Sequence[TrainingJob], *, members: Sequence[Tensor] | None = None) -> Tensor:
    """Run R jobs at once and return their final parameters (R, P); the jobs' models are left as they are.

    The jobs share their phases, options, expected batch size, device and kind of model. Seeds, initial weights, rows,
    canaries and observers are each one's own; rows that are the same arrays stand on the device once.

    members: per run the rows of ``job.x`` that its data consists of, in this order: the run is that of a job with
        ``x[members]`` and ``y[members]``, and all runs can share one array.

    Progress is told to the first job alone. Raises ``ValueError`` where the jobs cannot be run together, ``Cancelled``
    before the next step once any of them is.
    """
    _require_alike(jobs)
    first, runs = jobs[0], _Runs(jobs, members)
    device = torch.device(first.device)
    schedules = [Schedule.of(job.phases, count) for job, count in zip(jobs, runs.records, strict=True)]
    total = schedules[0].total
    noise = noise_of(schedules[0].noise)
    update = update_of(first.options, first.expected_batch_size, total)
    coins = [generator(job.seed, "sampling") for job in jobs]
    sources = [generator(job.seed, "noise", device) for job in jobs]
    states = torch.stack([flat.flatten(job.model) for job in jobs]).to(device)
    with torch.no_grad():
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
            for run, job in enumerate(jobs):
                for observer in job.observers:
                    observer.sampled(step, batches[run])
                    observer.clipped(step, norms[run])
                    observer.noised(step, noises[run])
                    observer.released(step, states[run])
            if first.progress is not None:
                first.progress(step, total)
    return states


class _Runs:
    """The records of all runs, and what a batch of each contributes.

    records: per run, real and planted ones together.
    """

    def __init__(self, jobs: Sequence[TrainingJob], members: Sequence[Tensor] | None) -> None:
        self._pool(jobs, members)
        model, none = FlatModel(jobs[0].model, device=jobs[0].device), (self._x[:0], self._y[:0])
        self._stacked = StackedModel(jobs[0].model, self._x, self._y)
        self._canaries = [
            RecordsAndCanaries(model, *none, job.canaries) if job.canaries is not None else None for job in jobs
        ]
        planted = [canaries.records if canaries is not None else 0 for canaries in self._canaries]
        self.records = [len(rows) + count for rows, count in zip(self._rows, planted, strict=True)]

    def clipped_sums(self, states: Tensor, batches: Sequence[Tensor], clip: Clip) -> tuple[Tensor, list[Tensor]]:
        """Sums (R, P) at ``states`` (R, P) over each run's batch, and the norms (b,) of each run after clipping."""
        how = clipper(clip)
        reals = [int(torch.searchsorted(b, len(rows))) for b, rows in zip(batches, self._rows, strict=True)]
        drawn = [rows[b[:n]] for b, rows, n in zip(batches, self._rows, reals, strict=True)]
        where = pad_sequence(drawn, batch_first=True).to(states.device)
        inside = (torch.arange(where.shape[1]) < torch.tensor(reals)[:, None]).to(states.device)
        sums = torch.zeros_like(states)
        norms = torch.zeros(where.shape, dtype=torch.float64, device=states.device)
        chunk = self._stacked.chunk(how)
        height = min(len(states), chunk)
        width = max(1, chunk // height)
        for top in range(0, len(states), height):
            runs = slice(top, top + height)
            for left in range(0, where.shape[1], width):
                at = runs, slice(left, left + width)
                rows = self._x[where[at]], self._y[where[at]]
                norms[at] = self._stacked.add_clipped(sums[runs], states[runs], *rows, inside[at], how)
        found = [row[:n] for row, n in zip(norms, reals, strict=True)]
        for run, (canaries, batch) in enumerate(zip(self._canaries, batches, strict=True)):
            if canaries is not None and len(batch) > reals[run]:
                planted = canaries(states[run], batch[reals[run] :] - len(self._rows[run]), clip)
                sums[run] += planted.sum
                found[run] = torch.cat([found[run], planted.norms])
        return sums, found

    def _pool(self, jobs: Sequence[TrainingJob], members: Sequence[Tensor] | None) -> None:
        """All rows, each array once, and per run where its records stand among them."""
        if members is not None and len(members) != len(jobs):
            raise ValueError(f"{len(jobs)} jobs but {len(members)} members")
        arrays = {(id(job.x), id(job.y)): job for job in jobs}
        pooled = {key: tensors(job.x, job.y, job.device) for key, job in arrays.items()}
        starts = dict(zip(pooled, np.cumsum([0, *(len(x) for x, _ in pooled.values())]).tolist(), strict=False))
        self._x = torch.cat([x for x, _ in pooled.values()])
        self._y = torch.cat([y for _, y in pooled.values()])
        self._rows: list[Tensor] = []
        for run, job in enumerate(jobs):
            own = torch.arange(len(job.x)) if members is None else members[run].to("cpu", torch.int64)
            self._rows.append(own + starts[id(job.x), id(job.y)])


def _require_alike(jobs: Sequence[TrainingJob]) -> None:
    if not jobs:
        raise ValueError("there are no jobs to run")
    first = jobs[0]
    for job in jobs:
        for what in ("phases", "options", "expected_batch_size", "device"):
            if getattr(job, what) != getattr(first, what):
                raise ValueError(f"jobs that run together must have the same {what}")
        if repr(job.model) != repr(first.model) or flat.Layout.of(job.model) != flat.Layout.of(first.model):
            raise ValueError("jobs that run together must have the same kind of model")
        if len(job.x) != len(job.y):
            raise ValueError(f"{len(job.x)} records but {len(job.y)} labels")
