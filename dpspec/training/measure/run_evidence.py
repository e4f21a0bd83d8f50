"""Convert the observers' logs of a run to the evidence that ``stats.conformance.run_checks`` compares with the
declaration.

:func:`reported_evidence` summarizes the backend's reports. Only Gaussian noise is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, floor
from typing import Any, TypeAlias

import numpy as np

from dpspec.contract.frozen import Json
from dpspec.contract.providers import Observer, TrainingJob
from dpspec.stats.conformance import freshness, noise_size, sampling, step_tests
from dpspec.stats.conformance.evidence.measured import OutsideNoise
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
from dpspec.training.loop.dpsgd import Schedule
from dpspec.training.loop.samplers import (
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    epoch_of,
    independent,
)
from dpspec.training.measure.canary_signal import canary_sums
from dpspec.training.measure.logs import NoiseLog, NormLog, SamplingLog, StateLog
from dpspec.training.measure.observers import ProjectionObserver
from dpspec.training.measure.residuals import NoiseScale, Residuals
from dpspec.training.measure.update_statistics import first_coordinates, replace_non_finite, residual_sums
from dpspec.training.measure.update_statistics import number as number

Array: TypeAlias = np.ndarray[Any, Any]

#: Maximum number of remembered records; batches further back are not compared.
_REMEMBERED = 2**24


_EMPTY: Array = np.zeros(0, dtype=np.int64)


class RunLogs:
    """Logs of one run, for the schedule that its job declares."""

    def __init__(self, job: TrainingJob) -> None:
        records = len(job.x) + (job.canaries.count if job.canaries is not None else 0)
        self.schedule = Schedule.of(job.phases, records)
        steps = [phase.steps for phase in self.schedule.phases]
        rates = [phase.sampler.inclusion for phase in self.schedule.phases]
        means = [phase.steps * _entry_rate(phase.sampler) for phase in self.schedule.phases]
        orders = [_shuffled_batch_size(phase.sampler) for phase in self.schedule.phases]
        epochs = [epoch_of(phase.sampler) for phase in self.schedule.phases]
        times = [_batches_per_epoch(phase.sampler) for phase in self.schedule.phases]
        self.sampling = SamplingLog(records, steps, compared_lags(self.schedule), rates, means, orders, epochs, times)
        self.noise = NoiseLog(self.schedule.total)
        self.norms = NormLog()
        self.states = StateLog()

    @property
    def observers(self) -> tuple[Observer, ...]:
        """All logs as observers."""
        return (self.sampling, self.noise, self.norms, self.states)


class WatchedRun:
    """Observers of one run and the conformance evidence they yield.

    Args:
        job: The job without observers, with canaries.
        watcher: Observer of the released models.
        logged: Whether to log the backend's reports. Otherwise only released models are counted.
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

    def evidence(self, second: RunLogs | None = None, sizes: Array = _EMPTY, coins: Array = _EMPTY) -> dict[str, Json]:
        """Evidence after the run; see :func:`evidence_of`. ``sizes``, ``coins``: (m,) of canary groups."""
        if self.logs is None:
            return self._states.evidence(self._job)
        return evidence_of(self.logs, second, self._watcher, self._job, sizes, coins)


def compared_lags(schedule: Schedule) -> tuple[int, ...]:
    """Lags at which batches of a data loader exclude or repeat each other: within an epoch, and one epoch apart."""
    found = {1, 2}
    for phase in schedule.phases:
        rate = phase.sampler.inclusion
        if 0.0 < rate < 1.0:
            found |= {floor(1.0 / rate), ceil(1.0 / rate), epoch_of(phase.sampler)}
    batch = max(phase.sampler.inclusion * phase.sampler.records for phase in schedule.phases)
    return tuple(sorted(lag for lag in found if lag < schedule.total and lag * batch <= _REMEMBERED)[:8])


