"""Contribution of real records to a step, for an adversary who knows them: expected, estimated, or of a known batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.training.device import Number, float_on_cpu, send
from dpspec.training.gradients import memory
from dpspec.training.gradients.clipping import Clip, clipper
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.gradients.stacked_models import StackedModel, tiles
from dpspec.training.loop.contributions import all_choice_weights, clipped_sum, clipped_user_sum
from dpspec.training.loop.samplers import Sampler, covariance


@dataclass(frozen=True)
class Population:
    """Clipped gradients of all real records at one model: ``sum`` (P,), and sum of squared norms.

    For users, the mean contribution over the choice of their records. ``within``: upper bound on the sum of variances
    over this choice; 0 for records.
    """

    sum: Tensor
    squares: Number
    within: float = 0.0

    def mean(self, sampler: Sampler, planted: Tensor | None = None) -> Tensor:
        """Expected clipped sum of a batch (P,): inclusion probability times ``sum`` plus ``planted``."""
        return sampler.inclusion * (self.sum if planted is None else self.sum + planted)

    def spread(self, sampler: Sampler) -> Number:
        """Expected squared distance of a batch's clipped sum from its mean, without canaries.

        With covariance c of two records' inclusions: (q (1 - q) - c) sum ||g||^2 + c ||sum g||^2. For users with random
        G: q E||G||^2 - q^2 ||E G||^2 each, which is q (1 - q) E||G||^2 + q^2 Var G.
        """
        q, c = sampler.inclusion, covariance(sampler)
        if c == 0.0:
            return q * (1.0 - q) * self.squares + q * q * self.within
        length = float_on_cpu(torch.linalg.vector_norm(self.sum, dtype=torch.float64))
        return (q * (1.0 - q) - c) * self.squares + c * length**2


@dataclass(frozen=True)
class Drawn:
    """Clipped gradients of a step's known real records: ``sum`` (P,), without spread."""

    sum: Tensor
    squares: float = 0.0
    within: float = 0.0

    def mean(self, sampler: Sampler, planted: Tensor | None = None) -> Tensor:
        """The sum itself (P,), plus the expected contribution of ``planted`` records, whose draws are unknown."""
        return self.sum if planted is None else self.sum + sampler.inclusion * planted

    def spread(self, sampler: Sampler) -> float:
        return 0.0


@dataclass(frozen=True)
class Sample:
    """Random subsets of ``count`` real records, drawn independently at each step."""

    count: int
    seed: int

    def at(self, step: int, records: int, number: int = 0) -> Tensor:
        """Indices (count,) among ``records`` of the step's sample ``number``, without replacement, ascending."""
        drawn = np.random.default_rng((self.seed, step, number)).choice(records, self.count, replace=False)
        return torch.from_numpy(np.sort(drawn))


@dataclass(frozen=True)
class Estimated:
    """Estimate of the contribution of all n records from s sampled without replacement, ``places`` (s,).

    ``sum`` (P,) is n / s times the sample's clipped sum, and ``sampled`` the sum of its squared norms. Along any
    direction, the variance of a step without noise is at most q (1 - q) squares + q^2 within, with squares = n C^2 and
    within = n^2 C^2 / s for the clip norm C, since sum ||g||^2 <= n C^2. If s >= q n, no draw adds more than one clip
    norm, and Freedman's inequality holds with this variance: a sum w sum_S <g, u>, w = q n / s, has exponential moments
    no larger than with replacement (Hoeffding 1963, theorem 4), with increments w <g_I, u> <= 1 (Bennett).
    """

    sum: Tensor
    sampled: Number
    places: Tensor
    records: int
    clip_norm: float

    @property
    def factor(self) -> float:
        """n / s."""
        return self.records / len(self.places)

    @property
    def squares(self) -> float:
        return self.records * self.clip_norm**2

    @property
    def within(self) -> float:
        return self.factor * self.squares

    def mean(self, sampler: Sampler, planted: Tensor | None = None) -> Tensor:
        return sampler.inclusion * (self.sum if planted is None else self.sum + planted)

    def spread(self, sampler: Sampler) -> Number:
        """Unbiased, for Poisson batches: q (1 - q) n/s sum_S ||g||^2 from the batch, and from the estimate
        q^2 n (n - s) / (s (s - 1)) (sum_S ||g||^2 - ||sum_S g||^2 / s).
        """
        q, n, s = sampler.inclusion, self.records, len(self.places)
        length = float_on_cpu(torch.linalg.vector_norm(self.sum, dtype=torch.float64)) / self.factor
        scatter = (self.sampled - length**2 / s) / (s - 1)
        return q * (1.0 - q) * self.factor * self.sampled + q * q * self.factor * (n - s) * scatter


