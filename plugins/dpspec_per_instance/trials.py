"""One trial: train on the declared data and watch its records; train on neighbouring data and attack if needed.

All runs start from one model, which is public, and draw batches and noise of their own. Runs on the declared data serve
all records in one direction; the other direction takes runs on data of their own for each record. Trials that share out
the records of a run repeat the same one. An attack makes many runs in which one record is there by a fair coin, and
nothing else differs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

import dpspec.contract as dps
from dpspec import kit
from dpspec.stats.conformance.run_checks import joined
from dpspec.training.loop.learning_rates import updates_invertible
from dpspec.training.loop.native import tensors, train_many
from dpspec.training.measure.accuracy import right_answers
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.run_evidence import WatchedRun
from dpspec_per_instance.observers import NormObserver, RecordAttack, Target
from dpspec_per_instance.options import (
    EDGES,
    LOGGED_RUNS,
    MEASURED_STEPS,
    AttackOptions,
    AuditBlock,
    Audited,
    Composition,
    Population,
    Shards,
)

Array: TypeAlias = np.ndarray[Any, Any]
Rows: TypeAlias = tuple[Array, Array]

#: Models with more parameters than this train one by one: on a CPU that is faster, and on a GPU, which one run of them
#: keeps busy, it is no slower; and what is trained alone can be resumed.
LARGE = {"cpu": 20_000, "cuda": 1_000_000}

#: At most so many attacked runs of one record are trained together.
_TOGETHER = 64


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What all runs of one call share."""

    inputs: dps.FrozenMap
    context: dps.Context

    @cached_property
    def audited(self) -> Audited:
        """Which records are audited."""
        facts = self.context.facts
        return Population.of(self.inputs["threat_model"]).audited(facts.records, facts.test_records)

    @cached_property
    def shards(self) -> Shards:
        """How these are shared out among the trials of a run."""
        return AuditBlock.of(self.inputs.get("split", {})).shards(len(self.audited.points))

    @cached_property
    def points(self) -> Rows:
        """The audited records: features (m, ...), labels (m,)."""
        data, places = self.context.data, np.array(self.audited.points, dtype=np.int64)
        x, y = (data.train_x, data.train_y) if self.audited.population == "train" else (data.test_x, data.test_y)
        return (x, y) if self.audited.complete else (x[places], y[places])

    def point_tensors(self, part: slice) -> tuple[Tensor, Tensor]:
        """Some of the same on the device, where all runs of the call share them."""
        (x, y), key = self.points, (part.start, part.stop)
        if key not in self._point_tensors:
            self._point_tensors[key] = tensors(x[part], y[part], self.context.device)
        return self._point_tensors[key]

    @cached_property
    def _point_tensors(self) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
        return {}

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The observed steps."""
        total = sum(phase.steps for phase in dps.Phase.all_of(self.inputs["mechanism"]))
        return Composition.of(self.inputs["mechanism"]).observed(total)

    def job(self, index: int, *purpose: str, rows: Rows | None = None, progress: str = "") -> dps.TrainingJob:
        """A run on the declared data, or on other ``rows``; the expected batch size stays the declared one.

        progress: the name under which its steps are reported; not reported if empty.
        """
        job = kit.training_job(
            self.inputs,
            self.context,
            index,
            purpose[0],
            rows=rows,
            model_seed=self.context.seed(0, "model"),
            progress=progress,
            resumable=False,
        )
        return replace(job, seed=self.context.seed(index, *purpose))

    def with_norms(self, job: dps.TrainingJob, part: slice) -> tuple[dps.TrainingJob, NormObserver]:
        """The job with an observer of some of the audited records."""
        watcher = NormObserver(job, *self.point_tensors(part), self.steps)
        return replace(job, observers=(watcher, *job.observers)), watcher

    def neighbours(self, place: int) -> tuple[Rows, Rows]:
        """The data with and without the audited record at ``place``."""
        data, point = self.context.data, self.audited.points[place]
        x, y = data.train_x, data.train_y
        if self.audited.population == "train":
            others = np.arange(len(x)) != point
            return (x, y), (x[others], y[others])
        own = self.points[0][place : place + 1], self.points[1][place : place + 1]
        return (np.concatenate([x, own[0]]), np.concatenate([y, own[1]])), (x, y)

    def train(self, jobs: Sequence[dps.TrainingJob], indices: Sequence[int] = ()) -> None:
        """Train jobs: together where that helps, or else one by one, so that they can be resumed."""
        kind = self.context.device.partition(":")[0]
        alone = (self.context.facts.parameters or 0) > LARGE.get(kind, LARGE["cuda"])
        if len(jobs) > 1 and not alone:
            train_many(self.context.trainer, jobs)
            return
        places = (self.context.resumable(index) for index in indices) if indices else repeat(None)
        for job, place in zip(jobs, places, strict=False):
            self.context.trainer.train(replace(job, resumable=place))


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
    watched: WatchedRun | None = None


def run_trials(setup: RunSetup, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Train the runs of a chunk together and yield what was measured of each."""
    runs = [_prepare_run(setup, index) for index in indices]
    setup.train([run.job for run in runs], indices)
    attack = AuditBlock.of(setup.inputs["audit"]).attack
    targets = choose_targets(setup, attack) if attack is not None and any(run.first for run in runs) else ()
    for run in runs:
        labels = setup.points[1][run.part]
        arrays: dict[str, Array] = {"ratios": run.watcher.ratios, "right": run.watcher.right, "labels": labels}
        if setup.audited.needs_own_runs:
            arrays["own"] = _train_own_runs(setup, run)
        evidence = _evidence(setup, run)
        if attack is not None and run.first:
            evidence["outcomes"] = attack_records(setup, attack, targets, run.number)
            evidence["internal"]["targets"] = [[name, setup.audited.points[place]] for name, place in targets]
        yield dps.Trial(index=run.index, evidence=dps.FrozenMap(evidence), arrays=arrays)


