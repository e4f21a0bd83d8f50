"""One trial: train on the declared data, measure its records, and attack single records if requested.

All runs start from the same public model. In one direction all records share the runs on the declared data; the other
direction needs separate runs on modified data for each record.
"""

import copy
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.providers import Observer, TrainingJob
from dpspec.stats.conformance.evidence import joined
from dpspec.training.device import Number, SyncedAttribute, TransferQueue, float_on_cpu
from dpspec.training.gradients import memory
from dpspec.training.gradients.persample import FlatModel, clipper
from dpspec.training.gradients.stacked_models import StackedModel, tiles
from dpspec.training.loop.native import Schedule, ScheduledPhase, tensors, train_many
from dpspec.training.loop.optimizers import inversion_of
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.run_evidence import WatchedRun
from dpspec.training.measure.scores import right_answers
from dpspec.training.providers import updates_invertible
from dpspec_per_instance import mean_rule
from dpspec_per_instance.bounds import Array
from dpspec_per_instance.options import (
    EDGES,
    LOGGED_RUNS,
    MEASURED_STEPS,
    AttackOptions,
    AuditBlock,
    Audited,
    Composition,
    MeanRule,
    Shards,
)

Rows: TypeAlias = tuple[Array, Array]

#: Number of parameters above which models train one by one. This is faster on a CPU, not slower on a GPU, and allows
#: runs to be resumed.
LARGE = {"cpu": 20_000, "cuda": 1_000_000}

#: Maximum number of attack runs of one record per batch.
_TOGETHER = 64


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    inputs: dps.FrozenMap
    context: dps.Context
    _point_tensors: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @cached_property
    def audited(self) -> Audited:
        return Audited.of(self.inputs["threat_model"], self.context.facts)

    @cached_property
    def shards(self) -> Shards:
        return AuditBlock.of(self.inputs.get("split", {})).shards(len(self.audited.points))

    @cached_property
    def points(self) -> Rows:
        data, indices = self.context.data, np.array(self.audited.points, dtype=np.int64)
        x, y = (data.train_x, data.train_y) if self.audited.population == "train" else (data.test_x, data.test_y)
        return (x, y) if self.audited.complete else (x[indices], y[indices])

    @cached_property
    def steps(self) -> tuple[int, ...]:
        total = sum(phase.steps for phase in dps.Phase.all_of(self.inputs["mechanism"]))
        return Composition.of(self.inputs["mechanism"]).observed(total)

    def job(self, index: int, *purpose: str, rows: Rows | None = None, progress: str = "") -> dps.TrainingJob:
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

    def with_norms(self, job: dps.TrainingJob, part: slice) -> "tuple[dps.TrainingJob, NormObserver]":
        (x, y), key = self.points, (part.start, part.stop)
        if key not in self._point_tensors:  # all runs of the call share them
            self._point_tensors[key] = tensors(x[part], y[part], self.context.device)
        watcher = NormObserver(job, *self._point_tensors[key], self.steps)
        return replace(job, observers=(watcher, *job.observers)), watcher

    def neighbours(self, position: int) -> tuple[Rows, Rows]:
        """The data with and without the audited record at ``position``."""
        data, point = self.context.data, self.audited.points[position]
        x, y = data.train_x, data.train_y
        if self.audited.population == "train":
            remaining = np.arange(len(x)) != point
            return (x, y), (x[remaining], y[remaining])
        point_row = self.points[0][position : position + 1], self.points[1][position : position + 1]
        return (np.concatenate([x, point_row[0]]), np.concatenate([y, point_row[1]])), (x, y)

    def train(self, jobs: Sequence[dps.TrainingJob], indices: Sequence[int] = ()) -> None:
        kind = self.context.device.partition(":")[0]
        alone = (self.context.facts.parameters or 0) > LARGE.get(kind, LARGE["cuda"])
        if len(jobs) > 1 and not alone:
            train_many(self.context.trainer, jobs)
            return
        resumables = (self.context.resumable(index) for index in indices) if indices else itertools.repeat(None)
        for job, resumable in zip(jobs, resumables, strict=False):
            self.context.trainer.train(replace(job, resumable=resumable))


