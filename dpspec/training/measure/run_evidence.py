"""Convert the observers' logs of a run to the evidence that ``stats.conformance.table`` tests.

>>> from dpspec.stats.conformance.table import counted
>>> from dpspec.training.loop.native import NativeTrainer
>>> phase = FrozenMap({"steps": 5, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "full"}})
>>> job = TrainingJob(
...     x=np.ones((10, 4), dtype=np.float32),
...     y=np.zeros(10, dtype=np.int64),
...     model=torch.nn.Linear(4, 2),
...     phases=(phase,),
...     options=FrozenMap({"learning_rate": 0.5, "reduction": "mean"}),
...     expected_batch_size=10.0,
...     device="cpu",
...     seed=7,
... )
>>> watched = WatchedRun(job)
>>> NativeTrainer().train(replace(job, observers=watched.observers))
>>> [(check.test, check.measured) for _, check in counted([phase], [FrozenMap(watched.evidence())])]
[('released models, exact', 5.0), ('steps in the logs, exact', 5.0)]
"""

import copy
import operator
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.frozen import FrozenMap, Json
from dpspec.contract.phase import Phase
from dpspec.contract.providers import Cancelled, Observer, Trainer, TrainingJob
from dpspec.contract.sampling import poisson_sampling
from dpspec.stats.conformance.canary_contributions import GroupSums, PlantedSums, StepTotals
from dpspec.stats.conformance.evidence import (
    NoiseSums,
    NormSums,
    ReplayedStep,
    ReportedSteps,
    RunEvidence,
    number,
    write_run,
)
from dpspec.training.device import Array
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.memory import ran_out
from dpspec.training.gradients.persample import clipper
from dpspec.training.loop.native import Schedule
from dpspec.training.measure.logs import CountLog, NoiseLog, NormLog, SamplingLog, StateLog
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.scores import ProjectionObserver
from dpspec.training.measure.update_statistics import replace_non_finite, residual_sums

_EMPTY: Array = np.zeros(0, dtype=np.int64)


class RunLogs:
    """Logs of one run, for the schedule that its job declares."""

    def __init__(self, job: TrainingJob) -> None:
        records = len(job.x) + (job.canaries.count if job.canaries is not None else 0)
        self.schedule = Schedule.of(job.phases, records)
        self.sampling = SamplingLog(job.phases, self.schedule.phases[0].sampler.records)
        self.noise = NoiseLog(self.schedule.total)
        self.norms = NormLog()
        self.states = StateLog()
        self.counts = CountLog(self.schedule, job.expected_batch_size)

    @property
    def observers(self) -> tuple[Observer, ...]:
        return (self.sampling, self.noise, self.norms, self.states, self.counts)

    @property
    def deviations(self) -> Array:
        """Declared standard deviation of the noise at each step, (steps,), at the reported clip norms."""
        return np.array([phase.noise_multiplier for phase in self.schedule]) * self.counts.clip_norms


class WatchedRun:
    """Observers of one run and their conformance evidence. Unless ``logged``, released models are counted only."""

    def __init__(self, job: TrainingJob, watcher: Residuals | None = None, *, logged: bool = True) -> None:
        self._job, self._watcher = job, watcher
        self.logs = RunLogs(job) if logged else None
        self._states = StateLog() if self.logs is None else self.logs.states
        logs = (self._states,) if self.logs is None else self.logs.observers
        self.observers: tuple[Observer, ...] = logs if watcher is None else (watcher, *logs)
        if watcher is not None and logged:
            watcher.keep_log(job)

    def evidence(self, second: RunLogs | None = None, sizes: Array = _EMPTY, coins: Array = _EMPTY) -> dict[str, Json]:
        """All evidence of the run, compared with the noise of a ``second`` run with independent seeds.

        ``sizes``, ``coins`` (m,): sizes and inclusion bits of the canary groups. A step with one record minus its
        noise, which the seed determines, is that record's gradient, so measurements of gradients are ``internal``.
        """
        if self.logs is None:
            return self._states.evidence(self._job)
        run, states, watcher = reported_evidence(self.logs, second), self._states.states(self._job), self._watcher
        if states is not None:
            run = replace(run, steps=self._states.steps, states=states)
        if watcher is not None:
            run = replace(run, noise=watcher.noise_scale())
            if watcher.log is not None and (watcher.log.seen or watcher.log.rows or watcher.log.hidden):
                run = replace(run, measured=residual_sums(watcher.log))
            if isinstance(watcher, ProjectionObserver):
                run = replace(run, signal=canary_sums(watcher, self._job, sizes, coins))
        return write_run(run)


