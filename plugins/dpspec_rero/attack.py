"""Reconstruction trials: the adversary identifies a hidden target record among k candidates from released models.

Each trial trains a separate run, so that a binomial distribution dominates the number of successes
(``docs/explanation/proofs/reconstruction.md``). An l1 norm requires materialized gradients, so Laplace noise replaces a
part of the native loop.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.utils.rnn import pad_sequence

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.providers import Observer, TrainingJob
from dpspec.stats.conformance.evidence import joined
from dpspec.training.device import full_precision, send
from dpspec.training.gradients import memory
from dpspec.training.gradients.persample import Clip, ClippedSum, FlatModel, clip_factors, clipper, no_norms
from dpspec.training.gradients.stacked_models import StackedModel
from dpspec.training.loop.native import Schedule, ScheduledPhase, parts_of, tensors, train_many, train_with
from dpspec.training.loop.optimizers import Sgd, update_of
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.run_evidence import WatchedRun
from dpspec.training.measure.scores import right_answers
from dpspec_rero.findings import LOGGED, LOOKS, sums_are_tested
from dpspec_rero.options import Candidates, Prior, adds_laplace, trained_phases

#: Bytes of materialized gradients per chunk.
_BYTES = 48 * 2**20


def make_job(
    inputs: dps.FrozenMap, context: dps.Context, index: int, rows: tuple[Array, Array], purpose: str = "training"
) -> dps.TrainingJob:
    phases = trained_phases(dps.Phase.all_of(inputs["mechanism"]))
    return kit.training_job(
        inputs, context, index, purpose, rows=rows, phases=phases, records=len(rows[0]), resumable=False
    )


def train_all(context: dps.Context, jobs: Sequence[dps.TrainingJob]) -> None:
    if not adds_laplace(jobs[0].phases):
        train_many(context.trainer, jobs)
        return
    for job in jobs:
        rows, model = tensors(job.x, job.y, job.device), FlatModel.of(job)
        train_with(job, replace(parts_of(job), contributions=AbsoluteSum(model, *rows)))


def scale_rows(rows: Tensor, bound: float, ord: int) -> Tensor:
    """Scale gradients (..., P) down to an l1 or l2 norm of ``bound``; gradients that are not finite become 0."""
    norms = torch.linalg.vector_norm(rows, ord=ord, dim=-1, dtype=torch.float64)
    return torch.nan_to_num(rows * clip_factors(norms, bound).unsqueeze(-1), nan=0.0, posinf=0.0, neginf=0.0)


class AbsoluteSum:
    """The part ``contributions`` of the loop: a sum of gradients g, each times min(1, clip_norm / ||g||_1)."""

    def __init__(self, model: FlatModel, x: Tensor, y: Tensor) -> None:
        self._model, self._x, self._y = model, x, y
        self._chunk = max(1, _BYTES // (4 * model.size))

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
        total, norms = torch.zeros_like(state), [no_norms(state.device)]
        for chunk in torch.split(send(indices, state.device), self._chunk):
            rows = self._model.rows(state, self._x[chunk], self._y[chunk])
            clipped = scale_rows(rows, clipper(clip).clip_norm, ord=1)
            total += clipped.sum(0)
            norms.append(torch.linalg.vector_norm(clipped, ord=1, dim=1, dtype=torch.float64))
        return ClippedSum(total, torch.cat(norms))


#: Largest rounding of a step's update, relative to its declared noise, at which the scale of the noise is tested: it
#: adds at most 10^-4 to the variance.
MOST_NOISE_ROUNDING = 0.01

#: Smallest noise standard deviation that the likelihood assumes, in clip norms.
_LEAST_NOISE = 1e-3


class Reader:
    """Processes R runs during training, each with known records and the target as its last record.

    Args:
        jobs: The runs' jobs. They differ only in rows, seeds and initial models.
        rows: Per run, the positions of its records in ``x`` (n, ...) and ``y`` (n,), the target last.
        candidates: Positions of the candidates, shape (R, k).
        iterates: Whether the adversary sees all iterates or only the final model.

    Attributes:
        scores: Log-likelihood ratios of the candidates, float64, shape (R, k).
        noise: Chi-square over the noisy steps, shape (R,): squares in declared variances (Gaussian), or twice the
            absolute values in declared scales (Laplace).
        degrees: Degrees of freedom of ``noise``; ``hidden``: degrees of steps whose noise the rounding hides.
    """

    def __init__(
        self,
        jobs: Sequence[TrainingJob],
        rows: Sequence[Tensor],
        candidates: Tensor,
        x: Tensor,
        y: Tensor,
        *,
        iterates: bool,
    ) -> None:
        first = jobs[0]
        self._schedule = Schedule.of(first.phases, len(rows[0]))
        self._phases = list(self._schedule)
        self._ends = list(accumulate(phase.steps for phase in self._schedule.phases))
        self._update = update_of(first.options, first.expected_batch_size, self._schedule.total)
        self._jobs, self._iterates, self._laplace = jobs, iterates, adds_laplace(first.phases)
        self._x, self._y, self._rows, self._candidates = x, y, rows, candidates
        self._model = FlatModel.of(first)
        self._gradients = vmap(vmap(grad(self._loss), in_dims=(None, 0, 0)), in_dims=(0, 0, 0))
        self._stacked = StackedModel(first.model, x, y, first.loss)
        self._width = max(1, memory.chunk_size(3 * 4 * self._model.size, x.device) // len(rows))
        self._chunk = max(1, self._stacked.chunk(clipper(1.0)) // len(rows))
        self._most: dict[bool, int | None] = {}
        self._states: dict[int, Tensor] = {}
        self._batches: dict[int, Tensor] = {}
        self._start = self._previous = torch.zeros(0)
        self.steps = 0
        self.scores = torch.zeros(candidates.shape, dtype=torch.float64, device=x.device)
        self.noise = torch.zeros(len(rows), dtype=torch.float64, device=x.device)
        noisy = sum(phase.steps for phase in self._schedule.phases if phase.noise_multiplier > 0.0)
        self._step_degrees = self._model.size * (2 if self._laplace else 1)
        self._declared_degrees = noisy * self._step_degrees if iterates else 0
        self.hidden = 0
        self.included: list[list[int] | None] = [None for _ in rows]

    @property
    def degrees(self) -> int:
        """Missing steps count, so that a run with fewer steps has too little noise."""
        return self._declared_degrees - self.hidden

    def observers(self) -> list[Observer]:
        return [_RunObserver(self, run) for run in range(len(self._rows))]

    def take_batch(self, run: int, step: int, indices: Tensor) -> None:
        self._batches[run] = indices.to("cpu")
        included = self.included[run] = self.included[run] or [0] * len(self._ends)
        if 0 < step <= self._ends[-1]:
            included[bisect_left(self._ends, step)] += len(indices)

    def take_model(self, run: int, step: int, state: Tensor) -> None:
        self._states[run] = state.detach().clone()
        if len(self._states) < len(self._rows):
            return
        now = torch.stack([self._states[r] for r in range(len(self._rows))]).to(self._x.device)
        batches = [self._batches.get(r) for r in range(len(self._rows))]
        self._states, self._batches = {}, {}
        if step == 0:
            self._start = self._previous = now
            return
        self.steps += 1
        if self._iterates and step <= len(self._phases):
            with full_precision(now.device):
                self._add_step(self._phases[step - 1], self._previous, now, batches)
        self._previous = now

    def finish(self) -> None:
        """Score the candidates by the final models, if only these were released."""
        if self._iterates or self.steps == 0:
            return
        with full_precision(self._x.device):
            start, end = self._start, self._previous
            first = self._jobs[0]
            # Effect of a sum on the model by the first step's update rule. A later change of the rule only costs power.
            update = update_of(first.options, first.expected_batch_size, len(self._phases))
            scale = -float(update(torch.zeros(1), torch.ones(1)))
            everyone = [rows[:-1] for rows in self._rows]
            known_sum, spread, times = torch.zeros_like(start), 0.0, 0.0
            for phase in self._schedule.phases:
                q, clip = phase.sampler.inclusion, phase.clip_norm
                for state in (start, end):
                    known_sum += 0.5 * phase.steps * q * self._sums(state, everyone, clip)
                spread += phase.steps * (max(phase.noise_multiplier, _LEAST_NOISE) * clip) ** 2
                times += phase.steps * q
            residual = (start - end) / scale - known_sum

            def loss(candidates: Tensor) -> Tensor:
                total = 0.5 * times * (self._clipped(start, candidates, clip) + self._clipped(end, candidates, clip))
                # <x, m> - |m|^2 / 2 for observations x and means m
                products = torch.einsum("rcp,rp->rc", total, residual).double()
                return (products - 0.5 * total.square().sum(2).double()) / spread

            self._score(loss)

    def _add_step(self, phase: ScheduledPhase, before: Tensor, after: Tensor, batches: Sequence[Tensor | None]) -> None:
        assert isinstance(self._update, Sgd)
        known_records, present = [], []
        for rows, batch in zip(self._rows, batches, strict=True):
            if batch is None:  # a backend that keeps no log of full batches
                batch = torch.arange(len(rows))
            known_records.append(rows[batch[batch < len(rows) - 1]])
            present.append(bool((batch == len(rows) - 1).any()))
        clip, q = phase.clip_norm, phase.sampler.inclusion
        recovered = self._update.invert(before, after)
        residual = (recovered.noisy - self._sums(before, known_records, clip)) / clip
        sigma = max(phase.noise_multiplier, _LEAST_NOISE)

        def drawn_or_not(candidates: Tensor) -> Tensor:
            loss = self._log_ratios(before, candidates, residual, clip, sigma)
            if q < 1.0:
                loss = torch.logaddexp(torch.full_like(loss, math.log1p(-q)), loss + math.log(q))
            return loss

        self._score(drawn_or_not)
        if phase.noise_multiplier == 0.0:
            return
        if recovered.expected / clip <= MOST_NOISE_ROUNDING * math.sqrt(before.numel()) * phase.noise_multiplier:
            targets = send(torch.stack([rows[-1:] for rows in self._rows]), self._x.device)
            target_rows = self._clipped(before, targets, clip)[:, 0] / clip
            was_drawn = send(torch.tensor(present), target_rows.device)[:, None]
            noise = torch.where(was_drawn, residual - target_rows, residual).double() / phase.noise_multiplier
            self.noise += math.sqrt(8.0) * noise.abs().sum(1) if self._laplace else noise.square().sum(1)
        else:
            self.hidden += self._step_degrees

    def _log_ratios(self, before: Tensor, candidates: Tensor, residual: Tensor, clip: float, sigma: float) -> Tensor:
        """Log-ratios (R, c) of ``residual`` (R, P), in clip norms, if a step drew one of ``candidates`` (R, c)."""
        if self._laplace:
            means = self._clipped(before, candidates, clip) / clip
            observed = residual.unsqueeze(1)
            return (observed.abs() - (observed - means).abs()).sum(2, dtype=torch.float64) * math.sqrt(2.0) / sigma
        products, squares = self._stacked.along(before, residual, self._x[candidates], self._y[candidates])
        squares = squares / clip**2
        factors = squares.clamp(min=1.0).rsqrt()
        return (factors * products / clip - 0.5 * factors.square() * squares) / sigma**2

    def _score(self, loss: Callable[[Tensor], Tensor]) -> None:
        """Add ``loss`` (R, c) of all candidates to the scores; values of diverged models count as 0."""
        candidates = send(self._candidates, self._x.device)

        def found(width: int) -> Tensor:
            return torch.cat([loss(block) for block in torch.split(candidates, width, dim=1)], dim=1)

        values = self._halving(found, written=self._laplace or not self._iterates)
        self.scores += torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)

    def _halving(self, work: Callable[[int], Tensor], *, written: bool) -> Tensor:
        size = self._width if written else self._chunk
        result, self._most[written] = memory.halving(work, size, self._most.get(written))
        return result

    def _sums(self, states: Tensor, records_of_runs: Sequence[Tensor], clip: float) -> Tensor:
        """The sums (R, P) of the clipped gradients of each run's records, at models ``states`` (R, P)."""
        padded = pad_sequence(list(records_of_runs), batch_first=True)
        inside = (
            torch.arange(padded.shape[1]) < torch.tensor([len(run_places) for run_places in records_of_runs])[:, None]
        )
        padded, inside = send(padded, states.device), send(inside, states.device)
        clipping = clipper(clip)

        def added(width: int) -> Tensor:
            total = torch.zeros_like(states)
            for block, there in zip(torch.split(padded, width, dim=1), torch.split(inside, width, dim=1), strict=True):
                if self._laplace:
                    weights = there.to(states.dtype)
                    total += torch.einsum("rcp,rc->rp", self._clipped(states, block, clip), weights)
                else:
                    self._stacked.add_clipped(total, states, self._x[block], self._y[block], there, clipping)
            return total

        return self._halving(added, written=self._laplace)

    def _clipped(self, states: Tensor, records: Tensor, clip: float) -> Tensor:
        """The clipped gradients (R, c, P) of ``records`` (R, c) at ``states`` (R, P); zero where not finite."""
        layout = self._model.layout
        rows = layout.flatten(self._gradients(layout.split(states), self._x[records], self._y[records]), leading=2)
        return scale_rows(rows, clip, ord=1 if self._laplace else 2)

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self._model.loss(self._model.forward(parameters, x.unsqueeze(0)), y.unsqueeze(0))[0]


