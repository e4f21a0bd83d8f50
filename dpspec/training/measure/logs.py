"""Observers that log the backend's reports and count the released models: counts, moments, some coordinates of noise.

:mod:`~dpspec.training.measure.run_evidence` converts them to the evidence that
:mod:`dpspec.stats.conformance.table` tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from math import ceil

import numpy as np
import torch
from torch import Tensor

from dpspec import json_records
from dpspec.contract.frozen import Json
from dpspec.contract.providers import Observer, TrainingJob
from dpspec.stats.conformance.epochs import EpochLog
from dpspec.stats.conformance.evidence import States, kept_width
from dpspec.stats.conformance.sampling import excess
from dpspec.training.device import Array, SyncedAttribute, TransferQueue
from dpspec.training.gradients import flat_model
from dpspec.training.loop.checkpoint import Memory, Remembering, part
from dpspec.training.loop.learning_rates import rates_of
from dpspec.training.loop.native import Schedule
from dpspec.training.loop.samplers import RandomAllocation, Shuffled, TruncatedPoisson


class SamplingLog(Remembering, Observer):
    """Counts of the reported batches.

    Attributes:
        inclusions: Number of batches with each record, (records,) int64.
        repeats: Number of records drawn twice in a batch.
        spreads: Per completed phase, the sum over records of squared numbers of inclusions.
        above: The same for the excess over the declared mean.
        overlaps: (phases, lags, 2) int64: records in common with the batch ``lag`` steps before, and that batch's
            records.
        astray: Per phase, the number of records with a wrong number of batches in a completed epoch.
    """

    kept = ("inclusions", "sizes", "repeats", "spreads", "above", "overlaps", "astray", "_before", "_epoch")

    def __init__(self, schedule: Schedule, lags: Sequence[int] = ()) -> None:
        self.lags = tuple(lags)
        self._phases, records = schedule.phases, schedule.phases[0].sampler.records
        self._ends = list(accumulate(phase.steps for phase in self._phases))
        self._earlier: deque[Tensor] = deque(maxlen=max(self.lags, default=1))
        sizes = {
            i: phase.sampler.batch_size for i, phase in enumerate(self._phases) if isinstance(phase.sampler, Shuffled)
        }
        self.epochs = {i: EpochLog(records, size) for i, size in sizes.items()}
        self.inclusions, self._before, self._epoch = torch.zeros(3, records, dtype=torch.int64)
        self.overlaps = torch.zeros(len(self._phases), len(self.lags), 2, dtype=torch.int64)
        self.sizes: list[int] = []
        self.spreads: list[int] = []
        self.above: list[float] = []
        self.astray = [0] * len(self._phases)
        self.repeats = 0

    def sampled(self, step: int, indices: Tensor) -> None:
        """Count a batch. Raises ``IndexError`` for an invalid index."""
        drawn = indices.to("cpu", torch.int64)
        self.inclusions.index_add_(0, drawn, torch.ones_like(drawn))
        self.sizes.append(len(drawn))
        once, phase = torch.unique(drawn), len(self.spreads)
        self.repeats += len(drawn) - len(once)
        if self.lags and phase < len(self.overlaps):
            now = torch.zeros(len(self.inclusions), dtype=torch.bool)
            now[once] = True
            for number, lag in enumerate(self.lags):
                if lag <= len(self._earlier):
                    earlier = self._earlier[-lag]
                    self.overlaps[phase, number, 0] += int(now[earlier].sum())
                    self.overlaps[phase, number, 1] += len(earlier)
        self._earlier.append(once)
        if (epochs := self.epochs.get(phase)) is not None:
            epochs.add(once.numpy())
        if phase == len(self._phases):
            return
        steps, sampler = self._phases[phase].steps, self._phases[phase].sampler
        if isinstance(sampler, RandomAllocation):
            self._epoch.index_add_(0, drawn, torch.ones_like(drawn))
            if (len(self.sizes) - self._ends[phase]) % sampler.epoch_steps == 0:  # phases have whole epochs
                self.astray[phase] += int((self._epoch != sampler.batches_per_epoch).sum())
                self._epoch.zero_()
        if len(self.sizes) == self._ends[phase]:
            here = self.inclusions - self._before
            # Inclusion probabilities before truncation.
            rate = sampler.rate if isinstance(sampler, TruncatedPoisson) else sampler.inclusion
            self.above.append(excess(here.numpy(), steps * rate))
            self.spreads.append(int((here * here).sum()))
            self._before = self.inclusions.clone()

    def state(self) -> Memory:
        return {
            **super().state(),
            **{f"epochs{p}.{name}": kept for p, log in self.epochs.items() for name, kept in log.state().items()},
            "earlier": np.concatenate([np.zeros(0, dtype=np.int64), *(b.numpy() for b in self._earlier)]),
            "lengths": np.array([len(b) for b in self._earlier], dtype=np.int64),
        }

    def restore(self, state: Memory) -> None:
        super().restore(state)
        for phase, log in self.epochs.items():
            log.restore(part(state, f"epochs{phase}"))
        self._earlier.extend(torch.split(torch.tensor(state["earlier"]), state["lengths"].tolist()))


class NoiseLog(Remembering, Observer):
    """Squared norm and evenly spaced coordinates of each step's noise, and its number of parameters ``count``."""

    kept = ("count", "squares", "rows")
    squares: SyncedAttribute[list[float]] = SyncedAttribute()
    rows: SyncedAttribute[list[Array]] = SyncedAttribute()

    def __init__(self, steps: int = 1) -> None:
        self.transfers = TransferQueue()
        self._width = kept_width(steps)
        self.count, self.squares, self.rows = 0, [], []

    def noised(self, step: int, noise: Tensor) -> None:
        self.count = len(noise)
        length = torch.linalg.vector_norm(noise, dtype=torch.float64)
        self.transfers.add(self._keep, length, spaced(noise, self._width))

    def _keep(self, length: Array, row: Array) -> None:
        self.squares.append(float(length) ** 2)
        self.rows.append(row)


