"""Observers of runs: clipped norms of audited records, and an attack on one record at every iterate.

Score of the attack: ``docs/explanation/proofs/per-instance.md``. Runs that train together are scored together.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.contract.providers import Observer, TrainingJob
from dpspec.training.device import Number, SyncedAttribute, TransferQueue, float_on_cpu
from dpspec.training.gradients import memory
from dpspec.training.gradients.clipping import clipper
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.gradients.stacked_models import StackedModel, tiles
from dpspec.training.loop.native import Schedule, ScheduledPhase
from dpspec.training.loop.optimizers import Invertible, update_of

Array: TypeAlias = np.ndarray[Any, Any]

#: Relative rounding error of a float32 norm, added before a norm is used.
SLACK = 1e-5


class NormObserver(Observer):
    """Measures before each observed step, shape (observed, m).

    ``ratios``: clipped norms in clip norms, float32 in [0, 1], 1 for diverged models. ``right``: 1 for correct
    predictions, int8.
    """

    ratios: SyncedAttribute[Array] = SyncedAttribute()
    right: SyncedAttribute[Array] = SyncedAttribute()

    def __init__(self, job: TrainingJob, x: Tensor, y: Tensor, steps: Sequence[int]) -> None:
        self._model = FlatModel(copy.deepcopy(job.model), device=job.device)
        self._x, self._y = x, y
        self._clips = [phase.clip_norm for phase in Schedule.of(job.phases, len(job.x))]
        self._place = {step: place for place, step in enumerate(steps)}
        self.transfers = TransferQueue()
        self.ratios = np.zeros((len(steps), len(x)), dtype=np.float32)
        self.right = np.zeros((len(steps), len(x)), dtype=np.int8)

    def released(self, step: int, state: Tensor) -> None:
        place = self._place.get(step + 1)
        if place is None:
            return
        norms, classes = self._model.look(state, self._x, self._y)
        ratios = torch.nan_to_num(norms * ((1.0 + SLACK) / self._clips[step]), nan=1.0, posinf=1.0).clamp_(max=1.0)
        self.transfers.add(self._keep, place, ratios, classes == self._y)

    def _keep(self, place: int, ratios: Array, right: Array) -> None:
        self.ratios[place], self.right[place] = ratios, right

    def state(self) -> Mapping[str, Array]:
        return {"ratios": self.ratios.copy(), "right": self.right.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.transfers.clear()
        self.ratios = np.array(state["ratios"]) if state else np.zeros_like(self.ratios)
        self.right = np.array(state["right"]) if state else np.zeros_like(self.right)


@dataclass(frozen=True, kw_only=True)
class RecordView:
    """The attacked record at one model: its clipped gradient (P,), and the products a_j (n,)."""

    gradient: Tensor
    products: Tensor


class Target:
    """One attacked record. The first request at a step evaluates the models of all waiting runs together."""

    def __init__(self, module: nn.Module, others: tuple[Tensor, Tensor], record: tuple[Tensor, Tensor]) -> None:
        self._x, self._y = others
        self._record = record
        self._model = StackedModel(copy.deepcopy(module).to(others[0].device), *record)
        self.watchers: list[RecordAttack] = []
        self._most: int | None = None
        self._ready: dict[int, tuple[Tensor, RecordView]] = {}

    def view(self, watcher: RecordAttack, state: Tensor, clip: float) -> RecordView:
        ready_state, view = self._ready.pop(id(watcher), (None, None))
        if ready_state is state and view is not None:
            return view
        waiting = [w for w in self.watchers if w is not watcher and w.steps == watcher.steps and w.previous is not None]
        states = [state] + [w.previous for w in waiting if w.previous is not None]
        first, *rest = self._views(torch.stack(states), clip)
        self._ready = {id(w): (s, r) for w, s, r in zip(waiting, states[1:], rest, strict=True)}
        return first

    def _views(self, states: Tensor, clip: float) -> list[RecordView]:
        runs, records = len(states), len(self._x)
        gradients = torch.zeros_like(states)
        x, y = (rows.expand(runs, *rows.shape) for rows in self._record)
        inside = torch.ones(x.shape[:2], dtype=torch.bool, device=states.device)
        self._model.add_clipped(gradients, states, x, y, inside, clipper(clip))

        def found(chunk: int) -> Tensor:
            products = torch.zeros(runs, records, dtype=torch.float64, device=states.device)
            for rows, part in tiles(runs, records, chunk):
                x, y = (data[part].expand(len(states[rows]), *data[part].shape) for data in (self._x, self._y))
                along, squares = self._model.along(states[rows], gradients[rows], x, y)
                products[rows, part] = along * (clip / squares.sqrt().clamp(min=clip))
            return products

        products, self._most = memory.halving(found, self._model.chunk(clipper(clip)), self._most)
        return [RecordView(gradient=g, products=p) for g, p in zip(gradients, products, strict=True)]


class RecordAttack(Observer):
    """Sums one record's log-likelihood ratio over the scored steps. ``previous``: the model before the next step."""

    score: SyncedAttribute[float] = SyncedAttribute()

    def __init__(self, job: TrainingJob, target: Target, looks: int | None) -> None:
        schedule = Schedule.of(job.phases, len(job.x))
        self._phases = list(schedule)
        update = update_of(job.options, job.expected_batch_size, schedule.total)
        if not isinstance(update, Invertible):
            raise ValueError(f"updates by {type(update).__name__} cannot be inverted: use another optimizer")
        self._update = update
        total = schedule.total
        spaced = torch.linspace(1, total, min(looks or total, total), dtype=torch.float64).round().long()
        self._scored = set(spaced.tolist())
        self._target = target
        target.watchers.append(self)
        self.steps = -1
        self.previous: Tensor | None = None
        self.transfers = TransferQueue()
        self.score = 0.0

    def released(self, step: int, state: Tensor) -> None:
        previous = self.previous
        if previous is not None:
            noisy = self._update.invert(previous, state).noisy
            if step in self._scored:
                phase = self._phases[step - 1]
                score = step_score(self._target.view(self, previous, phase.clip_norm), noisy, phase)
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