def reported_evidence(logs: RunLogs, second: RunLogs | None = None) -> RunEvidence:
    sampling, norms = logs.sampling, logs.norms
    counts = {"batches": len(sampling.sizes), "noise": len(logs.noise.squares), "norms": len(norms.largest)}
    reported = ReportedSteps(**{log: count for log, count in counts.items() if count})
    run = RunEvidence(told=reported, sampling_log=sampling.evidence(), count_log=logs.counts.evidence())
    if (scaled := _scaled(logs)) is not None:
        squares = np.asarray(logs.noise.squares) / logs.deviations**2
        second_scaled = _scaled(second) if second is not None else None
        run = replace(run, noise_log=NoiseSums.of(squares, scaled, logs.noise.count, second_scaled))
    if norms.largest:
        clips = logs.counts.clip_norms
        count = min(len(clips), len(norms.largest))
        largest = float(np.max(np.asarray(norms.largest[:count]) / clips[:count]))
        norm_sums = NormSums(largest=number(largest if largest >= 0.0 else np.nan))  # norms are not negative
        if run.count_log is not None:
            norm_sums = replace(norm_sums, miscounted=logs.counts.miscounted)
        if drawn := sampling.sizes:
            same = len(drawn) == len(norms.counts)
            astray = sum(map(operator.ne, drawn, norms.counts)) if same else None
            norm_sums = replace(norm_sums, missing=sum(drawn) - sum(norms.counts), astray=astray)
        run = replace(run, norm_log=norm_sums)
    return run


def _scaled(logs: RunLogs) -> Array | None:
    """Stored noise (steps, width) in units of its declared standard deviation; None if it is not tested."""
    deviations = logs.deviations
    gaussian = all(phase.noise == "gaussian" for phase in logs.schedule.phases)
    if len(logs.noise.squares) != len(deviations) or not gaussian or not np.all(deviations > 0):
        return None
    rows: Array = np.stack(logs.noise.rows).astype(np.float64) / deviations[:, None]
    return replace_non_finite(rows)


def canary_sums(watcher: ProjectionObserver, job: TrainingJob, sizes: Array, coins: Array) -> PlantedSums | None:
    """Moments of projections on the canaries' directions, for groups of ``sizes`` with inclusion bits ``coins`` (m,).

    ``draws`` is the mean number of measured batches that include a canary, times its gradient's component along its
    direction. ``outside`` assumes that real records deviate equally in all directions.
    """
    schedule = Schedule.of(job.phases, len(job.x) + (0 if job.canaries is None else job.canaries.count))
    flat = all(clipper(phase.clip).is_flat for phase in schedule.phases)
    if not flat or job.canaries is None or job.canaries.count == 0:
        return None
    row = job.canaries.gradients(torch.tensor([0]))[0]
    row = torch.ldexp(row, -torch.frexp(row.abs().max()).exponent)  # squares of a small clip norm would underflow
    along = float(watcher.directions.project(row).max() / row.norm())
    measured = watcher.looked & watcher.resolvable
    sums = watcher.projections[measured].double().sum(0).numpy()
    sums_of_groups: list[GroupSums] = []
    for size, coin, which in _groups(sizes, coins):
        group = replace_non_finite(sums[which])
        sums_of_groups.append(GroupSums(size, coin, len(group), float(group.sum()), float((group**2).sum())))
    looked = [phase for phase, was_measured in zip(schedule, measured.tolist(), strict=True) if was_measured]
    ends = np.cumsum([phase.steps for phase in schedule.phases])[:-1]
    measured_phases = zip(schedule.phases, np.split(measured.numpy(), ends), strict=True)
    means, variances = zip(*(phase.sampler.inclusion_moments(part) for phase, part in measured_phases), strict=True)
    noise = sum(phase.noise_multiplier**2 for phase in looked)
    return PlantedSums(
        draws=along * float(np.concatenate(means).sum()),
        moments=tuple(sums_of_groups),
        outside=number(noise + float(watcher.spread[measured].sum()) / watcher.directions.parameters),
        inclusion=along**2 * float(np.concatenate(variances).sum()),
        rounding=number(float(watcher.rounding[measured].sum())),
        hidden=int((watcher.looked & ~watcher.resolvable).sum()),
        by_step=_step_totals(watcher, measured, sizes, coins, along),
    )


