"""One trial: train on the data as declared and watch every record; and, where asked, train on others' and attack.

All runs start from one model, which is public, and draw batches and noise of their own. Runs on the declared data serve
all records in one direction; the other direction takes runs on data of their own for each record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_per_instance import attack
from dpspec_per_instance.options import Audited, attack_of, audited_of, observe_every, observed_steps

if TYPE_CHECKING:
    from torch import Tensor

    from dpspec.training.conformance import RunLogs
    from dpspec.training.residuals import Residuals
    from dpspec_per_instance.observe import NormObserver

Array: TypeAlias = np.ndarray[Any, Any]

#: So many steps of the first two runs are measured from outside.
LOOKS = 16

#: On a CPU, models with more parameters than this train faster one by one.
LARGE = 20_000

#: So many runs tell how the pipeline ran.
LOGGED = 2


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all runs of one call share."""

    inputs: dps.FrozenMap
    context: dps.Context

    @cached_property
    def audited(self) -> Audited:
        """Which records are audited."""
        facts = self.context.facts
        return audited_of(self.inputs["threat_model"], facts.records, facts.test_records)

    @cached_property
    def points(self) -> tuple[Array, Array]:
        """The audited records: features (m, ...), labels (m,)."""
        data, at = self.context.data, np.array(self.audited.points, dtype=np.int64)
        x, y = (data.train_x, data.train_y) if self.audited.population == "train" else (data.test_x, data.test_y)
        return (x, y) if self.audited.complete else (x[at], y[at])

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The same on the device."""
        from dpspec.training.native import tensors

        return tensors(*self.points, self.context.device)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The observed steps."""
        total = sum(int(phase["steps"]) for phase in dps.phases_of(self.inputs["mechanism"]))
        return observed_steps(total, observe_every(self.inputs["mechanism"]))

    def job(self, index: int, *purpose: str, rows: tuple[Array, Array] | None = None) -> dps.TrainingJob:
        """A run on the declared data, or on other ``rows``; the expected batch size stays the declared one."""
        phases, data = dps.phases_of(self.inputs["mechanism"]), self.context.data
        sampling = phases[0]["sampling"]
        rate = float(sampling["rate"]) if sampling["scheme"] == "poisson" else 1.0
        x, y = (data.train_x, data.train_y) if rows is None else rows
        return dps.TrainingJob(
            x=x,
            y=y,
            model=self.context.model.build(self.context.seed(0, "model")),
            phases=phases,
            options=self.inputs["training"],
            expected_batch_size=max(1.0, rate * self.context.facts.records),
            device=self.context.device,
            seed=self.context.seed(index, *purpose),
            cancelled=self.context.cancelled,
        )

    def told(self, job: dps.TrainingJob, what: str) -> dps.TrainingJob:
        """The job, telling how far it is."""

        def progress(done: int, total: int) -> None:
            self.context.progress(done, total, what, unit="steps", records=job.expected_batch_size)

        return replace(job, progress=progress)

    def watched(self, job: dps.TrainingJob) -> tuple[dps.TrainingJob, NormObserver]:
        """The job with an observer of all audited records."""
        from dpspec_per_instance.observe import NormObserver

        watcher = NormObserver(job, *self.tensors, self.steps)
        return replace(job, observers=(watcher, *job.observers)), watcher

    def neighbour(self, place: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The data with and without the audited record at ``place``."""
        data, point = self.context.data, self.audited.points[place]
        x, y = data.train_x, data.train_y
        if self.audited.population == "train":
            kept = np.arange(len(x)) != point
            return (x, y), (x[kept], y[kept])
        own = self.points[0][place : place + 1], self.points[1][place : place + 1]
        return (np.concatenate([x, own[0]]), np.concatenate([y, own[1]])), (x, y)


@dataclass(kw_only=True)
class _Run:
    """A run on the declared data, ready to be trained."""

    index: int
    job: dps.TrainingJob
    watcher: NormObserver
    logs: RunLogs | None = None
    outside: Residuals | None = None
    arrays: dict[str, Array] = field(default_factory=dict)


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Train the runs of a chunk together and yield what was measured of each."""
    bench = Bench(inputs=inputs, context=context)
    runs = [_prepared(bench, index) for index in indices]
    train(context, [run.job for run in runs], indices)
    asked = attack_of(inputs["audit"])
    targets = attack.targets(bench, asked) if asked is not None else ()
    for run in runs:
        arrays: dict[str, Array] = {"ratios": run.watcher.ratios, "right": run.watcher.right, "labels": bench.points[1]}
        if bench.audited.own:
            arrays["own"] = _own(bench, run.index)
        if run.index == 0 and inputs["audit"].get("mean_rule") is not None:
            arrays |= _mean_rule(bench, run)
        evidence = _evidence(bench, run)
        if asked is not None:
            evidence["outcomes"] = attack.outcomes(bench, asked, targets, run.index)
            evidence["internal"]["targets"] = [[name, bench.audited.points[place]] for name, place in targets]
        yield dps.Trial(index=run.index, evidence=dps.FrozenMap(evidence), arrays=arrays)


def train(context: dps.Context, jobs: Sequence[dps.TrainingJob], indices: Sequence[int] = ()) -> None:
    """Train jobs: together where that helps, or else one by one, so that they can be resumed."""
    from dpspec.training.batched import train_many

    alone = context.device == "cpu" and (context.facts.parameters or 0) > LARGE
    if len(jobs) > 1 and not alone:
        train_many(context.trainer, jobs)
        return
    places = (context.resumable(index) for index in indices) if indices else repeat(None)
    for job, place in zip(jobs, places, strict=False):
        context.trainer.train(replace(job, resumable=place))


def _prepared(bench: Bench, index: int) -> _Run:
    from dpspec.training.conformance import RunLogs
    from dpspec.training.residuals import Residuals

    job, watcher = bench.watched(bench.job(index, "training"))
    run = _Run(index=index, job=job, watcher=watcher)
    if index < LOGGED:
        run.logs = RunLogs(job)
        run.outside = Residuals(job, 0, looks=LOOKS)
        run.outside.keep_log(job)
        run.job = replace(job, observers=(*job.observers, run.outside, *run.logs.observers))
    run.job = bench.told(run.job, "training")
    return run


def _own(bench: Bench, index: int) -> Array:
    """The norms of each audited record along a run on its own data: (observed, m) float32."""
    from dpspec.training.native import tensors
    from dpspec_per_instance.observe import NormObserver

    watchers, jobs = [], []
    for place, point in enumerate(bench.audited.points):
        present, absent = bench.neighbour(place)
        # The first argument of the other direction: without a training record, with a test record.
        rows = absent if bench.audited.population == "train" else present
        job = bench.job(index, "own", str(point), rows=rows)
        x, y = (part[place : place + 1] for part in bench.points)
        watchers.append(NormObserver(job, *tensors(x, y, job.device), bench.steps))
        jobs.append(replace(job, observers=(watchers[-1],)))
    jobs[0] = bench.told(jobs[0], "training on each record's own data")
    for start in range(0, len(jobs), _together(bench)):
        train(bench.context, jobs[start : start + _together(bench)])
    return np.concatenate([watcher.ratios for watcher in watchers], axis=1)


def _together(bench: Bench) -> int:
    """How many runs on different data to hold at once."""
    facts = bench.context.facts
    return max(1, 2**29 // (8 * (facts.records * max(1, facts.features) + 8 * (facts.parameters or 0))))


def _mean_rule(bench: Bench, run: _Run) -> dict[str, Array]:
    """Estimates for the mean rule at the first, the middle and the last observed model of a run like the first.

    mean_rule: (stages, batches, orders, kinds, points), means by removal, by addition, and sums; mean_rule_sizes, the
    same, effective tuples; what records change of means, see ``stages``.
    """
    from dpspec_per_instance.stages import estimate

    return estimate(bench, bench.inputs["audit"]["mean_rule"])


def _evidence(bench: Bench, run: _Run) -> dict[str, dps.Json]:
    from dpspec.stats.conformance import joined
    from dpspec.training.accuracy import right_answers
    from dpspec.training.conformance import evidence_of

    context = bench.context
    evidence: dict[str, dps.Json] = {
        "sizes": [context.facts.records, context.facts.test_records],
        "internal": {"accuracy": right_answers(run.job.model, context.data, context.device)},
    }
    if run.logs is not None:
        none = np.zeros(0, dtype=np.int64)
        evidence = joined(evidence, evidence_of(run.logs, None, run.outside, run.job, none, none))
    return evidence
