"""Observers that log the backend's reports and count the released models."""

from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil, inf, isclose

import numpy as np
import torch
from torch import Tensor

from dpspec import json_records
from dpspec.contract.frozen import Json
from dpspec.contract.phase import Phase
from dpspec.contract.providers import Observer, TrainingJob
from dpspec.stats.conformance.batch_checks import BatchLog, SamplingSums, compared_lags
from dpspec.stats.conformance.evidence import CountSums, States, kept_width
from dpspec.stats.conformance.evidence import number as finite_number
from dpspec.stats.conformance.sampling import summary
from dpspec.training.adaptive_clipping import AdaptiveClipping, unclipped
from dpspec.training.device import Array, SyncedAttribute, TransferQueue
from dpspec.training.gradients import flat_model
from dpspec.training.loop.checkpoint import Memory, Remembering, part
from dpspec.training.loop.native import Schedule
from dpspec.training.providers import rates_of


class SamplingLog(Observer):
    """Logs of the reported batches by ``declared`` phase, and the ``sizes`` of all batches."""

    def __init__(self, declared: Sequence[Mapping[str, Json]], records: int) -> None:
        phases = [Phase.of(phase) for phase in declared]
        lags = compared_lags(phases, records)
        self.records, self._earlier = records, deque[Array](maxlen=max(lags, default=1))
        self.logs = [BatchLog(phase, records, lags, earlier=self._earlier) for phase in phases]
        self.sizes: list[int] = []

    def sampled(self, step: int, indices: Tensor) -> None:
        """Count a batch. Raises ``IndexError`` for an invalid index."""
        drawn = indices.to("cpu", torch.int64).numpy()
        if len(drawn) and not 0 <= drawn.min() <= drawn.max() < self.records:
            raise IndexError(f"indices must be from 0 to {self.records - 1}, got {drawn.min()} to {drawn.max()}")
        self.sizes.append(len(drawn))
        if (log := next((log for log in self.logs if not log.is_complete), None)) is not None:
            log.add(drawn)

    def evidence(self) -> SamplingSums | None:
        if not self.sizes:
            return None
        repeats = sum(log.repeats for log in self.logs)
        return SamplingSums(records=self.records, repeats=repeats, batches=tuple(log.sums() for log in self.logs))

    def state(self) -> Memory:
        logs = enumerate(self.logs)
        return {
            **{f"{number}.{name}": array for number, log in logs for name, array in log.state().items()},
            "sizes": np.array(self.sizes, dtype=np.int64),
            "earlier": np.concatenate([np.zeros(0, dtype=np.int64), *self._earlier]),
            "lengths": np.array([len(batch) for batch in self._earlier], dtype=np.int64),
        }

    def restore(self, state: Memory) -> None:
        for number, log in enumerate(self.logs):
            log.restore(part(state, str(number)))
        self.sizes = state["sizes"].tolist()
        ends = zip(np.cumsum(state["lengths"]), state["lengths"], strict=True)
        self._earlier.extend(state["earlier"][end - length : end] for end, length in ends)


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


#: Relative rounding error of clip norms and counts in float64.
_ROUNDING = 1e-9


class CountLog(Remembering, Observer):
    """Clip norms and noisy counts of adaptive clipping, compared with the rule by which each follows.

    Attributes:
        clip_norms: The clip norm of each step, (steps,): the declared one, or of adaptive phases the reported one.
        squares: The squared noise of each count in declared standard deviations, (steps,); -1 without a count.
        counts: Number of reported counts.
        unruled: Number of clip norms that do not follow from the count before.
        miscounted: Number of counts that differ from the number of unclipped contributions plus the noise.
    """

    kept = ("clip_norms", "squares", "counts", "unruled", "miscounted", "_next")

    def __init__(self, schedule: Schedule, batch_size: float) -> None:
        self._phases, self._first_steps = list(schedule), schedule.first_steps
        self._batch_size, self._next = batch_size, 0.0
        self._awaited: tuple[AdaptiveClipping, float, float, float] | None = None
        self.clip_norms: Array = np.array([phase.clip_norm for phase in self._phases])
        self.squares: Array = np.full(len(self._phases), -1.0)
        self.counts = self.unruled = self.miscounted = 0

    def counted(self, step: int, clip_norm: float, count: float, noise: float) -> None:
        self.counts += 1
        rule = self._phases[step - 1].adaptive if step <= len(self._phases) else None
        if rule is None:
            return
        expected = self.clip_norms[step - 1] if step in self._first_steps else self._next
        self.unruled += not isclose(clip_norm, expected, rel_tol=_ROUNDING)
        self.clip_norms[step - 1] = clip_norm
        scaled = noise / rule.count_std
        self.squares[step - 1] = finite_number(scaled * scaled)
        self._next = rule.next_clip_norm(clip_norm, count, self._batch_size)
        self._awaited = rule, clip_norm, count, noise

    def clipped(self, step: int, norms: Tensor) -> None:
        if self._awaited is None:
            return
        (rule, clip_norm, count, noise), self._awaited = self._awaited, None
        right = rule.count(int(unclipped(norms, clip_norm)), len(norms))
        tolerance = _ROUNDING * (1.0 + abs(right) + abs(noise))
        self.miscounted += not abs(count - noise - right) <= tolerance

    def evidence(self) -> CountSums | None:
        if all(phase.adaptive is None for phase in self._phases) and not self.counts:
            return None
        reported = self.squares >= 0.0
        steps = 1 + np.flatnonzero(reported)
        return CountSums(
            counts=self.counts,
            unruled=self.unruled,
            statistic=finite_number(float(self.squares[reported].sum())),
            of_steps=summary(self.squares[reported], steps, count=1) if len(steps) else None,
        )


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
        both = (flat_model.flatten(job.model).to(self._last), self._last)
        trained, last = (state.detach().to("cpu", torch.float32).view(torch.int32) for state in both)
        different = not torch.equal(trained, last)
        largest = max(1.0, float(torch.nan_to_num(self._last).abs().max()))
        # Approximate size of a parameter's update by the smallest noise of any step. Plain descent: g = learning rate *
        # noise / divisor. Adam: rate * g / (g + eps).
        schedule = Schedule.of(job.phases, len(job.x))
        rates = rates_of(job.options, schedule.total)
        move = min(rates(step) for step in range(1, schedule.total + 1))
        # The clip norm of adaptive phases may fall to its limit.
        least = (min(p.clip_norm, p.adaptive.min_clipbound if p.adaptive else inf) for p in schedule.phases)
        noise = min(p.noise_multiplier * norm for p, norm in zip(schedule.phases, least, strict=True))
        gradient = noise / (job.expected_batch_size if job.options["reduction"] == "mean" else 1.0)
        optimizer = job.options.get("optimizer") or {}
        if gradient > 0.0 and optimizer.get("kind") == "adam":
            move = move * gradient / (gradient + float(optimizer.get("eps") or 1e-8))
        else:
            move = move * gradient
        blind = len(self._last) < _FEW or not move > _LOST * largest
        return States(still=self.still, apart=int(different), blind=blind)

    def evidence(self, job: TrainingJob) -> dict[str, Json]:
        states = self.states(job)
        return {} if states is None else {"steps": self.steps, "states": json_records.write(states)}