class NormLog(Remembering, Observer):
    """The largest reported norm after clipping of each step, 0 for an empty batch, and the number of norms."""

    kept = ("largest", "counts")
    largest: SyncedAttribute[list[float]] = SyncedAttribute()

    def __init__(self) -> None:
        self.transfers = TransferQueue()
        self.largest = []
        self.counts: list[int] = []

    def clipped(self, step: int, norms: Tensor) -> None:
        self.transfers.add(self._keep, norms.max() if len(norms) else 0.0)
        self.counts.append(len(norms))

    def _keep(self, largest: Array | float) -> None:
        self.largest.append(float(largest))


def spaced(vector: Tensor, width: int) -> Tensor:
    """Copy at most ``width`` evenly spaced entries of a vector as float32."""
    stride = max(1, ceil(len(vector) / width))
    return vector[::stride].to(torch.float32, copy=True)


#: Updates below this fraction of the largest parameter may vanish in float32, as may any update of very few parameters.
_LOST, _FEW = 1e-5, 8


class StateLog(Remembering, Observer):
    """The number of released models after the initial one, and of finite ones that equal their predecessor."""

    kept = ("steps", "still", "_last")
    still: SyncedAttribute[int] = SyncedAttribute()

    def __init__(self) -> None:
        self.transfers = TransferQueue()
        self.steps = self.still = 0
        self._last: Tensor | None = None

    def released(self, step: int, state: Tensor) -> None:
        self.steps += step > 0
        if self._last is not None:
            if state.device.type == "cpu" and not torch.equal(state, self._last):  # this stops at the first difference
                unchanged = torch.tensor(False)
            else:
                unchanged = ((state == self._last.to(state)) & state.isfinite()).all()
            self.transfers.add(self._count, unchanged)
        self._last = state.clone()

    def _count(self, again: Array) -> None:
        self.still += int(again)

    def states(self, job: TrainingJob) -> States | None:
        if self._last is None:
            return None
        trained, last = (
            state.detach().to("cpu", torch.float32).view(torch.int32)
            for state in (flat_model.flatten(job.model).to(self._last), self._last)
        )
        apart = not torch.equal(trained, last)
        largest = max(1.0, float(torch.nan_to_num(self._last).abs().max()))
        # Approximate size of a parameter's update by the smallest noise of any step. Plain descent: g = learning rate *
        # noise / divisor. Adam: rate * g / (g + eps).
        schedule = Schedule.of(job.phases, len(job.x))
        rates = rates_of(job.options, schedule.total)
        move = min(rates(step) for step in range(1, schedule.total + 1))
        noise = min(phase.deviation for phase in schedule.phases)
        gradient = noise / (job.expected_batch_size if job.options["reduction"] == "mean" else 1.0)
        optimizer = job.options.get("optimizer") or {}
        if gradient > 0.0 and optimizer.get("kind") == "adam":
            move = move * gradient / (gradient + float(optimizer.get("eps") or 1e-8))
        else:
            move = move * gradient
        blind = len(self._last) < _FEW or not move > _LOST * largest
        return States(still=self.still, apart=int(apart), blind=blind)

    def evidence(self, job: TrainingJob) -> dict[str, Json]:
        states = self.states(job)
        return {} if states is None else {"steps": self.steps, "states": json_records.write(states)}
