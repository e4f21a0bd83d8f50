"""Residuals: each released update minus its expectation. All measurements on released models start from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import islice
from math import sqrt
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.attacks import Directions
from dpspec.contract.providers import Observer, TrainingJob
from dpspec.stats.conformance.evidence import looked
from dpspec.training.device import Array, SyncedAttribute, TransferQueue, full_precision
from dpspec.training.device import tensors as rows_on
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.checkpoint import Memory, part, tensor, tensors
from dpspec.training.loop.native import Schedule, ScheduledPhase
from dpspec.training.loop.optimizers import Invertible, RecoveredUpdate, update_of
from dpspec.training.loop.samplers import PoissonUsers
from dpspec.training.measure.population import (
    Drawn,
    Estimated,
    Population,
    Sample,
    SharedPopulations,
    drawn,
    estimated,
    population,
)
from dpspec.training.measure.update_statistics import MAX_ROUNDING, ResidualLog


@dataclass(frozen=True)
class NoiseScale:
    """Measured noise in the directions that no canary uses.

    With the declared noise, ``statistic`` stochastically dominates chi-square(degrees): sampling only adds to it, and
    rounding is bounded.

    Attributes:
        statistic: Sum over steps of (||residual|| + rounding bound)^2 / variance in those directions.
        excess: Expected contribution of sampling to ``statistic``.
        each: Terms of ``statistic`` by step, (m,) float64.
        numbers: Numbers of these steps, (m,) int64, from 1.
        hidden: Number of steps excluded because rounding may hide their noise.
    """

    statistic: float
    degrees: int
    excess: float
    each: np.ndarray[tuple[int], np.dtype[np.float64]] = field(compare=False)
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]] = field(compare=False)
    hidden: int = 0

    @property
    def ratio(self) -> float:
        """Estimated ratio of added to declared noise; NaN without degrees of freedom."""
        if self.degrees == 0:
            return float("nan")
        return sqrt(max(0.0, self.statistic - self.excess) / self.degrees)


#: What the adversary knows about the contribution of real records.
Known: TypeAlias = Population | Estimated | Drawn


class Residuals(Observer):
    """Invert each update with the declared parameters and measure its residual.

    r_t = (noisy sum behind the step to theta_t) - (expected clipped sum at theta_{t-1}): in a run as declared, noise
    plus drawn canaries plus the deviation of the drawn records from their mean. Subclasses override :meth:`seen`.

    Attributes:
        log: Update statistics for conformance, after :meth:`keep_log`.
        squares: ||r_t||^2 in squared clip norms, (steps,) float64.
        spread: Expected contribution of sampling of real records to ``squares``.
        rounding: Bound on the rounding error of ||r_t|| in clip norms.
        expected: The same bound from the models before the step.
        steps: Number of observed updates. Updates beyond the declared number are counted but not measured.
        looked: Mask (steps,) of the measured steps; other entries stay 0.
    """

    log: ResidualLog | None = None
    directions: Directions | None = None
    populations: SharedPopulations | None = None

    squares: SyncedAttribute[Tensor] = SyncedAttribute()
    spread: SyncedAttribute[Tensor] = SyncedAttribute()
    rounding: SyncedAttribute[Tensor] = SyncedAttribute()
    expected: SyncedAttribute[Tensor] = SyncedAttribute()

    #: Names of the tensors in a checkpoint.
    kept: tuple[str, ...] = ("squares", "spread", "rounding", "expected")

    def __init__(
        self,
        job: TrainingJob,
        planted: int | None = None,
        looks: int | None = None,
        *,
        drawn: bool = False,
        sample: Sample | None = None,
    ) -> None:
        if planted is None:
            planted = job.canaries.count if job.canaries is not None else 0
        self.schedule = Schedule.of(job.phases, len(job.x) + planted)
        self._phases = iter(self.schedule)
        # Copied, because other backends may train the module in place or attach hooks.
        self.model = FlatModel(copy.deepcopy(job.model), device=job.device)
        self.x, self.y = rows_on(job.x, job.y, job.device)
        update = update_of(job.options, job.expected_batch_size, self.schedule.total)
        if not isinstance(update, Invertible):
            raise ValueError(
                f"updates by {type(update).__name__} cannot be inverted; residuals require sgd or momentum"
            )
        self._update = update
        self._previous: Tensor | None = None
        self._estimated: Tensor | None = None
        self._batch: Tensor | None = None
        self._knows_drawn = drawn
        # A sample of all records is exact, not an estimate.
        self._sample = sample if sample is not None and sample.count < len(self.x) else None
        total = self.schedule.total
        self.looked = torch.from_numpy(looked(total, looks))
        self.steps = 0
        self.transfers = TransferQueue()
        self.squares = torch.zeros(total, dtype=torch.float64)
        self.spread = torch.zeros(total, dtype=torch.float64)
        self.rounding = torch.zeros(total, dtype=torch.float64)
        self.expected = torch.zeros(total, dtype=torch.float64)

    @property
    def previous(self) -> Tensor | None:
        return self._previous

    def keep_log(self, job: TrainingJob) -> None:
        """Also collect update statistics for conformance. ``job`` includes the canaries."""
        self.log = ResidualLog(job, self.model, len(self.x), self.directions, self.looked.numpy())

    def seen(self, step: int, phase: ScheduledPhase, previous: Tensor, residual: Tensor, known: Known) -> None:
        """Process one step's residual (P,) in clip norms, given the real records' contribution at ``previous`` (P,)."""

    def sampled(self, step: int, indices: Tensor) -> None:
        if self._knows_drawn:
            self._batch = indices[indices < len(self.x)]

    def released(self, step: int, state: Tensor) -> None:
        if step != (0 if self._previous is None else self.steps + 1):
            raise ValueError(f"models must be released step by step: step {step} came after step {self.steps}")
        previous, self._previous = self._previous, state.clone()
        if previous is None:
            return
        self.steps = step
        phase = next(self._phases, None)
        if phase is None:
            return
        recovered = self._update.invert(previous, state)
        if self.looked[step - 1]:
            with full_precision(state.device):
                self._measure(step, phase, previous, recovered)

    def _measure(self, step: int, phase: ScheduledPhase, previous: Tensor, recovered: RecoveredUpdate) -> None:
        known: Known
        direction: Tensor | None = None
        if self._knows_drawn:
            if self._batch is None:
                raise ValueError(f"the batch of step {step} must be reported before its model is released")
            known, self._batch = drawn(self.model, previous, self.x, self.y, self._batch, phase.clip), None
        elif self._sample is not None:
            known = self._estimate(step, phase, previous, self._sample, 0)
            if self.log is not None:
                # Expected direction of the update, independent of the step's sample: an earlier or another estimate.
                direction, self._estimated = self._estimated, known.sum
                if direction is None or step == 1 or not self.looked[step - 2]:
                    direction = self._estimate(step, phase, previous, self._sample, 1).sum
        elif self.populations is None:
            most = phase.sampler.most if isinstance(phase.sampler, PoissonUsers) else None
            known = population(self.model, previous, self.x, self.y, phase.clip, most)
        else:
            known = self.populations.of(self, previous, phase.clip)
        residual = (recovered.noisy - known.mean(phase.sampler)) / phase.clip_norm
        square = torch.linalg.vector_norm(residual, dtype=torch.float64) ** 2
        spread = known.spread(phase.sampler) / phase.clip_norm**2
        rounding, expected = recovered.rounding / phase.clip_norm, recovered.expected / phase.clip_norm
        self.transfers.add(self._keep, step, square, spread, rounding, expected)
        self.seen(step, phase, previous, residual, known)
        if self.log is not None:
            self.log.add(step, previous, recovered, known, direction)

    def _estimate(self, step: int, phase: ScheduledPhase, previous: Tensor, sample: Sample, number: int) -> Estimated:
        places = sample.at(step, len(self.x), number)
        return estimated(self.model, previous, self.x, self.y, places, phase.clip, phase.clip_norm)

    def _keep(
        self, step: int, square: Array, spread: Array | float, rounding: Array | float, expected: Array | float
    ) -> None:
        self.squares[step - 1] = float(square)
        self.spread[step - 1] = float(spread)
        self.rounding[step - 1] = float(rounding)
        self.expected[step - 1] = float(expected)

    def noise_scale(self) -> NoiseScale:
        """Noise over steps that declare noise."""
        return self._noise_scale(torch.zeros_like(self.squares), self.model.size)

    def _noise_scale(self, inside: Tensor, free: int) -> NoiseScale:
        """Noise in ``free`` directions; ``inside`` (steps,) is the part of ``squares`` in the others."""
        kept = min(self.steps, self.schedule.total)
        gaussian = [phase.noise_multiplier if phase.noise == "gaussian" else 0.0 for phase in self.schedule]
        sigma = torch.tensor(gaussian, dtype=torch.float64)[:kept]
        noisy, resolvable = (sigma.square() > 0) & self.looked[:kept], self.resolvable[:kept]
        at = noisy & resolvable
        variance = sigma[at] ** 2
        outside = (self.squares[:kept] - inside[:kept]).clamp_min(0.0)
        each = (outside.sqrt() + self.rounding[:kept]).square()[at] / variance
        # Sampling contributes to these directions in proportion to their number, over the random choice of directions.
        share = free / self.model.size
        return NoiseScale(
            statistic=float(each.sum()),
            degrees=free * len(each),
            excess=float((share * self.spread[:kept][at] / variance).sum()),
            each=each.numpy(),
            numbers=1 + at.nonzero().squeeze(1).numpy(),
            hidden=int((noisy & ~resolvable).sum()) if free else 0,
        )

    @property
    def resolvable(self) -> Tensor:
        """Mask (steps,) of steps whose declared noise exceeds rounding. Determined before each step."""
        sigma = torch.tensor([phase.noise_multiplier for phase in self.schedule], dtype=torch.float64)
        return (self.expected <= MAX_ROUNDING * sqrt(self.model.size) * sigma) | (sigma.square() == 0.0)

    def state(self) -> Memory:
        remembered = {f"update.{name}": value for name, value in self._update.state().items()}
        kept = {name: getattr(self, name) for name in self.kept}
        if self.log is not None:
            remembered |= {f"log.{name}": value for name, value in self.log.state().items()}
        last = tensors(previous=self._previous, estimated=self._estimated)
        return {**last, **tensors(**kept), **remembered, "steps": np.array(self.steps)}

    def restore(self, state: Memory) -> None:
        self.transfers.clear()
        self._update.restore(part(state, "update"))
        if self.log is not None:
            self.log.restore(part(state, "log"))
        self.steps = int(state.get("steps", 0))
        self._phases = islice(iter(self.schedule), self.steps, None)
        previous, last = tensor(state, "previous"), tensor(state, "estimated")
        self._previous = None if previous is None else previous.to(self.x.device)
        self._estimated = None if last is None else last.to(self.x.device)
        for name in self.kept:
            current: Tensor = getattr(self, name)
            found = tensor(state, name)
            setattr(self, name, torch.zeros_like(current) if found is None else found.to(current))