def run_trials(setup: RunSetup, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Measure a shard of the records of a run in each trial; the first shard does the rest of a run."""
    runs: list[tuple[int, dps.TrainingJob, NormObserver, WatchedRun | None]] = []
    for index in indices:
        number, shard = setup.shards.run_and_shard(index)
        job = setup.job(number, "training", progress="training")
        job, watcher = setup.with_norms(job, setup.shards.places(shard))
        watched = None
        if shard == 0 and number < LOGGED_RUNS:
            measured = updates_invertible(setup.inputs["training"])
            watched = WatchedRun(job, Residuals(job, 0, looks=MEASURED_STEPS) if measured else None)
            job = replace(job, observers=(*job.observers, *watched.observers))
        runs.append((index, job, watcher, watched))
    setup.train([job for _, job, *_ in runs], indices)
    options, targets = AuditBlock.of(setup.inputs["audit"]), None
    for index, job, watcher, watched in runs:
        number, shard = setup.shards.run_and_shard(index)
        part = setup.shards.places(shard)
        arrays: dict[str, Array] = {"ratios": watcher.ratios, "right": watcher.right, "labels": setup.points[1][part]}
        if setup.audited.needs_own_runs:
            arrays["own"] = _train_own_runs(setup, number, part)
        facts = setup.context.facts
        evidence: dict[str, dps.Json] = {"sizes": [facts.records, facts.test_records], "internal": {}}
        if shard == 0:
            right = right_answers(job.model, setup.context.data, setup.context.device)
            evidence["internal"] = {"accuracy": right}
        if watched is not None:
            evidence = joined(evidence, watched.evidence())
        if options.attack is not None and shard == 0:
            targets = choose_targets(setup, options.attack) if targets is None else targets
            evidence["outcomes"] = attack_records(setup, options.attack, targets, number)
            evidence["internal"]["targets"] = [[name, setup.audited.points[position]] for name, position in targets]
        if index == 0 and options.mean_rule is not None:
            arrays |= estimate_mean_rule(setup, options.mean_rule)
        yield dps.Trial(index=index, evidence=dps.FrozenMap(evidence), arrays=arrays)


def _train_own_runs(setup: RunSetup, number: int, part: slice) -> Array:
    """Norms of each record of ``part`` along a run on modified data: float32, shape (observed, m)."""
    watchers: list[NormObserver] = []
    jobs: list[dps.TrainingJob] = []
    for position in range(part.start, part.stop):
        present, absent = setup.neighbours(position)
        # The dataset of the other direction: without the training record, or with the test record.
        rows = absent if setup.audited.population == "train" else present
        progress_label = "training on modified data of each record" if not jobs else ""
        job = setup.job(number, "own", str(setup.audited.points[position]), rows=rows, progress=progress_label)
        x, y = (column[position : position + 1] for column in setup.points)
        watchers.append(NormObserver(job, *tensors(x, y, job.device), setup.steps))
        jobs.append(replace(job, observers=(watchers[-1],)))
    together = kit.runs_together(setup.context.facts, most=len(jobs))
    for start in range(0, len(jobs), together):
        setup.train(jobs[start : start + together])
    return np.concatenate([watcher.ratios for watcher in watchers], axis=1)


def choose_targets(setup: RunSetup, attack: AttackOptions) -> tuple[tuple[str, int], ...]:
    """Reason and index of each target; a separate pilot run ranks records, independently of inclusion bits."""
    targets = [(f"record {record}", setup.audited.points.index(record)) for record in attack.records]
    if attack.most or attack.least:
        job, watcher = setup.with_norms(
            setup.job(0, "pilot", progress="pilot run"), slice(0, len(setup.audited.points))
        )
        setup.train([job])
        ranked = np.argsort(np.square(watcher.ratios.astype(np.float64)).mean(axis=0), kind="stable")
        targets += [(f"most exposed {i + 1}", int(position)) for i, position in enumerate(ranked[::-1][: attack.most])]
        targets += [(f"least exposed {i + 1}", int(position)) for i, position in enumerate(ranked[: attack.least])]
    return tuple(targets)


def attack_records(
    setup: RunSetup, attack: AttackOptions, targets: Sequence[tuple[str, int]], run_number: int
) -> list[dps.Json]:
    """[name, [[inclusion bit, edges below the score], ...]] per target; scores would reveal records."""
    outcomes: list[dps.Json] = []
    for number, (name, position) in enumerate(targets):
        present, absent = setup.neighbours(position)
        other_records = tensors(*absent, setup.context.device)
        x, y = setup.points
        record = tensors(x[position : position + 1], y[position : position + 1], setup.context.device)
        label = f"target {number}"
        coins = np.random.default_rng(setup.context.seed(run_number, label, "coins")).integers(0, 2, size=attack.runs)
        progress_label = f"attacking the {name} record" if "exposed" in name else f"attacking {name}"
        scores: list[float] = []
        for start in range(0, attack.runs, _TOGETHER):
            jobs, watchers = [], []
            target = Target(setup.job(run_number, label), other_records, record)
            for run in range(start, min(attack.runs, start + _TOGETHER)):
                rows = present if coins[run] else absent
                job = setup.job(run_number, label, str(run), rows=rows, progress=progress_label if run == start else "")
                watchers.append(RecordAttack(job, target))
                jobs.append(replace(job, observers=(watchers[-1],)))
            setup.train(jobs)
            scores += [watcher.score for watcher in watchers]
        reached = [[int(coin), bisect_right(EDGES, score)] for coin, score in zip(coins, scores, strict=True)]
        outcomes.append([name, reached])
    return outcomes


class _Snapshots(dps.Observer):
    def __init__(self, total: int) -> None:
        self.steps = (0, (total - 1) // 2, total - 1)
        self.states: dict[int, Tensor] = {}

    def released(self, step: int, state: Tensor) -> None:
        if step in self.steps:
            self.states[step] = state.clone()


def estimate_mean_rule(setup: RunSetup, rule: MeanRule) -> dict[str, Array]:
    """Estimate the mean rule at the first, the middle and the last model of a separate run, as arrays by name.

    ``mean_rule`` and ``mean_rule_sizes`` (effective tuples): shape (stages, batches, orders, kinds, points), for means
    under removal, under addition, and sums. ``mean_changes_B``: change of means by each record in clip norms, shape
    (stages, sizes, draws, points). ``mean_norms``: shape (stages, points).
    """
    job = setup.job(0, "mean rule", progress="training for the mean rule")
    phases = dps.Phase.all_of(setup.inputs["mechanism"])
    total = sum(phase.steps for phase in phases)
    keeper = _Snapshots(total)
    setup.train([replace(job, observers=(keeper,))])
    model = FlatModel.of(job)
    ends = np.cumsum([phase.steps for phase in phases])
    count, points = min(rule.points, len(setup.audited.points)), setup.audited.points
    inside = np.array(points[:count]) if setup.audited.population == "train" else None
    shape = (len(mean_rule.STAGES), len(rule.batches), len(rule.orders), 3, count)
    values, sizes = np.zeros(shape), np.zeros(shape)
    by_batch: list[list[Array]] = [[] for _ in rule.batches]
    norms = []
    x, y = setup.points
    for stage, step in enumerate(keeper.steps):
        state = keeper.states[step]
        phase = phases[int(np.searchsorted(ends, step, side="right"))]
        clip = phase.clip_norm
        gradients = _clipped_rows(model, state, job.x, job.y, clip)
        point_gradients = (
            gradients[inside] if inside is not None else _clipped_rows(model, state, x[:count], y[:count], clip)
        )
        norms.append(np.linalg.norm(point_gradients, axis=1) / clip)
        other_records = len(job.x) - (inside is not None)
        for b, batch in enumerate(rule.batches):
            rng = np.random.default_rng(setup.context.seed(0, "mean rule", str(stage), str(batch)))
            typical = mean_rule.typical_sizes(other_records, float(batch) / len(job.x))
            by_batch[b].append(
                mean_rule.mean_changes(rng, gradients, point_gradients, inside, typical, rule.outer) / clip
            )
            for o, order in enumerate(rule.orders):
                rng = np.random.default_rng(setup.context.seed(0, "mean rule", str(stage), str(batch), str(order)))
                rate, counts = float(batch) / len(job.x), (rule.outer, rule.inner, int(order))
                batches = mean_rule.draw(rng, len(job.x), rate, *counts)
                coins = mean_rule.draw(rng, count, rate, *counts) if inside is None else None
                estimate = mean_rule.estimate_kinds(gradients, point_gradients, inside, batches, coins, phase.deviation)
                values[stage, b, o], sizes[stage, b, o] = estimate
    changes: dict[str, Array] = {
        f"mean_changes_{b}": np.stack(stages).astype(np.float32) for b, stages in enumerate(by_batch)
    }
    return {"mean_rule": values, "mean_rule_sizes": sizes, "mean_norms": np.stack(norms), **changes}


def _clipped_rows(model: FlatModel, state: Tensor, x: Array, y: Array, clip: float) -> Array:
    blocks = []
    for part_x, part_y in zip(*(torch.split(t, 1024) for t in tensors(x, y, model.device)), strict=True):
        rows = model.rows(state, part_x, part_y)
        blocks.append((rows * (clip / rows.norm(dim=1, keepdim=True).clamp(min=clip))).cpu())
    clipped: Array = torch.cat(blocks).numpy()
    return clipped


#: Relative rounding error of a float32 norm, added before a norm is used.
SLACK = 1e-5


class NormObserver(Observer):
    """Before each observed step: clipped norms in clip norms, 1 for diverged models, and correct predictions."""

    ratios: SyncedAttribute[Array] = SyncedAttribute()
    right: SyncedAttribute[Array] = SyncedAttribute()

    def __init__(self, job: TrainingJob, x: Tensor, y: Tensor, steps: Sequence[int]) -> None:
        self._model = FlatModel(copy.deepcopy(job.model), device=job.device, loss=job.loss)
        self._x, self._y = x, y
        self._clips = [phase.clip_norm for phase in Schedule.of(job.phases, len(job.x))]
        self._place = {step: position for position, step in enumerate(steps)}
        self.transfers = TransferQueue()
        self.ratios = np.zeros((len(steps), len(x)), dtype=np.float32)
        self.right = np.zeros((len(steps), len(x)), dtype=np.int8)

    def released(self, step: int, state: Tensor) -> None:
        position = self._place.get(step + 1)
        if position is None:
            return
        norms, classes = self._model.look(state, self._x, self._y)
        ratios = torch.nan_to_num(norms * ((1.0 + SLACK) / self._clips[step]), nan=1.0, posinf=1.0).clamp_(max=1.0)
        self.transfers.add(self._keep, position, ratios, classes == self._y)

    def _keep(self, position: int, ratios: Array, right: Array) -> None:
        self.ratios[position], self.right[position] = ratios, right

    def state(self) -> Mapping[str, Array]:
        return {"ratios": self.ratios.copy(), "right": self.right.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.transfers.clear()
        self.ratios = np.array(state["ratios"]) if state else np.zeros_like(self.ratios)
        self.right = np.array(state["right"]) if state else np.zeros_like(self.right)


class RecordView(NamedTuple):
    """The attacked record at one model: its clipped gradient (P,), and the products a_j (n,)."""

    gradient: Tensor
    products: Tensor


class Target:
    """One attacked record. The first request at a step evaluates the models of all waiting runs together."""

    def __init__(self, job: TrainingJob, other_records: tuple[Tensor, Tensor], record: tuple[Tensor, Tensor]) -> None:
        self._x, self._y = other_records
        self._record = record
        module = copy.deepcopy(job.model).to(other_records[0].device)
        self._model = StackedModel(module, *record, job.loss)
        self.watchers: list[RecordAttack] = []
        self._most: int | None = None
        self._ready: dict[int, tuple[Tensor, RecordView]] = {}

    def view(self, watcher: "RecordAttack", state: Tensor, clip: float) -> RecordView:
        ready_state, view = self._ready.pop(id(watcher), (None, None))
        if ready_state is state and view is not None:
            return view
        waiting = [w for w in self.watchers if w is not watcher and w.steps == watcher.steps and w.previous is not None]
        states = [state] + [w.previous for w in waiting if w.previous is not None]
        runs, records = len(states), len(self._x)
        models = torch.stack(states)
        gradients = torch.zeros_like(models)
        x, y = (rows.expand(runs, *rows.shape) for rows in self._record)
        inside = torch.ones(x.shape[:2], dtype=torch.bool, device=models.device)
        self._model.add_clipped(gradients, models, x, y, inside, clipper(clip))

        def found(chunk: int) -> Tensor:
            products = torch.zeros(runs, records, dtype=torch.float64, device=models.device)
            for rows, part in tiles(runs, records, chunk):
                x, y = (data[part].expand(len(models[rows]), *data[part].shape) for data in (self._x, self._y))
                along, squares = self._model.along(models[rows], gradients[rows], x, y)
                products[rows, part] = along * (clip / squares.sqrt().clamp(min=clip))
            return products

        products, self._most = memory.halving(found, self._model.chunk(clipper(clip)), self._most)
        first, *waiting_views = itertools.starmap(RecordView, zip(gradients, products, strict=True))
        self._ready = {id(w): (s, r) for w, s, r in zip(waiting, states[1:], waiting_views, strict=True)}
        return first


class RecordAttack(Observer):
    """Sums one record's log-likelihood ratio over the steps. ``previous``: the model before the next step."""

    score: SyncedAttribute[float] = SyncedAttribute()

    def __init__(self, job: TrainingJob, target: Target) -> None:
        schedule = Schedule.of(job.phases, len(job.x))
        self._phases = list(schedule)
        self._update = inversion_of(job.options, job.expected_batch_size, schedule.total)
        self._target = target
        target.watchers.append(self)
        self.steps = -1
        self.previous: Tensor | None = None
        self.transfers = TransferQueue()
        self.score = 0.0

    def released(self, step: int, state: Tensor) -> None:
        if self.previous is not None:
            phase, noisy = self._phases[step - 1], self._update.invert(self.previous, state).noisy
            score = step_score(self._target.view(self, self.previous, phase.clip_norm), noisy, phase)
            self.transfers.add(self._keep, score)
        self.previous, self.steps = state.clone(), step

    def _keep(self, score: Array | float) -> None:
        added = float(score)
        self.score += added if abs(added) < 1e300 else 0.0  # ignore diverged models


def step_score(view: RecordView, noisy: Tensor, phase: ScheduledPhase) -> Number:
    """The score of one step whose noisy sum is ``noisy`` (P,)."""
    gradient = view.gradient.double()
    square = gradient.square().sum()
    q = torch.full_like(square, phase.sampler.inclusion)  # on the device: CUDA's logaddexp rejects CPU scalars
    variance = (phase.deviation**2 * square + q * (1.0 - q) * view.products.square().sum()).clamp(min=1e-300)
    moved = torch.dot(gradient, noisy.double()) - q * view.products.sum()
    shift = (moved * square - 0.5 * square**2) / variance
    return float_on_cpu(torch.logaddexp(torch.log1p(-q), torch.log(q) + shift))
