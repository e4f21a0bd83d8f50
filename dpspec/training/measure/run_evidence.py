"""Convert the observers' logs of a run to the evidence that ``stats.conformance.table`` tests.

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
from dpspec.stats.conformance import step_tests
from dpspec.stats.conformance.batch_checks import BatchSums, Common, SamplingSums
from dpspec.stats.conformance.epochs import EpochSums
from dpspec.stats.conformance.evidence import (
    NoiseSums,
    NormSums,
    OutsideNoise,
    ReportedSteps,
    RunEvidence,
    number,
    write_run,
)
from dpspec.training.loop.dpsgd import Schedule
from dpspec.training.loop.samplers import (
    RandomAllocation,
    Shuffled,
    TruncatedPoisson,
    epoch_of,
    independent,
)
from dpspec.training.measure.canary_signal import canary_sums
from dpspec.training.measure.logs import NoiseLog, NormLog, SamplingLog, StateLog
from dpspec.training.measure.observers import ProjectionObserver
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.update_statistics import replace_non_finite, residual_sums

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
        samplers = [phase.sampler for phase in self.schedule.phases]
        # Inclusion probabilities before truncation.
        rates = [one.rate if isinstance(one, TruncatedPoisson) else one.inclusion for one in samplers]
        means = [count * rate for count, rate in zip(steps, rates, strict=True)]
        orders = [one.batch_size if isinstance(one, Shuffled) else 0 for one in samplers]
        epochs = [epoch_of(one) for one in samplers]
        times = [one.batches_per_epoch if isinstance(one, RandomAllocation) else 1 for one in samplers]
        self.sampling = SamplingLog(records, steps, compared_lags(self.schedule), means, orders, epochs, times)
        self.noise = NoiseLog(self.schedule.total)
        self.norms = NormLog()
        self.states = StateLog()

    @property
    def observers(self) -> tuple[Observer, ...]:
        return (self.sampling, self.noise, self.norms, self.states)


class WatchedRun:
    """Observers of one run and the conformance evidence they yield.

    ``job`` has canaries but no observers; ``watcher`` observes the released models. Without ``logged``, released models
    are counted only.
    """

    def __init__(self, job: TrainingJob, watcher: Residuals | None = None, *, logged: bool = True) -> None:
        self._job, self._watcher = job, watcher
        self.logs = RunLogs(job) if logged else None
        self._states = StateLog() if self.logs is None else self.logs.states
        if watcher is not None and logged:
            watcher.keep_log(job)

    @property
    def observers(self) -> tuple[Observer, ...]:
        logs = (self._states,) if self.logs is None else self.logs.observers
        return logs if self._watcher is None else (self._watcher, *logs)

    def evidence(self, second: RunLogs | None = None, sizes: Array = _EMPTY, coins: Array = _EMPTY) -> dict[str, Json]:
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
    """Collect all evidence of a run, with the noise of a ``second`` run with independent seeds.

    ``sizes``, ``coins`` (m,): sizes and inclusion bits of the canary groups. A step with one record minus its noise,
    which the seed determines, is that record's gradient, so measurements of gradients are ``internal``.
    """
    run, states = reported_evidence(logs, second), logs.states.states(job)
    if states is not None:
        run = replace(run, steps=logs.states.steps, states=states)
    if watcher is not None:
        scale, each = watcher.noise_scale(), None
        if scale.degrees:
            each = step_tests.summary(scale.each, scale.numbers, scale.degrees // len(scale.each))
        noise = OutsideNoise(statistic=number(scale.statistic), degrees=scale.degrees, hidden=scale.hidden, each=each)
        run = replace(run, noise=noise)
        if watcher.log is not None and (watcher.log.seen or watcher.log.steps or watcher.log.hidden):
            run = replace(run, measured=residual_sums(watcher.log))
        if isinstance(watcher, ProjectionObserver):
            run = replace(run, signal=canary_sums(watcher, job, sizes, coins))
    return write_run(run)


def reported_evidence(logs: RunLogs, second: RunLogs | None = None) -> RunEvidence:
    sampling, norms = logs.sampling, logs.norms
    counts = {"batches": len(sampling.sizes), "noise": len(logs.noise.squares), "norms": len(norms.largest)}
    run = RunEvidence(told=ReportedSteps(**{log: count for log, count in counts.items() if count}))
    if sampling.sizes:
        batches = tuple(_batches(logs.schedule, sampling))
        records = len(sampling.inclusions)
        run = replace(run, sampling_log=SamplingSums(records=records, repeats=sampling.repeats, batches=batches))
    scaled = _scaled(logs)
    if scaled is not None:
        squares = np.asarray(logs.noise.squares) / np.array([phase.deviation for phase in logs.schedule]) ** 2
        other = _scaled(second) if second is not None else None
        run = replace(run, noise_log=NoiseSums.of(squares, scaled, logs.noise.count, other))
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


def _batches(schedule: Schedule, log: SamplingLog) -> Iterator[BatchSums]:
    start = 0
    for index, phase in enumerate(schedule.phases):
        sizes = np.asarray(log.sizes[start : start + phase.steps], dtype=np.int64)
        start += phase.steps
        sampler, epochs = phase.sampler, log.epochs.get(index)
        overlaps = zip(log.lags, log.overlaps[index].tolist(), strict=True)
        # Whether sizes are random, with a distribution that is tested.
        random = independent(sampler) and 0.0 < sampler.inclusion < 1.0
        random = random or (isinstance(sampler, TruncatedPoisson) and sampler.rate < 1.0)
        allocated = None
        if isinstance(sampler, RandomAllocation):
            whole = len(sizes) // sampler.epoch_steps
            mean = sampler.records * sampler.batches_per_epoch / sampler.epoch_steps
            spread = float(np.square(sizes[: whole * sampler.epoch_steps] - mean).sum())
            allocated = EpochSums(whole=whole, astray=log.astray[index] if whole else 0, spread=spread)
        yield BatchSums(
            steps=len(sizes),
            total=int(sizes.sum()),
            squares=int((sizes**2).sum()),
            spread=log.spreads[index] if index < len(log.spreads) else None,
            above=log.above[index] if index < len(log.above) == len(log.spreads) else None,
            sizes=step_tests.summary(sizes) if len(sizes) and random else None,
            overlaps=tuple(Common(lag, *counts) for lag, counts in overlaps if counts[1]),
            together=None if epochs is None else epochs.sums(),
            early=None if epochs is None else epochs.early,
            epochs=allocated,
        )


def _scaled(logs: RunLogs) -> Array | None:
    """Stored noise (steps, width) in units of its declared standard deviation; None if it is not tested."""
    deviations = np.array([phase.deviation for phase in logs.schedule])
    gaussian = all(phase.noise == "gaussian" for phase in logs.schedule.phases)
    if len(logs.noise.squares) != len(deviations) or not gaussian or not np.all(deviations > 0):
        return None
    rows: Array = np.stack(logs.noise.rows).astype(np.float64) / deviations[:, None]
    return replace_non_finite(rows)
