"""Residuals: each released update minus its expectation, for an adversary who knows the real records."""

import copy
from collections.abc import Sequence
from itertools import islice
from math import sqrt

import torch
from torch import Tensor, nn

from dpspec.contract.attacks import Directions
from dpspec.contract.providers import Observer, TrainingJob
from dpspec.stats.conformance import sampling
from dpspec.stats.conformance.evidence import OutsideNoise, looked, number
from dpspec.training.adaptive_clipping import unclipped
from dpspec.training.device import Array, Number, SyncedAttribute, TransferQueue, float_on_cpu, full_precision, send
from dpspec.training.device import tensors as rows_on
from dpspec.training.gradients import memory
from dpspec.training.gradients.persample import Clipper, FlatModel, clipper
from dpspec.training.gradients.stacked_models import StackedModel, tiles
from dpspec.training.loop.checkpoint import Memory, Remembering
from dpspec.training.loop.contributions import Drawn, Estimated, Population, Sample, estimated, population
from dpspec.training.loop.native import Schedule, ScheduledPhase
from dpspec.training.loop.optimizers import RecoveredUpdate, inversion_of
from dpspec.training.measure.update_statistics import MAX_ROUNDING, ResidualLog


class Residuals(Remembering, Observer):
    """Invert each update with the declared parameters and measure its residual.

    r_t = (noisy sum behind the step to theta_t) - (expected clipped sum at theta_{t-1}): in a run as declared, noise
    plus drawn canaries plus the deviation of the drawn records from their mean. Subclasses override :meth:`seen`.

    Attributes:
        log: Update statistics for conformance, after :meth:`keep_log`.
        squares: ||r_t||^2 in squared clip norms, (steps,) float64.
        spread: Expected contribution of sampling of real records to ``squares``.
        rounding: Bound on the rounding error of ||r_t|| in clip norms.
        expected: The same bound from the models before the step.
        counts: Noisy counts of adaptive clipping minus the expected count of the real records, (steps,).
        steps: Number of observed updates. Updates beyond the declared number are counted but not measured.
        looked: Mask (steps,) of the measured steps; other entries stay 0.
    """

    log: ResidualLog | None = None
    directions: Directions | None = None
    populations: "SharedPopulations | None" = None

    projections: SyncedAttribute[Tensor] = SyncedAttribute()
    squares: SyncedAttribute[Tensor] = SyncedAttribute()
    spread: SyncedAttribute[Tensor] = SyncedAttribute()
    rounding: SyncedAttribute[Tensor] = SyncedAttribute()
    expected: SyncedAttribute[Tensor] = SyncedAttribute()
    counts: SyncedAttribute[Tensor] = SyncedAttribute()

    kept: tuple[str, ...] = (
        *("squares", "spread", "rounding", "expected", "counts", "steps"),
        *("previous", "_estimated", "_update", "log"),
    )

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
        self.model = FlatModel(copy.deepcopy(job.model), device=job.device, loss=job.loss)
        self.x, self.y = rows_on(job.x, job.y, job.device)
        self._update = inversion_of(job.options, job.expected_batch_size, self.schedule.total)
        self.previous: Tensor | None = None
        self._estimated: Tensor | None = None
        self._batch: Tensor | None = None
        self._count: tuple[float, float] | None = None
        self._knows_drawn = drawn
        # A sample of all records is exact, not an estimate.
        self._sample = sample if sample is not None and sample.count < len(self.x) else None
        total = self.schedule.total
        self.looked = torch.from_numpy(looked(total, looks))
        self.steps = 0
        self.transfers = TransferQueue()
        self.projections = torch.zeros(total, 0)
        of_steps = torch.zeros(5, total, dtype=torch.float64)
        self.squares, self.spread, self.rounding, self.expected, self.counts = of_steps

    def keep_log(self, job: TrainingJob) -> None:
        """Also collect update statistics for conformance. ``job`` includes the canaries."""
        self.log = ResidualLog(job, self.model, len(self.x), self.directions, self.looked.numpy())

    def seen(self, step: int, phase: ScheduledPhase, previous: Tensor, residual: Tensor, real: Population) -> None:
        """Process one step's residual (P,) in clip norms, given the ``real`` records' contribution at ``previous``."""

    def at_its_clip_norm(self, phase: ScheduledPhase) -> ScheduledPhase:
        """The phase with the reported clip norm of the step, without a report the declared one."""
        return phase if self._count is None else phase.at(self._count[0])

    def counted(self, step: int, clip_norm: float, count: float, noise: float) -> None:
        self._count = clip_norm, count

    def sampled(self, step: int, indices: Tensor) -> None:
        if self._knows_drawn:
            self._batch = indices[indices < len(self.x)]

    def released(self, step: int, state: Tensor) -> None:
        if step != (0 if self.previous is None else self.steps + 1):
            raise ValueError(f"models must be released step by step: step {step} came after step {self.steps}")
        previous, self.previous = self.previous, state.clone()
        if previous is None:
            return
        previous = previous.to(state.device)  # restored on the CPU
        self.steps = step
        phase = next(self._phases, None)
        if phase is None:
            return
        recovered = self._update.invert(previous, state)
        if self.looked[step - 1]:
            with full_precision(state.device):
                self._measure(step, self.at_its_clip_norm(phase), previous, recovered)

    def _measure(self, step: int, phase: ScheduledPhase, previous: Tensor, recovered: RecoveredUpdate) -> None:
        contribution: Population
        records = len(self.x)
        direction: Tensor | None = None
        if self._knows_drawn:
            if self._batch is None:
                raise ValueError(f"the batch of step {step} must be reported before its model is released")
            rows, self._batch = send(self._batch, self.x.device), None
            clipped, records = self.model.clipped_sum(previous, self.x[rows], self.y[rows], phase.clip), len(rows)
            contribution = Drawn(clipped.sum, unclipped=float_on_cpu(unclipped(clipped.norms, phase.clip_norm)))
        elif self._sample is not None:
            contribution = self._estimate(step, phase, previous, self._sample, 0)
            if self.log is not None:
                # Expected direction of the update, independent of the step's sample: an earlier or another estimate.
                direction, self._estimated = self._estimated, contribution.sum
                if direction is not None and step > 1 and self.looked[step - 2]:
                    direction = direction.to(previous.device)
                else:
                    direction = self._estimate(step, phase, previous, self._sample, 1).sum
        elif self.populations is None:
            most = getattr(phase.sampler, "records_per_user", None)
            contribution = population(self.model, previous, self.x, self.y, phase.clip, most)
        else:
            contribution = self.populations.of(self, previous, phase)
        residual = (recovered.noisy - contribution.mean(phase.sampler)) / phase.clip_norm
        square = torch.linalg.vector_norm(residual, dtype=torch.float64) ** 2
        spread = contribution.spread(phase.sampler) / phase.clip_norm**2
        rounding, expected = recovered.rounding / phase.clip_norm, recovered.expected / phase.clip_norm
        beyond: Number = 0.0
        if phase.adaptive is not None and self._count is not None:
            share = 1.0 if self._knows_drawn else phase.sampler.inclusion
            beyond = self._count[1] - share * (contribution.unclipped + phase.adaptive.count(0, records))
        self.transfers.add(self._keep, step, square, spread, rounding, expected, beyond)
        self.seen(step, phase, previous, residual, contribution)
        if self.log is not None:
            self.log.add(step, phase, previous, recovered, contribution, direction)

    def _estimate(self, step: int, phase: ScheduledPhase, previous: Tensor, sample: Sample, number: int) -> Estimated:
        sampled_records = sample.at(step, len(self.x), number)
        return estimated(self.model, previous, self.x, self.y, sampled_records, phase.clip, phase.clip_norm)

    def _keep(self, step: int, *values: Array | float) -> None:
        statistics = self.squares, self.spread, self.rounding, self.expected, self.counts
        for statistic, value in zip(statistics, values, strict=True):
            statistic[step - 1] = float(value)

    def noise_scale(self) -> OutsideNoise:
        """Noise of steps that declare Gaussian noise, in the directions that no canary uses.

        The sum over steps of (||residual|| + rounding bound)^2 / variance stochastically dominates chi-square(degrees)
        with the declared noise: sampling only adds to it, and rounding is bounded.
        """
        steps, free = min(self.steps, self.schedule.total), self.model.size
        along = self.projections.double()  # without columns if no observer projects the residuals
        free -= along.shape[1]
        squares = (self.squares[:steps] - along.square().sum(1)[:steps]).clamp_min(0.0)
        gaussian = [phase.noise_multiplier if phase.noise == "gaussian" else 0.0 for phase in self.schedule]
        sigma = torch.tensor(gaussian, dtype=torch.float64)[:steps]
        noisy, resolvable = (sigma.square() > 0) & self.looked[:steps], self.resolvable[:steps]
        measured = noisy & resolvable
        scaled_squares = (squares.sqrt() + self.rounding[:steps]).square()[measured] / sigma[measured] ** 2
        degrees = free * len(scaled_squares)
        return OutsideNoise(
            statistic=number(float(scaled_squares.sum())),
            degrees=degrees,
            hidden=int((noisy & ~resolvable).sum()) if free else 0,
            each=sampling.summary(scaled_squares.numpy(), 1 + measured.nonzero().squeeze(1).numpy(), free)
            if degrees
            else None,
        )

    @property
    def resolvable(self) -> Tensor:
        """Mask (steps,) of steps whose declared noise exceeds rounding. Determined before each step."""
        sigma = torch.tensor([phase.noise_multiplier for phase in self.schedule], dtype=torch.float64)
        return (self.expected <= MAX_ROUNDING * sqrt(self.model.size) * sigma) | (sigma.square() == 0.0)

    def restore(self, state: Memory) -> None:
        super().restore(state)
        self._phases = islice(iter(self.schedule), self.steps, None)


