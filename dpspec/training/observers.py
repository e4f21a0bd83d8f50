"""What auditors keep of a run: sufficient statistics, step by step, and never whole iterates."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from dpspec.contract.providers import Observer, TrainingJob
from dpspec.training.canaries import SignBlocks
from dpspec.training.expected import population
from dpspec.training.native import tensors, update_of
from dpspec.training.persample import FlatModel
from dpspec.training.schedule import Schedule


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
    """

    statistic: float
    degrees: int
    excess: float

    @property
    def ratio(self) -> float:
        """Estimate of (noise that was added) / (noise that was declared); nan without degrees of freedom."""
        if self.degrees == 0:
            return float("nan")
        return sqrt(max(0.0, self.statistic - self.excess) / self.degrees)


class ProjectionObserver(Observer):
    """Undoes each update and projects what is left, by the declared parameters alone.

    From consecutive models: r_t = (theta_{t-1} - theta_t) / scale - (expected clipped sum at theta_{t-1}), where
    scale is learning_rate / divisor. With everything as declared r_t is the noise, plus the planted canaries that
    the step drew, plus the deviation of the drawn records from their mean.

    projections: (steps, count) float32, the inner products of r_t with the directions, in units of the clip norm.
    squares: (steps,) float64, ||r_t||^2 in units of the squared clip norm.
    spread: (steps,) float64, what sampling of the real records is expected to add to ``squares``.
    rounding: (steps,) float64, a bound on what rounding the parameters can have changed of ||r_t||, in clip norms.
    steps: how many updates were seen; those beyond the declared number are counted and not kept.
    """

    def __init__(self, job: TrainingJob, directions: SignBlocks, planted: int | None = None) -> None:
        """``job`` declares the run; its own observers and canaries' gradients play no part here.

        planted: how many canaries an adversary takes to be there, who must not learn it from their coins (batches of
        a fixed size include each record the less often the more there are); by default as many as there are.
        """
        if planted is None:
            planted = job.canaries.count if job.canaries is not None else 0
        self._schedule = Schedule.of(job.phases, len(job.x) + planted)
        self._phases = iter(self._schedule)
        # A copy: other backends may train the module in place, or hang hooks on it.
        self._model = FlatModel(copy.deepcopy(job.model), device=job.device)
        self._x, self._y = tensors(job.x, job.y, job.device)
        self._scale = update_of(job.options, job.expected_batch_size).scale
        self._directions = directions
        self._previous: Tensor | None = None
        total = self._schedule.total
        self.steps = 0
        self.projections = torch.zeros(total, directions.count, dtype=torch.float32)
        self.squares = torch.zeros(total, dtype=torch.float64)
        self.spread = torch.zeros(total, dtype=torch.float64)
        self.rounding = torch.zeros(total, dtype=torch.float64)

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
        known = population(self._model, previous, self._x, self._y, phase.clip_norm)
        update = previous - state
        residual = (update / self._scale - known.mean(phase.sampler)) / phase.clip_norm
        self.projections[step - 1] = self._directions.project(residual)
        self.squares[step - 1] = torch.linalg.vector_norm(residual, dtype=torch.float64) ** 2
        self.spread[step - 1] = known.spread(phase.sampler) / phase.clip_norm**2
        self.rounding[step - 1] = _rounding(state, update) / (self._scale * phase.clip_norm)

    def noise_scale(self) -> NoiseScale:
        """The noise measured where no canary speaks; steps that declare no noise are left out."""
        kept = min(self.steps, self._schedule.total)
        sigma = torch.tensor([phase.noise_multiplier for phase in self._schedule], dtype=torch.float64)[:kept]
        noisy = sigma > 0
        variance = sigma[noisy] ** 2
        outside = (self.squares[:kept] - self.projections[:kept].double().square().sum(1)).clamp_min(0.0)
        outside = (outside.sqrt() + self.rounding[:kept]).square()[noisy]
        free = self._directions.parameters - self._directions.count
        # Over the random choice of directions, what sampling adds falls outside them in proportion to dimensions.
        share = free / self._directions.parameters
        return NoiseScale(
            statistic=float((outside / variance).sum()),
            degrees=free * int(noisy.sum()),
            excess=float((share * self.spread[:kept][noisy] / variance).sum()),
        )


def _rounding(state: Tensor, update: Tensor) -> float:
    """A bound on the l2 norm of the rounding errors in ``update``: half a unit of ``state``, and a few of its own."""
    lengths = [float(torch.linalg.vector_norm(v, dtype=torch.float64)) for v in (state, update)]
    return 0.5 * torch.finfo(state.dtype).eps * (lengths[0] + 6.0 * lengths[1])


class SamplingLog(Observer):
    """What the backend says it drew.

    inclusions: (records,) int64, in how many batches each record was. sizes: the batch size of each step.
    """

    def __init__(self, records: int) -> None:
        """``records``: real and planted ones together."""
        self.inclusions = torch.zeros(records, dtype=torch.int64)
        self.sizes: list[int] = []

    def sampled(self, step: int, indices: Tensor) -> None:
        """Count the batch; raises ``IndexError`` for a record that does not exist."""
        drawn = indices.to("cpu", torch.int64)
        self.inclusions.index_add_(0, drawn, torch.ones_like(drawn))
        self.sizes.append(len(drawn))


class NoiseLog(Observer):
    """What the backend says it added, as moments.

    count: parameters per step. squares: the squared norm of each step's noise. products: the inner product of each
    step's noise with the step before, which is small where noise is fresh.
    """

    def __init__(self) -> None:
        self.count = 0
        self.squares: list[float] = []
        self.products: list[float] = []
        self._previous: Tensor | None = None

    @property
    def sum_of_squares(self) -> float:
        """Over all steps and parameters."""
        return sum(self.squares)

    def noised(self, step: int, noise: Tensor) -> None:
        """Add one step's noise (parameters,) to the moments."""
        self.count = len(noise)
        self.squares.append(float(torch.linalg.vector_norm(noise, dtype=torch.float64)) ** 2)
        if self._previous is not None:
            self.products.append(float(torch.dot(noise.double(), self._previous.double())))
        self._previous = noise.clone()


class NormLog(Observer):
    """What the backend says the contributions weighed after clipping: the ``largest`` norm of each step, 0 if empty."""

    def __init__(self) -> None:
        self.largest: list[float] = []

    def clipped(self, step: int, norms: Tensor) -> None:
        """Keep the largest of ``norms`` (b,)."""
        self.largest.append(float(norms.max()) if len(norms) else 0.0)
