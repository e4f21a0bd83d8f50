"""The backend ``native``: theta <- update(theta, sum of clipped gradients + noise), one run or many runs in one batch.

Each run of a batch draws the same batches and noise as if trained separately; only sums differ by rounding. Batched
runs cannot be resumed.

>>> phase = FrozenMap({"steps": 5, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "full"}})
>>> def job(seed):
...     return TrainingJob(
...         x=np.ones((10, 4), dtype=np.float32),
...         y=np.zeros(10, dtype=np.int64),
...         model=torch.nn.Linear(4, 2),
...         phases=(phase,),
...         options=FrozenMap({"learning_rate": 0.5, "reduction": "mean"}),
...         expected_batch_size=10.0,
...         device="cpu",
...         seed=seed,
...     )
>>> run_batched([job(1), job(2), job(3)]).shape  # the final weights of three models with 10 parameters
torch.Size([3, 10])
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice, repeat
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import dpspec.contract as dps
from dpspec.accounting import DISCRETE_SCALE
from dpspec.contract.frozen import FrozenMap
from dpspec.contract.phase import DISCRETE, Phase
from dpspec.contract.providers import Cancelled, Trainer, TrainingJob
from dpspec.sampling import SamplingScheme, sampler_of
from dpspec.training.adaptive_clipping import AdaptiveClipping, unclipped
from dpspec.training.device import full_precision, generator, send
from dpspec.training.device import tensors as tensors  # plugins import this name
from dpspec.training.discrete_gaussian import IntegerClipper, IntegerContributions, discrete_gaussian
from dpspec.training.gradients import flat_model, memory
from dpspec.training.gradients.persample import Clip, ClippedSum, Clipper, FlatModel, clipper, clipper_of
from dpspec.training.gradients.stacked_models import StackedModel, tiles
from dpspec.training.loop.checkpoint import Checkpoint, Remembering, Stateful, job_digest
from dpspec.training.loop.contributions import RecordsAndCanaries, UsersAndCanaries
from dpspec.training.loop.optimizers import update_of


@dataclass(frozen=True, kw_only=True)
class ScheduledPhase:
    steps: int
    noise_multiplier: float
    clip_norm: float
    sampler: SamplingScheme
    clip: Clip
    noise: str = "gaussian"
    adaptive: AdaptiveClipping | None = None

    @classmethod
    def of(cls, phase: Phase, records: int) -> "ScheduledPhase":
        sampler = sampler_of(phase["sampling"], records)
        if phase.steps % sampler.dependent_steps:
            raise ValueError(f"steps must be a whole number of epochs of {sampler.dependent_steps}, got {phase.steps}")
        return cls(
            steps=phase.steps,
            noise_multiplier=phase.noise_multiplier,
            clip_norm=phase.clip_norm,
            sampler=sampler,
            clip=_clip_of(phase),
            noise=phase.noise,
            adaptive=AdaptiveClipping.of(phase),
        )

    def at(self, clip_norm: float) -> "ScheduledPhase":
        """The phase at a step with ``clip_norm``, which an adaptive phase replaces by the next one."""
        return self if self.adaptive is None else replace(self, clip_norm=clip_norm, clip=Clipper(clip_norm))

    @property
    def deviation(self) -> float:
        return self.noise_multiplier * self.clip_norm

    def in_numbers(self, values: Tensor, like: Tensor) -> Tensor:
        """Sums or noise of the loop as numbers of the type of ``like``: integers are multiples of the grid."""
        return (values.double() * self.clip.grid).to(like) if isinstance(self.clip, IntegerClipper) else values


def _clip_of(phase: Phase) -> Clipper:
    clip = clipper_of(phase)
    return IntegerClipper.of(clip, phase.noise_multiplier) if phase.noise == DISCRETE else clip


@dataclass(frozen=True)
class Schedule:
    phases: tuple[ScheduledPhase, ...]

    @classmethod
    def of(cls, phases: Sequence[Mapping[str, Any]], records: int) -> "Schedule":
        return cls(tuple(ScheduledPhase.of(dps.Phase.of(phase), records) for phase in phases))

    @property
    def total(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def first_steps(self) -> list[int]:
        """The first step of each phase; steps count from 1."""
        return list(accumulate((phase.steps for phase in self.phases[:-1]), initial=1))

    @property
    def records_per_user(self) -> int | None:
        """Maximum number of records averaged per drawn user, the same in all phases; None if records are drawn."""
        said = {getattr(phase.sampler, "records_per_user", None) for phase in self.phases}
        if len(said) != 1:
            raise ValueError("all phases must sample users with the same records_per_user, or all must sample records")
        return said.pop()

    @property
    def noise(self) -> str:
        laws = {phase.noise for phase in self.phases}
        if len(laws) != 1:
            raise ValueError(f"all phases must have the same noise distribution, got {', '.join(sorted(laws))}")
        return laws.pop()

    def __iter__(self) -> Iterator[ScheduledPhase]:
        return chain.from_iterable(repeat(phase, phase.steps) for phase in self.phases)


#: Clipped sum of records ``indices`` (b,) at parameters ``state`` (P,); norms in the order of ``indices``.
Contributions: TypeAlias = Callable[[Tensor, Tensor, Clip], ClippedSum]

#: Noise like a sum (P,) with a standard deviation, drawn only from a generator.
Noise: TypeAlias = Callable[[Tensor, float, torch.Generator], Tensor]

#: The next parameters (P,), as a new tensor, from the current ones and the noisy sum; post-processing for privacy.
Update: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class ClipNorms(Remembering):
    """The clip norms of the steps of one run, and the noisy counts that choose them. The noise has its own generator.

    An adaptive phase begins with its declared clip norm.
    """

    kept = ("clip_norm", "_source")

    def __init__(self, schedule: Schedule, job: TrainingJob) -> None:
        self.clip_norm = 0.0
        self._source = generator(job.seed, "counts")
        self._first_steps, self._batch_size = schedule.first_steps, job.expected_batch_size

    def begin(self, step: int, phase: ScheduledPhase) -> ScheduledPhase:
        """The phase with the clip norm of its ``step``."""
        if phase.adaptive is None or step in self._first_steps:
            self.clip_norm = phase.clip_norm
        return phase.at(self.clip_norm)

    def count(self, phase: ScheduledPhase, norms: Tensor) -> tuple[float, float, float] | None:
        """Choose the next clip norm from the ``norms`` (b,) after clipping; None unless the phase is adaptive.

        Returns the clip norm of the step, its noisy count and the noise in it, as in ``Observer.counted``.
        """
        rule = phase.adaptive
        if rule is None:
            return None
        noise = self.noise(rule.count_std)
        noisy = rule.count(int(unclipped(norms, phase.clip_norm)), len(norms)) + noise
        self.clip_norm = rule.next_clip_norm(phase.clip_norm, noisy, self._batch_size)
        return phase.clip_norm, noisy, noise

    def noise(self, std: float) -> float:
        return std * float(torch.randn((), generator=self._source, dtype=torch.float64))


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that determines one run. Parts with state are :class:`Stateful`."""

    initial: Tensor
    schedule: Schedule
    contributions: Contributions
    noise: Noise
    update: Update
    clip_norms: ClipNorms

    @property
    def stateful(self) -> Mapping[str, Stateful]:
        names = ("contributions", "noise", "update", "clip_norms")
        loop_objects: dict[str, object] = {name: getattr(self, name) for name in names}
        loop_objects |= {f"sampler{i}": phase.sampler for i, phase in enumerate(self.schedule.phases)}
        return {name: part for name, part in loop_objects.items() if isinstance(part, Stateful)}


