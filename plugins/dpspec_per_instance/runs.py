"""One trial: train on the data as declared and watch its records; and, where asked, train on others' and attack.

All runs start from one model, which is public, and draw batches and noise of their own. Runs on the declared data serve
all records in one direction; the other direction takes runs on data of their own for each record. Trials that share out
the records of a run repeat the same one.
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
from dpspec_per_instance.options import LOGGED, LOOKS, Audited, attack_of, audited_of, observe_every, observed_steps
from dpspec_per_instance.shards import Shards, shards_of

if TYPE_CHECKING:
    from torch import Tensor

    from dpspec.training.conformance import RunLogs
    from dpspec.training.residuals import Residuals
    from dpspec_per_instance.observe import NormObserver

Array: TypeAlias = np.ndarray[Any, Any]

#: On a CPU, models with more parameters than this train faster one by one.
LARGE = 20_000


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
    def shards(self) -> Shards:
        """How these are shared out among the trials of a run."""
        return shards_of(self.inputs.get("split", {}), len(self.audited.points))

    @cached_property
    def points(self) -> tuple[Array, Array]:
        """The audited records: features (m, ...), labels (m,)."""
        data, at = self.context.data, np.array(self.audited.points, dtype=np.int64)
        x, y = (data.train_x, data.train_y) if self.audited.population == "train" else (data.test_x, data.test_y)
        return (x, y) if self.audited.complete else (x[at], y[at])

    def tensors(self, part: slice) -> tuple[Tensor, Tensor]:
        """Some of the same on the device, where all runs of the call share them."""
        from dpspec.training.native import tensors

        (x, y), at = self.points, (part.start, part.stop)
        if at not in self._held:
            self._held[at] = tensors(x[part], y[part], self.context.device)
        return self._held[at]

    @cached_property
    def _held(self) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
        return {}

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

    def watched(self, job: dps.TrainingJob, part: slice) -> tuple[dps.TrainingJob, NormObserver]:
        """The job with an observer of some of the audited records."""
        from dpspec_per_instance.observe import NormObserver

        watcher = NormObserver(job, *self.tensors(part), self.steps)
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
    """A run on the declared data, ready to be trained.

    index: the trial's. part: the records that are looked at. first: whether what is done once for a run is done here.
    """

    index: int
    number: int
    part: slice
    first: bool
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
    targets = attack.targets(bench, asked) if asked is not None and any(run.first for run in runs) else ()
    for run in runs:
        labels = bench.points[1][run.part]
        arrays: dict[str, Array] = {"ratios": run.watcher.ratios, "right": run.watcher.right, "labels": labels}
        if bench.audited.own:
            arrays["own"] = _own(bench, run)
        if run.index == 0 and inputs["audit"].get("mean_rule") is not None:
            arrays |= _mean_rule(bench)
        evidence = _evidence(bench, run)
        if asked is not None and run.first:
            evidence["outcomes"] = attack.outcomes(bench, asked, targets, run.number)
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

    number, shard = bench.shards.place(index)
    part = bench.shards.part(shard)
    job, watcher = bench.watched(bench.job(number, "training"), part)
    run = _Run(index=index, number=number, part=part, first=shard == 0, job=job, watcher=watcher)
    if run.first and number < LOGGED:
        run.logs = RunLogs(job)
        run.outside = Residuals(job, 0, looks=LOOKS)
        run.outside.keep_log(job)
        run.job = replace(job, observers=(*job.observers, run.outside, *run.logs.observers))
    run.job = bench.told(run.job, "training")
    return run


def _own(bench: Bench, run: _Run) -> Array:
    """The norms of each of the run's records along a run on its own data: (observed, m) float32."""
    from dpspec.training.native import tensors
    from dpspec_per_instance.observe import NormObserver

    watchers, jobs = [], []
    for place in range(run.part.start, run.part.stop):
        present, absent = bench.neighbour(place)
        # The first argument of the other direction: without a training record, with a test record.
        rows = absent if bench.audited.population == "train" else present
        job = bench.job(run.number, "own", str(bench.audited.points[place]), rows=rows)
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


def _mean_rule(bench: Bench) -> dict[str, Array]:
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
    evidence: dict[str, dps.Json] = {"sizes": [context.facts.records, context.facts.test_records], "internal": {}}
    if run.first:
        evidence["internal"] = {"accuracy": right_answers(run.job.model, context.data, context.device)}
    if run.logs is not None:
        none = np.zeros(0, dtype=np.int64)
        evidence = joined(evidence, evidence_of(run.logs, None, run.outside, run.job, none, none))
    return evidence