class _RunObserver(Observer):
    def __init__(self, reader: Reader, run: int) -> None:
        self._reader = reader
        self._run = run

    def sampled(self, step: int, indices: Tensor) -> None:
        self._reader.take_batch(self._run, step, indices)

    def released(self, step: int, state: Tensor) -> None:
        self._reader.take_model(self._run, step, state)


Places = np.ndarray[Any, np.dtype[np.int64]]


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    candidates = Prior.of(inputs["threat_model"]).candidates
    assert candidates is not None
    together = hasattr(context.trainer, "train_many") and not adds_laplace(dps.Phase.all_of(inputs["mechanism"]))
    for group in [list(indices)] if together else [[index] for index in indices]:
        yield from _run_group(inputs, context, candidates, group)


@dataclass(frozen=True, kw_only=True)
class HiddenTarget:
    """One trial's k candidates and its target.

    ``x`` (m, ...) and ``y`` (m,) are synthetic records, which follow the n records of the dataset. ``places`` (k,) are
    the candidates' positions among all n + m, ``target`` is one of the k, and ``rows`` are the training records: the
    known ones in order, then the target.
    """

    x: Array
    y: Array
    places: Places
    target: int
    rows: Places


def hide_target(candidates: Candidates, x: Array, y: Array, classes: int, seed: int) -> HiddenTarget:
    source = np.random.default_rng(seed)
    made_x, made_y = x[:0], y[:0]
    if candidates.source == "planted":
        made_x, made_y = make_records(candidates.count, x, y, classes, source)
        candidate_rows = len(y) + np.arange(candidates.count, dtype=np.int64)
    else:
        pool = np.arange(len(y), dtype=np.int64)
        if candidates.source == "same-class":
            labels, counts = np.unique(y, return_counts=True)
            large = labels[counts >= candidates.count]
            if len(large) == 0:
                raise dps.DataError(f"no class has {candidates.count} records to choose candidates from")
            pool = np.flatnonzero(y == source.choice(large))
        candidate_rows = source.choice(pool, size=candidates.count, replace=False).astype(np.int64)
    target = int(source.choice(candidates.count, p=candidates.masses))
    known_rows = np.setdiff1d(np.arange(len(y), dtype=np.int64), candidate_rows)
    return HiddenTarget(
        x=made_x, y=made_y, places=candidate_rows, target=target, rows=np.append(known_rows, candidate_rows[target])
    )


