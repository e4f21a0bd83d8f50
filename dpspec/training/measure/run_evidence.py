"""From what observers kept of a run to the JSON that ``stats.conformance.run_checks`` holds against the declaration.

``reported`` boils down what the backend said of itself, ``measured`` what was seen from outside, ``signal`` what the
planted canaries added along their directions. Only Gaussian noise is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, floor
from typing import Any, TypeAlias

import numpy as np
import torch

from dpspec.contract.frozen import Json
from dpspec.contract.providers import Observer, TrainingJob
from dpspec.stats.conformance import freshness, noise_size, sampling, step_tests
from dpspec.stats.conformance.evidence import json_records
from dpspec.stats.conformance.evidence.measured import GroupSums, OutsideNoise, PlantedSums
from dpspec.stats.conformance.evidence.reported import (
    BatchSums,
    Common,
    CommonAtStep,
    EpochSums,
    LagProducts,
    NoiseSums,
    NormSums,
    SamplingSums,
    Told,
    TwinProducts,
)
from dpspec.stats.conformance.evidence.run import RunEvidence, write_run
from dpspec.stats.truncated_binomial import TruncatedSize
from dpspec.training.gradients.clipping import Flat, clipper
from dpspec.training.loop.samplers import (
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    drawn_shares,
    epoch_of,
    independent,
)
from dpspec.training.loop.schedule import Schedule
from dpspec.training.measure.logs import NoiseLog, NormLog, SamplingLog, StateLog
from dpspec.training.measure.luck import luck_of_steps, totals_by_step
from dpspec.training.measure.observers import ProjectionObserver
from dpspec.training.measure.residuals import NoiseScale, Residuals
from dpspec.training.measure.update_statistics import ResidualLog, first_coordinates, replace_non_finite, residual_sums
from dpspec.training.measure.update_statistics import number as number

Array: TypeAlias = np.ndarray[Any, Any]

#: Batches further back than hold so many records are not kept for comparison.
_REMEMBERED = 2**24


_NONE: Array = np.zeros(0, dtype=np.int64)


class RunLogs:
    """The logs of one run, held against the schedule that its job declares."""

    def __init__(self, job: TrainingJob) -> None:
        records = len(job.x) + (job.canaries.count if job.canaries is not None else 0)
        self.schedule = Schedule.of(job.phases, records)
        steps = [phase.steps for phase in self.schedule.phases]
        rates = [phase.sampler.inclusion for phase in self.schedule.phases]
        means = [phase.steps * _most(phase.sampler) for phase in self.schedule.phases]
        orders = [_cut(phase.sampler) for phase in self.schedule.phases]
        epochs = [epoch_of(phase.sampler) for phase in self.schedule.phases]
        times = [_batches_per_epoch(phase.sampler) for phase in self.schedule.phases]
        self.sampling = SamplingLog(records, steps, compared_lags(self.schedule), rates, means, orders, epochs, times)
        self.noise = NoiseLog(self.schedule.total)
        self.norms = NormLog()
        self.states = StateLog()

    @property
    def observers(self) -> tuple[Observer, ...]:
        """All logs, for a job."""
        return (self.sampling, self.noise, self.norms, self.states)


class WatchedRun:
    """What is kept of a run for conformance: all that it tells, or, of one among many, what it releases alone.

    job: before it is watched; planted canaries are part of it. watcher: who looks at the released models, if anybody
    does. logged: whether all is kept that backend and watcher tell.
    """

    def __init__(self, job: TrainingJob, watcher: Residuals | None = None, *, logged: bool = True) -> None:
        self._job, self._watcher = job, watcher
        self.logs = RunLogs(job) if logged else None
        self._states = StateLog() if self.logs is None else self.logs.states
        if watcher is not None and logged:
            watcher.keep_log(job)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """The watcher and the logs, for the job."""
        logs = (self._states,) if self.logs is None else self.logs.observers
        return logs if self._watcher is None else (self._watcher, *logs)

    def evidence(self, twin: RunLogs | None = None, sizes: Array = _NONE, coins: Array = _NONE) -> dict[str, Json]:
        """After the run, as :func:`evidence_of` says it; ``sizes`` and ``coins`` (m,) of gradient canaries."""
        if self.logs is None:
            return self._states.evidence(self._job)
        return evidence_of(self.logs, twin, self._watcher, self._job, sizes, coins)


def compared_lags(schedule: Schedule) -> tuple[int, ...]:
    """Lags at which batches of a loader exclude each other or are alike: within an epoch, and one epoch apart."""
    found = {1, 2}
    for phase in schedule.phases:
        rate = phase.sampler.inclusion
        if 0.0 < rate < 1.0:
            found |= {floor(1.0 / rate), ceil(1.0 / rate), epoch_of(phase.sampler)}
    batch = max(phase.sampler.inclusion * phase.sampler.records for phase in schedule.phases)
    return tuple(sorted(lag for lag in found if lag < schedule.total and lag * batch <= _REMEMBERED)[:8])


def evidence_of(
    logs: RunLogs,
    twin: RunLogs | None,
    watcher: Residuals | None,
    job: TrainingJob,
    sizes: Array,
    coins: Array,
) -> dict[str, Json]:
    """All that a trial says of the run that it made; ``sizes`` and ``coins`` (m,) are those of its canary groups.

    What was seen of gradients speaks of the rows and comes under ``internal``: a step with a single record less its
    noise, which the seed gives away, is that record's gradient.

    twin: the logs of another run with seeds of its own. watcher: who saw the released models, if anybody did.
    """
    run, states = _reported(logs, twin), logs.states.states(job)
    if states is not None:
        run = replace(run, steps=logs.states.steps, states=states)
    if watcher is not None:
        run = replace(run, noise=_outside(watcher.noise_scale()))
        if watcher.log is not None and (watcher.log.seen or watcher.log.steps or watcher.log.hidden):
            run = replace(run, measured=residual_sums(watcher.log))
        if isinstance(watcher, ProjectionObserver):
            run = replace(run, signal=_planted(watcher, job, sizes, coins))
    return write_run(run)


def reported(logs: RunLogs, twin: RunLogs | None = None) -> dict[str, Json]:
    """What the backend said of a run, and of another with seeds of its own; without what it does not report."""
    return write_run(_reported(logs, twin))


def _reported(logs: RunLogs, twin: RunLogs | None) -> RunEvidence:
    sampling, norms = logs.sampling, logs.norms
    counts = {"batches": len(sampling.sizes), "noise": len(logs.noise.squares), "norms": len(norms.largest)}
    run = RunEvidence(told=Told(**{log: count for log, count in counts.items() if count}))
    if sampling.sizes:
        batches = tuple(_batches(logs.schedule, sampling))
        records = len(sampling.inclusions)
        run = replace(run, sampling_log=SamplingSums(records=records, repeats=sampling.repeats, batches=batches))
    scaled = _scaled(logs)
    if scaled is not None:
        run = replace(run, noise_log=_noise(logs, scaled, _scaled(twin) if twin is not None else None))
    if norms.largest:
        run = replace(run, norm_log=_norms(logs))
    return run


def _norms(logs: RunLogs) -> NormSums:
    clips = np.array([phase.clip_norm for phase in logs.schedule])
    count = min(len(clips), len(logs.norms.largest))
    largest = float(np.max(np.asarray(logs.norms.largest[:count]) / clips[:count]))
    largest = number(largest if largest >= 0.0 else np.nan)  # no norm is below 0
    drawn, clipped = logs.sampling.sizes, logs.norms.counts
    if not drawn:
        return NormSums(largest=largest)
    same = len(drawn) == len(clipped)
    return NormSums(
        largest=largest,
        missing=int(sum(drawn) - sum(clipped)),
        astray=sum(a != b for a, b in zip(drawn, clipped, strict=True)) if same else None,
    )


def _outside(scale: NoiseScale) -> OutsideNoise:
    each = None
    if scale.degrees:
        law = noise_size.StepNoise(scale.degrees // len(scale.each), both=False)
        each = step_tests.summary(scale.each, law, scale.numbers, law.count)
    return OutsideNoise(statistic=number(scale.statistic), degrees=scale.degrees, hidden=scale.hidden, each=each)


def measured(log: ResidualLog) -> dict[str, Json]:
    """What was seen from outside: sums of squares per layer, and sums along predictable directions."""
    found: dict[str, Json] = json_records.write(residual_sums(log))
    return found


def signal(watcher: ProjectionObserver, job: TrainingJob, sizes: Array, coins: Array) -> dict[str, Json]:
    """Moments of what was seen along the canaries' directions, per group size and coin; sizes and coins (m,).

    Projections are summed, in clip norms, over the steps that were looked at and whose rounding can be borne. One
    planted record is expected to add ``draws`` of them: as many as there are batches with it among those, on average,
    times how far its gradient points along its direction. ``outside`` is the variance of such a sum without planted
    records, the deviation of the drawn real records taken to lie in no direction more than in others; each planted
    record adds ``inclusion`` to it. ``rounding`` bounds the length of what rounding changed of the sum of all those
    residuals, ``hidden`` counts the steps that it hides. ``by_step`` is how totals vary over those that are counted.
    Empty where clipping turns gradients.
    """
    planted = _planted(watcher, job, sizes, coins)
    return {} if planted is None else {"signal": json_records.write(planted)}


def _planted(watcher: ProjectionObserver, job: TrainingJob, sizes: Array, coins: Array) -> PlantedSums | None:
    schedule = RunLogs(job).schedule
    flat = all(isinstance(clipper(phase.clip), Flat) for phase in schedule.phases)
    if not flat or job.canaries is None or job.canaries.count == 0:
        return None
    row = job.canaries.gradients(torch.tensor([0]))[0]
    along = float(watcher.directions.project(row).max() / row.norm())
    measured = watcher.looked & watcher.borne
    sums = watcher.projections[measured].double().sum(0).numpy()
    moments: list[GroupSums] = []
    for size in np.unique(sizes):
        for coin in (0, 1):
            some = replace_non_finite(sums[(sizes == size) & (coins == coin)])
            moments.append(GroupSums(int(size), coin, len(some), float(some.sum()), float((some**2).sum())))
    looked = [phase for phase, seen in zip(schedule, measured.tolist(), strict=True) if seen]
    ends = np.cumsum([phase.steps for phase in schedule.phases])[:-1]
    parts = zip(schedule.phases, np.split(measured.numpy(), ends), strict=True)
    means, variances = zip(*(drawn_shares(phase.sampler, part) for phase, part in parts), strict=True)
    noise = sum(phase.noise_multiplier**2 for phase in looked)
    return PlantedSums(
        draws=along * float(np.concatenate(means).sum()),
        moments=tuple(moments),
        outside=number(noise + float(watcher.spread[measured].sum()) / watcher.directions.parameters),
        inclusion=along**2 * float(np.concatenate(variances).sum()),
        rounding=number(float(watcher.rounding[measured].sum())),
        hidden=int((watcher.looked & ~watcher.borne).sum()),
        luck=tuple(luck_of_steps(watcher, measured, sizes, coins)),
        by_step=totals_by_step(watcher, measured, sizes, coins, along),
    )


def _batches(schedule: Schedule, log: SamplingLog) -> Iterator[BatchSums]:
    start = 0
    for index, phase in enumerate(schedule.phases):
        sizes = np.asarray(log.sizes[start : start + phase.steps], dtype=np.int64)
        start += phase.steps
        sampler = phase.sampler
        law = _size_law(sampler) if len(sizes) else None
        overlaps = zip(log.lags, log.overlaps[index].tolist(), strict=True)
        yield BatchSums(
            steps=len(sizes),
            total=int(sizes.sum()),
            squares=int((sizes**2).sum()),
            spread=log.spreads[index] if index < len(log.spreads) else None,
            above=log.above[index] if index < len(log.above) == len(log.spreads) else None,
            most=log.most[index] if index < len(log.most) == len(log.spreads) else None,
            sizes=None if law is None else step_tests.summary(sizes, law),
            again=tuple(CommonAtStep(lag, *told) for lag, told in sorted(log.again[index].items()) if told[1]),
            overlaps=tuple(Common(lag, *counts) for lag, counts in overlaps if counts[1]),
            **_compared(log, index),
            epochs=_epochs(sampler, sizes, log, index) if isinstance(sampler, RandomAllocation) else None,
        )


def _compared(log: SamplingLog, phase: int) -> dict[str, Any]:
    """What batches have in common, and what epochs do."""
    epochs = log.epochs.get(phase)
    if epochs is not None:
        return {"together": epochs.sums(), "early": epochs.early}
    return {"together": None if log.together is None else log.together.sums(phase)}


def _cut(sampler: Sampler) -> int:
    """The size of batches that are cut from an order; 0 for all others."""
    return sampler.batch_size if isinstance(sampler, Shuffled) else 0


def _batches_per_epoch(sampler: Sampler) -> int:
    """In how many batches of an epoch a record is; 1 where no step tells of others."""
    return sampler.batches_per_epoch if isinstance(sampler, RandomAllocation) else 1


def _epochs(sampler: RandomAllocation, sizes: Array, log: SamplingLog, phase: int) -> EpochSums:
    whole = len(sizes) // sampler.epoch_steps
    apart = sizes[: whole * sampler.epoch_steps] - sampler.records * sampler.batches_per_epoch / sampler.epoch_steps
    return EpochSums(
        whole=whole,
        astray=log.astray[phase] if whole else 0,
        spread=float(np.square(apart).sum()),
        stays=log.stays[phase] if phase < len(log.stays) else None,
    )


def _most(sampler: Sampler) -> float:
    """The rate of inclusion, where batches are truncated that of those who enter."""
    return sampler.rate if isinstance(sampler, TruncatedPoisson) else sampler.inclusion


def _size_law(sampler: Sampler) -> step_tests.Law | None:
    """The law of a batch's size where that is random and known; None where it is not."""
    if isinstance(sampler, TruncatedPoisson) and sampler.rate < 1.0:
        return TruncatedSize(sampler.records, sampler.rate, sampler.max_batch)
    if independent(sampler) and 0.0 < sampler.inclusion < 1.0:
        return sampling.BatchSize(sampler.records, sampler.inclusion)
    return None