def _groups(sizes: Array, coins: Array) -> Iterator[tuple[int, int, Array]]:
    """The positions of the canary groups of each size with each inclusion bit."""
    for size in np.unique(sizes).tolist():
        for coin in (0, 1):
            yield size, coin, np.flatnonzero((sizes == size) & (coins == coin))


def _step_totals(
    watcher: ProjectionObserver, measured: Tensor, sizes: Array, coins: Array, along: float
) -> StepTotals | None:
    """Covariance over the ``measured`` (steps,) steps, if real records are drawn at random after the first step."""
    step_indices = np.flatnonzero(measured.numpy())
    if not np.any(watcher.spread.numpy()[step_indices[step_indices > 0]] != 0.0):
        return None
    rates = np.array([phase.sampler.inclusion for phase in watcher.schedule])[step_indices]
    totals = []
    for size, coin, which in _groups(sizes, coins):
        rows = (watcher.projections[step].double().numpy()[which] for step in step_indices)
        step_sums = np.array([replace_non_finite(row).sum() for row in rows])
        totals.append(step_sums - coin * len(which) * size * along * rates)
    centred = np.stack(totals) - np.mean(totals, axis=1, keepdims=True)
    products = centred @ centred.T
    return StepTotals(
        steps=len(step_indices),
        products=tuple(tuple(number(value) for value in row[: i + 1]) for i, row in enumerate(products.tolist())),
    )


#: Maximum number of records in each of the four datasets.
_RECORDS = 8

#: Relative rounding error of float32.
_HALF_ULP = 2.0**-24


def replayed_step(trainer: Trainer, job: TrainingJob) -> ReplayedStep | None:
    """Test by replaying one step that updates of disjoint datasets add up, as they do for public constants.

    At rate 1 and without noise a step moves the model by

        u(A) = c + learning rate / divisor * (sum over A of clipped gradients),

    with c independent of the records, for example weight decay. If learning rate, divisor, clip norm and preprocessing
    of a record do not depend on other records, then u(A + B) - u(A) - u(B) = -c up to rounding, for all A and B. The
    test compares two pairs of datasets on the CPU. Training on A is repeated with another seed and reversed records,
    because the backend's own randomness makes the result inconclusive.

    Returns None if the trainer rejects the step or there are too few records. Errors of missing memory are raised.
    """
    records = np.unique(np.linspace(0, len(job.x) - 1, 4 * _RECORDS).round().astype(int))
    if len(records) < 4:
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
    sets = [records[k::4] for k in range(4)]
    try:
        alone = [_update(trainer, step, rows, before) for rows in sets]
        pairs = [np.sort(np.concatenate(two)) for two in (sets[:2], sets[2:])]
        both = [_update(trainer, step, rows, before) for rows in pairs]
        again = _update(trainer, replace(step, seed=step.seed + 1), sets[0][::-1].copy(), before)
    except Cancelled:
        raise
    except Exception as error:  # backends raise arbitrary errors for unsupported jobs
        if ran_out(error):  # a trial that is stored without this evidence would never be tested
            raise
        return None
    length = float(sum(update.norm() for update in alone))
    defect = (both[0] - alone[0] - alone[1]) - (both[1] - alone[2] - alone[3])
    norms = [float(defect.norm()), float((again - alone[0]).norm())]
    # Updates are differences of rounded parameters, bounded by the start plus the distance.
    reached = before.abs() + torch.stack([update.abs() for update in (*alone, *both)]).amax(0)
    rounding = 6.0 * _HALF_ULP * float(reached.norm())
    if not np.isfinite([length, rounding, *norms]).all() or length == 0.0:
        return None
    distance, random = (norm / length for norm in norms)
    return ReplayedStep(records=len(records), apart=distance, random=random, rounding=rounding / length)


def _update(trainer: Trainer, job: TrainingJob, rows: Array, before: Tensor) -> Tensor:
    alone = replace(job, x=job.x[rows], y=job.y[rows], model=copy.deepcopy(job.model))
    trainer.train(alone)
    return flat_model.flatten(alone.model).detach().cpu().double() - before