def population(
    model: FlatModel, state: Tensor, x: Tensor, y: Tensor, clip: Clip, records_per_user: int | None = None
) -> Population:
    """Sum the clipped gradients at ``state`` (P,) of all real records (n, ...), or users (n, k, ...), in chunks.

    For users, average over all choices of ``records_per_user`` records.
    """
    if records_per_user is None:
        clipped = clipped_sum(model, state, x, y, clip)
        return Population(clipped.sum, float_on_cpu(clipped.norms.square().sum()))
    total, squares, within = torch.zeros_like(state), 0.0, 0.0
    counts = (y >= 0).sum(1)
    for count in torch.unique(counts).tolist():
        at = counts == count
        choices = all_choice_weights(count, records_per_user)
        weights = choices.expand(int(at.sum()), *choices.shape)
        clipped = clipped_user_sum(model, state, x[at, :count], y[at, :count], weights, clip)
        total += clipped.sum / len(choices)
        square = float(clipped.norms.square().sum()) / len(choices)
        squares += square
        within += square if len(choices) > 1 else 0.0
    return Population(total, squares, within)


def drawn(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, indices: Tensor, clip: Clip) -> Drawn:
    at = send(indices, x.device)
    return Drawn(clipped_sum(model, state, x[at], y[at], clip).sum)


def estimated(
    model: FlatModel, state: Tensor, x: Tensor, y: Tensor, places: Tensor, clip: Clip, clip_norm: float
) -> Estimated:
    """Estimate from at least two records ``places`` (s,) of ``x`` (n, ...), ``y`` (n,) at ``state`` (P,)."""
    at = send(places, x.device)
    clipped = model.clipped_sum(state, x[at], y[at], clip)
    found = Estimated(clipped.sum, float_on_cpu(clipped.norms.square().sum()), places, len(x), clip_norm)
    return replace(found, sum=found.factor * clipped.sum)


class PopulationWatcher(Protocol):
    """Observer of a run that needs the contribution of its real records ``x`` (n, ...), ``y`` (n,).

    ``previous`` is the model (P,) after ``steps`` observed steps.
    """

    x: Tensor
    y: Tensor
    steps: int
    populations: SharedPopulations | None

    @property
    def previous(self) -> Tensor | None: ...


class SharedPopulations:
    """Compute the populations of all watchers at the same step in one batch, when the first of them requests its own.

    Watchers of runs that train sequentially are served individually.
    """

    def __init__(self, watchers: Sequence[PopulationWatcher], module: nn.Module) -> None:
        first = watchers[0]
        self._watchers = tuple(watchers)
        self._x, self._y = first.x, first.y
        self._model = StackedModel(module, self._x, self._y)
        self._ready: dict[int, tuple[Tensor, Population]] = {}
        self._most: int | None = None
        for watcher in watchers:
            watcher.x, watcher.y, watcher.populations = self._x, self._y, self

    def of(self, watcher: PopulationWatcher, state: Tensor, clip: Clip) -> Population:
        at, population = self._ready.pop(id(watcher), (None, None))
        if at is state and population is not None:
            return population
        behind = watcher.steps - 1
        waiting = [w for w in self._watchers if w is not watcher and w.steps == behind and w.previous is not None]
        states = [state] + [other.previous for other in waiting if other.previous is not None]
        first, *others = self._all(torch.stack(states), clip)
        self._ready = {id(w): (s, p) for w, s, p in zip(waiting, states[1:], others, strict=True)}
        return first

    def _all(self, states: Tensor, clip: Clip) -> list[Population]:
        how, runs, records = clipper(clip), len(states), len(self._x)

        def added(chunk: int) -> tuple[Tensor, Tensor]:
            sums = torch.zeros_like(states)
            squares = torch.zeros(runs, dtype=torch.float64, device=states.device)
            for at, places in tiles(runs, records, chunk):
                some = len(states[at])
                x, y = (rows[places].expand(some, -1, *rows.shape[1:]) for rows in (self._x, self._y))
                inside = torch.ones(x.shape[:2], dtype=torch.bool, device=states.device)
                norms = self._model.add_clipped(sums[at], states[at], x, y, inside, how)
                squares[at] += norms.square().sum(1)
            return sums, squares

        (sums, squares), self._most = memory.halving(added, self._model.chunk(how), self._most)
        return [Population(total, float_on_cpu(square)) for total, square in zip(sums, squares, strict=True)]