def _scaled(logs: RunLogs) -> Array | None:
    """The kept noise (steps, width) in units of its declared deviation; None where that is not what is tested."""
    deviations = np.array([phase.deviation for phase in logs.schedule])
    gaussian = all(phase.noise == "gaussian" for phase in logs.schedule.phases)
    if len(logs.noise.squares) != len(deviations) or not gaussian or not np.all(deviations > 0):
        return None
    rows: Array = np.stack(logs.noise.rows).astype(np.float64) / deviations[:, None]
    return replace_non_finite(rows)


def _noise(logs: RunLogs, rows: Array, other: Array | None) -> NoiseSums:
    deviations = np.array([phase.deviation for phase in logs.schedule])
    scaled = np.asarray(logs.noise.squares) / deviations**2
    steps, width = rows.shape
    squares = (rows**2).sum(axis=0)
    half = width // 2
    products = freshness.products(rows)
    lag = freshness.worst_lag(products.lags)
    law = noise_size.StepNoise(logs.noise.count, both=True)
    twin = None
    if other is not None and other.shape == rows.shape:
        aligned, largest = freshness.across(rows, other)
        twin = TwinProducts(aligned=number(aligned), largest=number(largest))
    return NoiseSums(
        statistic=number(float(np.sum(scaled))),
        degrees=logs.noise.count * len(deviations),
        products=number(float(np.sum(np.asarray(logs.noise.products) / (deviations[1:] * deviations[:-1])))),
        pairs=logs.noise.count * len(logs.noise.products),
        each=step_tests.summary(scaled, law, count=law.count),
        steps=steps,
        width=width,
        quietest=number(float(squares.min())),
        halves=number(float((rows[:, :half] * rows[:, half : 2 * half]).sum())),
        lag=LagProducts(lag=lag, products=number(float(products.lags[lag]))),
        pair=number(products.largest),
        first=first_coordinates(rows),
        twin=twin,
    )
