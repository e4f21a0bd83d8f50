"""What is left of each update once the expected one is taken away: what every measurement from outside starts from."""

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
from dpspec.stats.conformance.evidence.steps import looked
from dpspec.training.device import full_precision
from dpspec.training.device import tensors as rows_on
from dpspec.training.gradients.fetching import Array, Later, Settled
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.checkpoint import Memory, part, tensor, tensors
from dpspec.training.loop.optimizers import Invertible, Undone, update_of
from dpspec.training.loop.samplers import PoissonUsers
from dpspec.training.loop.schedule import Schedule, ScheduledPhase
from dpspec.training.measure.population import (
    Drawn,
    Estimated,
    Population,
    Populations,
    Sample,
    drawn,
    estimated,
    population,
)
from dpspec.training.measure.update_statistics import BEARABLE, ResidualLog


@dataclass(frozen=True)
class NoiseScale:
    """The size of the noise as seen from outside, in the directions that no canary uses.

    statistic: the sum over steps of (||residual|| + what rounding can have taken from it)^2 / deviation^2 in those
        directions.
    degrees: its degrees of freedom. Where the declared noise was added, statistic is at least chi-square(degrees) in
        distribution (what sampling adds only makes it larger, and an update that is lost in the rounding of the
        parameters is allowed for), so that a test for too little noise by its lower tail never errs, whatever the
        data and the learning rate.
    excess: what sampling is expected to add to statistic.
    each: (m,) float64, the parts of statistic by step; numbers: (m,) int64, which steps those are, from 1 on.
    hidden: how many steps are left out because the rounding of the parameters hides their noise.
    """

    statistic: float
    degrees: int
    excess: float
    each: np.ndarray[tuple[int], np.dtype[np.float64]] = field(compare=False)
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]] = field(compare=False)
    hidden: int = 0

    @property
    def ratio(self) -> float:
        """Estimate of (noise that was added) / (noise that was declared); nan without degrees of freedom."""
        if self.degrees == 0:
            return float("nan")
        return sqrt(max(0.0, self.statistic - self.excess) / self.degrees)


#: What is known of what real records add to a step.
Known: TypeAlias = Population | Estimated | Drawn