def gaussian_noise(total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
    """Independent N(0, deviation^2) per parameter, on the device of ``total`` and the generator."""
    return torch.randn(total.shape, generator=source, device=total.device, dtype=total.dtype) * deviation


def laplace_noise(total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
    """Independent Laplace noise per parameter, with density exp(-|z| / b) / (2 b) and b = deviation / sqrt(2).

    The difference of two independent exponentials is always finite.
    """
    first, second = torch.empty_like(total), torch.empty_like(total)
    first.exponential_(generator=source)
    second.exponential_(generator=source)
    return (first - second) * (deviation / sqrt(2.0))


def discrete_gaussian_noise(total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
    """Independent integers per parameter from the discrete Gaussian, with spacing deviation / DISCRETE_SCALE."""
    return discrete_gaussian(total.numel(), DISCRETE_SCALE, source)


#: Noise by the distribution of a phase.
NOISES: dict[str, Noise] = {
    "gaussian": gaussian_noise,
    "laplace": laplace_noise,
    DISCRETE: discrete_gaussian_noise,
}


def train_many(trainer: Trainer, jobs: Sequence[TrainingJob]) -> None:
    together = getattr(trainer, "train_many", None)
    if together is not None:
        together(jobs)
        return
    for job in jobs:
        trainer.train(job)


def run_batched(jobs: Sequence[TrainingJob]) -> Tensor:
    """Run R jobs in one batch; returns their final parameters (R, P). The jobs' models are not changed.

    Jobs share phases, options, expected batch size, device and kind of model. Rows that are the same array are copied
    to the device once. Only the first job reports progress.
    """
    first = jobs[0]
    same = ("phases", "options", "expected_batch_size", "device", "loss")

    def shared(job: TrainingJob) -> list[Any]:
        return [*(getattr(job, name) for name in same), repr(job.model), flat_model.Layout.of(job.model)]

    of_first = shared(first)
    if any(shared(job) != of_first for job in jobs[1:]):
        raise ValueError(f"jobs that run together must have the same kind of model, {', '.join(same)}")
    runs = _Runs(jobs)
    device = torch.device(first.device)
    schedules = [Schedule.of(job.phases, count) for job, count in zip(jobs, runs.records, strict=True)]
    total = schedules[0].total
    noise = NOISES[schedules[0].noise]
    update = update_of(first.options, first.expected_batch_size, total)
    coins = [generator(job.seed, "sampling") for job in jobs]
    sources = [generator(job.seed, "noise", device) for job in jobs]
    clip_norms = [ClipNorms(schedule, job) for schedule, job in zip(schedules, jobs, strict=True)]
    states = torch.stack([flat_model.flatten(job.model) for job in jobs]).to(device)
    with torch.no_grad(), full_precision(device):
        for job, state in zip(jobs, states, strict=True):
            for observer in job.observers:
                observer.released(0, state)
        for step, declared in enumerate(zip(*schedules, strict=True), start=1):
            if any(job.cancelled is not None and job.cancelled() for job in jobs):
                raise Cancelled
            phases = [of_run.begin(step, phase) for of_run, phase in zip(clip_norms, declared, strict=True)]
            batches = [phase.sampler.draw(source) for phase, source in zip(phases, coins, strict=True)]
            sums, norms = runs.clipped_sums(states, batches, [phase.clip for phase in phases])
            drawn = zip(sums, phases, sources, strict=True)
            noises = torch.stack([noise(total, phase.deviation, source) for total, phase, source in drawn])
            states = update(states, sums + noises)
            # All runs report their clip norms first: the first released model is compared for all runs together.
            for of_run, phase, of_batch, job in zip(clip_norms, phases, norms, jobs, strict=True):
                _report_count(job.observers, step, of_run.count(phase, of_batch))
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
    def __init__(self, jobs: Sequence[TrainingJob]) -> None:
        # Concatenate all distinct arrays of rows, with each run's offsets.
        arrays = {(id(job.x), id(job.y)): job for job in jobs}
        pooled = {key: tensors(job.x, job.y, job.device) for key, job in arrays.items()}
        starts = dict(zip(pooled, np.cumsum([0, *(len(x) for x, _ in pooled.values())]).tolist(), strict=False))
        self._x = torch.cat([x for x, _ in pooled.values()])
        self._y = torch.cat([y for _, y in pooled.values()])
        self._rows = [torch.arange(len(job.x)) + starts[id(job.x), id(job.y)] for job in jobs]
        self._most: int | None = None
        model, none = FlatModel.of(jobs[0]), (self._x[:0], self._y[:0])
        self._stacked = StackedModel(jobs[0].model, self._x, self._y, jobs[0].loss)
        planted = (job.canaries for job in jobs)
        self._canaries = [
            None if canaries is None else RecordsAndCanaries(model, *none, canaries) for canaries in planted
        ]
        self.records = [len(job.x) + (job.canaries.count if job.canaries is not None else 0) for job in jobs]

    def clipped_sums(self, states: Tensor, batches: list[Tensor], clips: list[Clip]) -> tuple[Tensor, list[Tensor]]:
        how, clip_norms = clipper(clips[0]), None
        if len({clipper(clip) for clip in clips}) > 1:  # adaptive
            clip_norms = torch.tensor([clipper(clip).clip_norm for clip in clips], dtype=torch.float64)
            clip_norms = clip_norms.to(states.device)
        reals = [int(torch.searchsorted(b, len(rows))) for b, rows in zip(batches, self._rows, strict=True)]
        drawn = [rows[b[:n]] for b, rows, n in zip(batches, self._rows, reals, strict=True)]
        where = send(pad_sequence(drawn, batch_first=True), states.device)
        inside = send(torch.arange(where.shape[1]) < torch.tensor(reals)[:, None], states.device)

        def added(chunk: int) -> tuple[Tensor, Tensor]:
            sums = torch.zeros_like(states)
            norms = torch.zeros(where.shape, dtype=torch.float64, device=states.device)
            for runs, records in tiles(where.shape[0], where.shape[1], chunk):
                tile = runs, records
                rows = self._x[where[tile]], self._y[where[tile]], inside[tile]
                bounds = None if clip_norms is None else clip_norms[runs]
                norms[tile] = self._stacked.add_clipped(sums[runs], states[runs], *rows, how, bounds)
            return sums, norms

        (sums, norms), self._most = memory.halving(added, self._stacked.chunk(how), self._most)
        contribution_norms = [row[:n] for row, n in zip(norms, reals, strict=True)]
        for run, (canaries, batch, clip) in enumerate(zip(self._canaries, batches, clips, strict=True)):
            if canaries is not None and len(batch) > reals[run]:
                planted = canaries(states[run], batch[reals[run] :] - len(self._rows[run]), clip)
                sums[run] += planted.sum
                contribution_norms[run] = torch.cat([contribution_norms[run], planted.norms])
        return sums, contribution_norms


def _report_count(observers: Sequence[dps.Observer], step: int, report: tuple[float, float, float] | None) -> None:
    if report is not None:
        for observer in observers:
            observer.counted(step, *report)


class NativeTrainer:
    def train(self, job: TrainingJob) -> None:
        train_with(job, parts_of(job))

    def train_many(self, jobs: Sequence[TrainingJob]) -> None:
        if any(draws_users(job.phases) or _adds_integers(job.phases) for job in jobs):
            for job in jobs:
                self.train(job)
            return
        for job, final in zip(jobs, run_batched(jobs), strict=True):
            flat_model.load(job.model, final)


def draws_users(phases: Sequence[FrozenMap]) -> bool:
    return any(Phase.of(phase).sampling.of_users for phase in phases)


def _adds_integers(phases: Sequence[FrozenMap]) -> bool:
    return any(Phase.of(phase).noise == DISCRETE for phase in phases)


def parts_of(job: TrainingJob) -> Parts:
    model = FlatModel.of(job)
    x, y = tensors(job.x, job.y, job.device)
    schedule = Schedule.of(job.phases, len(x) + (job.canaries.count if job.canaries is not None else 0))
    kind = IntegerContributions if schedule.noise == DISCRETE else RecordsAndCanaries
    contributions = kind(model, x, y, job.canaries)
    if schedule.records_per_user is not None:
        contributions = UsersAndCanaries(model, x, y, job.canaries, most=schedule.records_per_user, seed=job.seed)
    elif y.ndim > 1:
        raise ValueError("each entry of the job is a user, and its phases draw records: write sampling.unit: user")
    return Parts(
        initial=model.initial(),
        schedule=schedule,
        contributions=contributions,
        noise=NOISES[schedule.noise],
        update=update_of(job.options, job.expected_batch_size, schedule.total),
        clip_norms=ClipNorms(schedule, job),
    )


def train_with(job: TrainingJob, loop_parts: Parts) -> None:
    """Run a job with possibly replaced parts in full float32. A resumed run ends with the same bits."""
    state, observers, total = loop_parts.initial, job.observers, loop_parts.schedule.total
    sampling, source = generator(job.seed, "sampling"), generator(job.seed, "noise", state.device)
    stateful: dict[str, Stateful | torch.Generator] = {
        **loop_parts.stateful,
        "sampling": sampling,
        "source": source,
        **{f"observer{i}": observer for i, observer in enumerate(observers)},
    }
    checkpoint, resumed = None, None
    if job.resumable is not None:
        checkpoint = Checkpoint(job.resumable, lambda: job_digest(job, loop_parts.initial))
        resumed = checkpoint.load(stateful, state)
        if resumed is not None and job.resumable.resumed is not None:
            job.resumable.resumed(resumed[0], loop_parts.schedule.total)
    done, state = resumed if resumed is not None else (0, state)
    with torch.no_grad(), full_precision(state.device):
        if resumed is None:
            for observer in observers:
                observer.released(0, state)
        for step, declared in enumerate(islice(loop_parts.schedule, done, None), start=done + 1):
            if job.cancelled is not None and job.cancelled():
                if checkpoint is not None:
                    checkpoint.save(step - 1, state, stateful)
                raise Cancelled
            phase = loop_parts.clip_norms.begin(step, declared)
            indices = phase.sampler.draw(sampling)
            clipped = loop_parts.contributions(state, indices, phase.clip)
            noise = loop_parts.noise(clipped.sum, phase.deviation, source)
            state = loop_parts.update(state, phase.in_numbers(clipped.sum + noise, state))
            _report_count(observers, step, loop_parts.clip_norms.count(phase, clipped.norms))
            for observer in observers:
                observer.sampled(step, indices)
                observer.clipped(step, clipped.norms)
                observer.noised(step, phase.in_numbers(noise, state))
                observer.released(step, state)
            if checkpoint is not None and checkpoint.due(step, total):
                checkpoint.save(step, state, stateful)
            if job.progress is not None:
                job.progress(step, total)
    flat_model.load(job.model, state)