def evidence_of(
    logs: RunLogs,
    second: RunLogs | None,
    watcher: Residuals | None,
    job: TrainingJob,
    sizes: Array,
    coins: Array,
) -> dict[str, Json]:
    """Collect all evidence of a run.

    Measurements of gradients depend on the rows and are stored under ``internal``: a step with one record minus its
    noise, which the seed determines, is that record's gradient.

    Args:
        logs: Logs of the run.
        second: Logs of another run with independent seeds.
        watcher: Observer of the released models.
        job: The job with canaries.
        sizes: Sizes of the canary groups (m,).
        coins: Inclusion bits of the canary groups (m,).
    """
    run, states = reported_evidence(logs, second), logs.states.states(job)
    if states is not None:
        run = replace(run, steps=logs.states.steps, states=states)
    if watcher is not None:
        run = replace(run, noise=_residual_noise(watcher.noise_scale()))
        if watcher.log is not None and (watcher.log.seen or watcher.log.steps or watcher.log.hidden):
            run = replace(run, measured=residual_sums(watcher.log))
        if isinstance(watcher, ProjectionObserver):
            run = replace(run, signal=canary_sums(watcher, job, sizes, coins))
    return write_run(run)


def reported_evidence(logs: RunLogs, second: RunLogs | None = None) -> RunEvidence:
    """Summarize the backend's reports of a run, and of a second run with independent seeds."""
    sampling, norms = logs.sampling, logs.norms
    counts = {"batches": len(sampling.sizes), "noise": len(logs.noise.squares), "norms": len(norms.largest)}
    run = RunEvidence(told=Told(**{log: count for log, count in counts.items() if count}))
    if sampling.sizes:
        batches = tuple(_batches(logs.schedule, sampling))
        records = len(sampling.inclusions)
        run = replace(run, sampling_log=SamplingSums(records=records, repeats=sampling.repeats, batches=batches))
    scaled = _scaled(logs)
    if scaled is not None:
        run = replace(run, noise_log=_noise(logs, scaled, _scaled(second) if second is not None else None))
    if norms.largest:
        run = replace(run, norm_log=_norms(logs))
    return run


def _norms(logs: RunLogs) -> NormSums:
    clips = np.array([phase.clip_norm for phase in logs.schedule])
    count = min(len(clips), len(logs.norms.largest))
    largest = float(np.max(np.asarray(logs.norms.largest[:count]) / clips[:count]))
    largest = number(largest if largest >= 0.0 else np.nan)  # norms are not negative
    drawn, clipped = logs.sampling.sizes, logs.norms.counts
    if not drawn:
        return NormSums(largest=largest)
    same = len(drawn) == len(clipped)
    return NormSums(
        largest=largest,
        missing=int(sum(drawn) - sum(clipped)),
        astray=sum(a != b for a, b in zip(drawn, clipped, strict=True)) if same else None,
    )


def _residual_noise(scale: NoiseScale) -> OutsideNoise:
    each = None
    if scale.degrees:
        law = noise_size.StepNoise(scale.degrees // len(scale.each), both=False)
        each = step_tests.summary(scale.each, law, scale.numbers, law.count)
    return OutsideNoise(statistic=number(scale.statistic), degrees=scale.degrees, hidden=scale.hidden, each=each)


def _batches(schedule: Schedule, log: SamplingLog) -> Iterator[BatchSums]:
    start = 0
    for index, phase in enumerate(schedule.phases):
        sizes = np.asarray(log.sizes[start : start + phase.steps], dtype=np.int64)
        start += phase.steps
        sampler = phase.sampler
        law = _batch_size_distribution(sampler) if len(sizes) else None
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
    """Overlaps of batches, and epochs."""
    epochs = log.epochs.get(phase)
    if epochs is not None:
        return {"together": epochs.sums(), "early": epochs.early}
    return {"together": None if log.together is None else log.together.sums(phase)}


def _shuffled_batch_size(sampler: Sampler) -> int:
    """Batch size of shuffled batches; 0 for other schemes."""
    return sampler.batch_size if isinstance(sampler, Shuffled) else 0


def _batches_per_epoch(sampler: Sampler) -> int:
    """Number of batches per record and epoch; 1 if steps are independent."""
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


def _entry_rate(sampler: Sampler) -> float:
    """Inclusion probability, before truncation."""
    return sampler.rate if isinstance(sampler, TruncatedPoisson) else sampler.inclusion


def _batch_size_distribution(sampler: Sampler) -> step_tests.Law | None:
    """Distribution of a random batch size; None if it is fixed or unknown."""
    if isinstance(sampler, TruncatedPoisson) and sampler.rate < 1.0:
        return TruncatedSize(sampler.records, sampler.rate, sampler.max_batch)
    if independent(sampler) and 0.0 < sampler.inclusion < 1.0:
        return sampling.BatchSize(sampler.records, sampler.inclusion)
    return None


def _scaled(logs: RunLogs) -> Array | None:
    """Stored noise (steps, width) in units of its declared standard deviation; None if it is not tested."""
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