class Residuals(Observer):
    """Undoes each update, by the declared parameters alone, and measures what is left.

    From consecutive models: r_t = (noisy sum behind the step to theta_t) - (expected clipped sum at theta_{t-1}). Plain
    descent is undone by (theta_{t-1} - theta_t) * divisor / learning_rate; ``optimizers`` says how others are. With
    everything as declared r_t is the noise, plus the planted canaries that the step drew, plus the deviation of the
    drawn records from their mean.

    squares: (steps,) float64, ||r_t||^2 in units of the squared clip norm.
    spread: (steps,) float64, what sampling of the real records is expected to add to ``squares``.
    rounding: (steps,) float64, a bound on what rounding the parameters can have changed of ||r_t||, in clip norms.
    expected: (steps,) float64, what such a bound was before the step, by the models until then.
    steps: how many updates were seen; those beyond the declared number are counted and not kept.
    looked: (steps,) bool, which steps are measured; the others' entries stay 0.

    Subclasses keep more by :meth:`seen`.
    """

    #: What conformance makes of the run, once :meth:`keep_log` was called.
    log: ResidualLog | None = None

    #: The directions that canaries use, where they have some.
    directions: Directions | None = None

    #: Who is asked what the real records add, where the watchers of many runs ask together.
    populations: Populations | None = None

    squares: Settled[Tensor] = Settled()
    spread: Settled[Tensor] = Settled()
    rounding: Settled[Tensor] = Settled()
    expected: Settled[Tensor] = Settled()

    #: The tensors that a checkpoint keeps, by attribute.
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
        """``job`` declares the run; its own observers and canaries' gradients play no part here.

        planted: how many canaries an adversary takes to be there, who must not learn it from their coins (batches of
        a fixed size include each record the less often the more there are); by default as many as there are.
        looks: how many steps to measure, spread evenly over the run; by default all. Each takes the gradients of all
        records, which for small batches is many times what training takes.
        drawn: whether the adversary is told which real records each step drew, whose clipped sum is taken away then
        instead of the expected one: at the price of one more step.
        sample: the real records by which the expected sum is estimated, of Poisson batches; by default all are asked.
        """
        if planted is None:
            planted = job.canaries.count if job.canaries is not None else 0
        self.schedule = Schedule.of(job.phases, len(job.x) + planted)
        self._phases = iter(self.schedule)
        # A copy: other backends may train the module in place, or hang hooks on it.
        self.model = FlatModel(copy.deepcopy(job.model), device=job.device)
        self.x, self.y = rows_on(job.x, job.y, job.device)
        update = update_of(job.options, job.expected_batch_size, self.schedule.total)
        if not isinstance(update, Invertible):
            raise ValueError(f"updates by {type(update).__name__} cannot be undone: residuals need another optimizer")
        self._update = update
        self._previous: Tensor | None = None
        self._estimated: Tensor | None = None
        self._told: Tensor | None = None
        self._knows_drawn = drawn
        # Of all records nothing is left to chance: what they add is no estimate, and its own direction is known.
        self._sample = sample if sample is not None and sample.count < len(self.x) else None
        total = self.schedule.total
        self.looked = torch.from_numpy(looked(total, looks))
        self.steps = 0
        self.later = Later()
        self.squares = torch.zeros(total, dtype=torch.float64)
        self.spread = torch.zeros(total, dtype=torch.float64)
        self.rounding = torch.zeros(total, dtype=torch.float64)
        self.expected = torch.zeros(total, dtype=torch.float64)

    @property
    def previous(self) -> Tensor | None:
        """The model (P,) that was seen last."""
        return self._previous

    def keep_log(self, job: TrainingJob) -> None:
        """Keep what conformance needs as well. ``job`` is the one of this run, its canaries in place."""
        self.log = ResidualLog(job, self.model, len(self.x), self.directions, self.looked.numpy())

    def seen(self, step: int, phase: ScheduledPhase, previous: Tensor, residual: Tensor, known: Known) -> None:
        """One step's residual (P,) in clip norms, and what was known of the real records at ``previous`` (P,)."""

    def sampled(self, step: int, indices: Tensor) -> None:
        """Keep which real records are told to be in the batch, where an adversary knows them."""
        if self._knows_drawn:
            self._told = indices[indices < len(self.x)]

    def released(self, step: int, state: Tensor) -> None:
        """Keep the statistics of the update that led to ``state``; raises ``ValueError`` where a step is missing."""
        if step != (0 if self._previous is None else self.steps + 1):
            raise ValueError(f"models must be released step by step: step {step} came after step {self.steps}")
        previous, self._previous = self._previous, state.clone()
        if previous is None:
            return
        self.steps = step
        phase = next(self._phases, None)
        if phase is None:
            return
        undone = self._update.invert(previous, state)
        if self.looked[step - 1]:
            with full_precision(state.device):
                self._look(step, phase, previous, undone)

    def _look(self, step: int, phase: ScheduledPhase, previous: Tensor, undone: Undone) -> None:
        known: Known
        apart: Tensor | None = None
        if self._knows_drawn:
            if self._told is None:
                raise ValueError(f"which records step {step} drew was not told before its model was released")
            known, self._told = drawn(self.model, previous, self.x, self.y, self._told, phase.clip), None
        elif self._sample is not None:
            known = self._estimate(step, phase, previous, self._sample)
            if self.log is not None:
                apart = self._apart(step, phase, previous, self._sample)
                self._estimated = known.sum
        elif self.populations is None:
            most = phase.sampler.most if isinstance(phase.sampler, PoissonUsers) else None
            known = population(self.model, previous, self.x, self.y, phase.clip, most)
        else:
            known = self.populations.of(self, previous, phase.clip)
        residual = (undone.noisy - known.mean(phase.sampler)) / phase.clip_norm
        square = torch.linalg.vector_norm(residual, dtype=torch.float64) ** 2
        spread = known.spread(phase.sampler) / phase.clip_norm**2
        rounding, expected = undone.rounding / phase.clip_norm, undone.expected / phase.clip_norm
        self.later.add(self._keep, step, square, spread, rounding, expected)
        self.seen(step, phase, previous, residual, known)
        if self.log is not None:
            self.log.add(step, previous, undone, known, apart)

    def _apart(self, step: int, phase: ScheduledPhase, previous: Tensor, sample: Sample) -> Tensor:
        """Which way the update is expected to go, (P,), apart from the step's own sample: the estimate of the step
        before, or, where that was not looked at, one from another sample."""
        earlier, self._estimated = self._estimated, None
        if earlier is not None and step > 1 and self.looked[step - 2]:
            return earlier
        return self._estimate(step, phase, previous, sample, 1).sum

    def _estimate(
        self, step: int, phase: ScheduledPhase, previous: Tensor, sample: Sample, number: int = 0
    ) -> Estimated:
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
        """The noise measured in all directions; steps that declare no noise are left out."""
        return self._noise_scale(torch.zeros_like(self.squares), self.model.size)

    def _noise_scale(self, inside: Tensor, free: int) -> NoiseScale:
        """The noise in ``free`` directions, with ``inside`` (steps,) the part of ``squares`` that is in the others."""
        kept = min(self.steps, self.schedule.total)
        gaussian = [phase.noise_multiplier if phase.noise == "gaussian" else 0.0 for phase in self.schedule]
        sigma = torch.tensor(gaussian, dtype=torch.float64)[:kept]
        noisy, borne = (sigma.square() > 0) & self.looked[:kept], self.borne[:kept]
        at = noisy & borne
        variance = sigma[at] ** 2
        outside = (self.squares[:kept] - inside[:kept]).clamp_min(0.0)
        each = (outside.sqrt() + self.rounding[:kept]).square()[at] / variance
        # Over the random choice of directions, what sampling adds falls outside them in proportion to dimensions.
        share = free / self.model.size
        return NoiseScale(
            statistic=float(each.sum()),
            degrees=free * len(each),
            excess=float((share * self.spread[:kept][at] / variance).sum()),
            each=each.numpy(),
            numbers=1 + at.nonzero().squeeze(1).numpy(),
            hidden=int((noisy & ~borne).sum()) if free else 0,
        )

    @property
    def borne(self) -> Tensor:
        """(steps,) bool: rounding leaves something to see of the declared noise. Decided before each step."""
        sigma = torch.tensor([phase.noise_multiplier for phase in self.schedule], dtype=torch.float64)
        return (self.expected <= BEARABLE * sqrt(self.model.size) * sigma) | (sigma.square() == 0.0)

    def state(self) -> Memory:
        """All that was kept, the last model, and what the update remembers."""
        remembered = {f"update.{name}": value for name, value in self._update.state().items()}
        kept = {name: getattr(self, name) for name in self.kept}
        if self.log is not None:
            remembered |= {f"log.{name}": value for name, value in self.log.state().items()}
        last = tensors(previous=self._previous, estimated=self._estimated)
        return {**last, **tensors(**kept), **remembered, "steps": np.array(self.steps)}

    def restore(self, state: Memory) -> None:
        """Go on after the step that was seen last; an empty memory begins anew."""
        self.later.forget()
        self._update.restore(part(state, "update"))
        if self.log is not None:
            self.log.restore(part(state, "log"))
        self.steps = int(state.get("steps", 0))
        self._phases = islice(iter(self.schedule), self.steps, None)
        previous, last = tensor(state, "previous"), tensor(state, "estimated")
        self._previous = None if previous is None else previous.to(self.x.device)
        self._estimated = None if last is None else last.to(self.x.device)
        for name in self.kept:
            mine: Tensor = getattr(self, name)
            found = tensor(state, name)
            setattr(self, name, torch.zeros_like(mine) if found is None else found.to(mine))