def make_records(count: int, x: Array, y: Array, classes: int, source: np.random.Generator) -> tuple[Array, Array]:
    """Make ``count`` records that are zero except in one feature, with distinct pairs of feature and label.

    Their gradients in a first dense layer are orthogonal or opposed, the worst case of the bounds. Each has the norm of
    the longest training record.
    """
    features = int(np.prod(x.shape[1:]))
    if count > features * classes:
        raise dps.DataError(f"{features} features and {classes} classes tell {features * classes} records apart")
    feature, label = np.divmod(source.choice(features * classes, size=count, replace=False), classes)
    features_of_records = np.zeros((count, features), dtype=x.dtype)
    features_of_records[np.arange(count), feature] = np.linalg.norm(x.reshape(len(x), -1), axis=1).max()
    return features_of_records.reshape(count, *x.shape[1:]), label.astype(y.dtype)


def _run_group(
    inputs: dps.FrozenMap, context: dps.Context, candidates: Candidates, group: list[int]
) -> Iterator[dps.Trial]:
    data, classes = context.data, context.facts.classes
    hidden = [
        hide_target(candidates, data.train_x, data.train_y, classes, context.seed(i, "candidates")) for i in group
    ]
    # The synthetic records of all trials follow the dataset in one array.
    placed, records, start = [], len(data.train_y), 0
    for target in hidden:
        candidate_rows, rows = (np.where(old < records, old, old + start) for old in (target.places, target.rows))
        placed.append(replace(target, places=candidate_rows, rows=rows))
        start += len(target.y)
    x = np.concatenate([data.train_x, *(target.x for target in hidden)])
    y = np.concatenate([data.train_y, *(target.y for target in hidden)])
    jobs = [
        make_job(inputs, context, i, (x[target.rows], y[target.rows])) for i, target in zip(group, placed, strict=True)
    ]

    jobs[0] = replace(jobs[0], progress=lambda done, total: context.progress(done, total, "training"))
    reader = Reader(
        jobs,
        [torch.from_numpy(target.rows) for target in placed],
        torch.from_numpy(np.stack([target.places for target in placed])),
        *tensors(x, y, context.device),
        iterates=inputs["threat_model"]["access"] == "all-iterates",
    )
    logs = []
    for index, job in zip(group, jobs, strict=True):
        logged = index < LOGGED  # later runs are checked by their released models only
        measured = Residuals(job, 0, looks=LOOKS) if logged and sums_are_tested(job.phases, job.options) else None
        logs.append(WatchedRun(job, measured, logged=logged))
    observed = zip(jobs, reader.observers(), logs, strict=True)
    train_all(context, [replace(job, observers=(observer, *log.observers)) for job, observer, log in observed])
    reader.finish()
    with np.errstate(divide="ignore"):
        prior = np.log(candidates.masses) if candidates.masses is not None else np.zeros(candidates.count)
    posteriors = reader.scores.cpu().numpy() + prior
    for run, index in enumerate(group):
        order = np.argsort(-posteriors[run], kind="stable")
        statistic = float(reader.noise[run])
        shown: dict[str, Any] = {
            "rank": int(np.flatnonzero(order == hidden[run].target)[0]),
            "records": len(hidden[run].rows),
            "included": reader.included[run],
            # Evidence is JSON, which has no infinity.
            "noise": {
                "statistic": statistic if np.isfinite(statistic) else 1e300,
                "degrees": reader.degrees,
                **({"hidden": reader.hidden} if reader.hidden else {}),
            },
        }
        if index == 0:
            job = make_job(inputs, context, 0, (data.train_x, data.train_y), "twin")
            train_all(context, [job])
            shown["internal"] = {"accuracy": right_answers(job.model, data, context.device)}
        evidence = joined(shown, logs[run].evidence())
        yield dps.Trial(index=index, evidence=dps.FrozenMap(evidence))


Array = np.ndarray[Any, Any]