class SharedPopulations:
    """Compute the populations of all watchers at the same step in one batch, when the first requests its own."""

    def __init__(self, watchers: Sequence[Residuals], module: nn.Module) -> None:
        first = watchers[0]
        self._watchers = tuple(watchers)
        self._x, self._y = first.x, first.y
        self._model = StackedModel(module, self._x, self._y, first.model.loss)
        self._ready: dict[int, tuple[Tensor, Population]] = {}
        self._most: int | None = None
        for watcher in watchers:
            watcher.x, watcher.y, watcher.populations = self._x, self._y, self

    def of(self, watcher: Residuals, state: Tensor, phase: ScheduledPhase) -> Population:
        """The population at ``state`` (P,), clipped by the watcher's ``phase``; others clip by their own clip norms."""
        ready_state, population = self._ready.pop(id(watcher), (None, None))
        if ready_state is state and population is not None:
            return population
        behind = watcher.steps - 1
        waiting = [w for w in self._watchers if w is not watcher and w.steps == behind and w.previous is not None]
        states = [state, *(w.previous for w in waiting if w.previous is not None)]
        clips = [clipper(of_run.clip) for of_run in (phase, *(w.at_its_clip_norm(phase) for w in waiting))]
        first, *populations = self._all(torch.stack(states), clips)
        self._ready = {id(w): (s, p) for w, s, p in zip(waiting, states[1:], populations, strict=True)}
        return first

    def _all(self, states: Tensor, clips: Sequence[Clipper]) -> list[Population]:
        how, runs, records = clips[0], len(states), len(self._x)
        clip_norms = torch.tensor([clip.clip_norm for clip in clips], dtype=torch.float64, device=states.device)

        def added(chunk: int) -> tuple[Tensor, Tensor, Tensor]:
            sums = torch.zeros_like(states)
            squares, shorter = torch.zeros(2, runs, dtype=torch.float64, device=states.device)
            for run_range, record_range in tiles(runs, records, chunk):
                run_count = len(states[run_range])
                x, y = (rows[record_range].expand(run_count, -1, *rows.shape[1:]) for rows in (self._x, self._y))
                inside = torch.ones(x.shape[:2], dtype=torch.bool, device=states.device)
                bounds = clip_norms[run_range]
                norms = self._model.add_clipped(
                    sums[run_range], states[run_range], x, y, inside, how, bounds if len(set(clips)) > 1 else None
                )
                squares[run_range] += norms.square().sum(1)
                shorter[run_range] += unclipped(norms, bounds.unsqueeze(1))
            return sums, squares, shorter

        (sums, squares, shorter), self._most = memory.halving(added, self._model.chunk(how), self._most)
        of_runs = zip(sums, squares, shorter, strict=True)
        return [Population(total, float_on_cpu(q), unclipped=float_on_cpu(n)) for total, q, n in of_runs]