def _prepare_run(setup: RunSetup, index: int) -> _Run:
    number, shard = setup.shards.run_and_shard(index)
    part = setup.shards.places(shard)
    job, watcher = setup.with_norms(setup.job(number, "training", progress="training"), part)
    run = _Run(index=index, number=number, part=part, first=shard == 0, job=job, watcher=watcher)
    if run.first and number < LOGGED_RUNS:
        measured = updates_invertible(setup.inputs["training"])
        run.watched = WatchedRun(job, Residuals(job, 0, looks=MEASURED_STEPS) if measured else None)
        run.job = replace(job, observers=(*job.observers, *run.watched.observers))
    return run


def _train_own_runs(setup: RunSetup, run: _Run) -> Array:
    """The norms of each of the run's records along a run on its own data: (observed, m) float32."""
    watchers: list[NormObserver] = []
    jobs: list[dps.TrainingJob] = []
    for place in range(run.part.start, run.part.stop):
        present, absent = setup.neighbours(place)
        # The first argument of the other direction: without a training record, with a test record.
        rows = absent if setup.audited.population == "train" else present
        what = "training on each record's own data" if not jobs else ""
        job = setup.job(run.number, "own", str(setup.audited.points[place]), rows=rows, progress=what)
        x, y = (part[place : place + 1] for part in setup.points)
        watchers.append(NormObserver(job, *tensors(x, y, job.device), setup.steps))
        jobs.append(replace(job, observers=(watchers[-1],)))
    together = kit.runs_together(setup.context.facts, most=len(jobs))
    for start in range(0, len(jobs), together):
        setup.train(jobs[start : start + together])
    return np.concatenate([watcher.ratios for watcher in watchers], axis=1)


def _evidence(setup: RunSetup, run: _Run) -> dict[str, dps.Json]:
    context = setup.context
    evidence: dict[str, dps.Json] = {"sizes": [context.facts.records, context.facts.test_records], "internal": {}}
    if run.first:
        evidence["internal"] = {"accuracy": right_answers(run.job.model, context.data, context.device)}
    return evidence if run.watched is None else joined(evidence, run.watched.evidence())


def choose_targets(setup: RunSetup, attack: AttackOptions) -> tuple[tuple[str, int], ...]:
    """Which records are attacked: a name that says why, and the place among the audited ones.

    The most and the least exposed are those of a pilot run that serves nothing else: no coin is seen when they are
    chosen.
    """
    targets = [(f"record {record}", setup.audited.points.index(record)) for record in attack.records]
    if attack.most or attack.least:
        job, watcher = setup.with_norms(
            setup.job(0, "pilot", progress="pilot run"), slice(0, len(setup.audited.points))
        )
        setup.train([job])
        ranked = np.argsort(np.square(watcher.ratios.astype(np.float64)).mean(axis=0), kind="stable")
        targets += [(f"most exposed {i + 1}", int(place)) for i, place in enumerate(ranked[::-1][: attack.most])]
        targets += [(f"least exposed {i + 1}", int(place)) for i, place in enumerate(ranked[: attack.least])]
    return tuple(targets)


def attack_records(
    setup: RunSetup, attack: AttackOptions, targets: Sequence[tuple[str, int]], run_number: int
) -> list[dps.Json]:
    """One trial's attacks: [name, [[coin, how many edges the score reaches], ...]] for every target.

    The scores themselves are not stored: with the published seed they would reveal information about the rows.
    """
    outcomes: list[dps.Json] = []
    for number, (name, place) in enumerate(targets):
        present, absent = setup.neighbours(place)
        others = tensors(*absent, setup.context.device)
        x, y = setup.points
        record = tensors(x[place : place + 1], y[place : place + 1], setup.context.device)
        label = f"target {number}"
        coins = np.random.default_rng(setup.context.seed(run_number, label, "coins")).integers(0, 2, size=attack.runs)
        what = f"attacking the {name} record" if "exposed" in name else f"attacking {name}"
        scores: list[float] = []
        for start in range(0, attack.runs, _TOGETHER):
            jobs, watchers = [], []
            target = Target(setup.job(run_number, label).model, others, record)
            for run in range(start, min(attack.runs, start + _TOGETHER)):
                rows = present if coins[run] else absent
                job = setup.job(run_number, label, str(run), rows=rows, progress=what if run == start else "")
                watchers.append(RecordAttack(job, target, attack.looks))
                jobs.append(replace(job, observers=(watchers[-1],)))
            setup.train(jobs)
            scores += [watcher.score for watcher in watchers]
        reached = [[int(coin), bisect_right(EDGES, score)] for coin, score in zip(coins, scores, strict=True)]
        outcomes.append([name, reached])
    return outcomes
