"""What real records add to a step, for an adversary who knows the data: on average, estimated, or by who was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.training.gradients import memory, users
from dpspec.training.gradients.clipping import Clip, clipper
from dpspec.training.gradients.contributions import clipped_sum
from dpspec.training.gradients.fetching import Number, at_hand, send
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.gradients.stacked_models import StackedModel, tiles
from dpspec.training.loop.samplers import Sampler, covariance


@dataclass(frozen=True)
class Population:
    """The clipped gradients of all real records at one model: their ``sum`` (P,), and the sum of squared norms.

    Of users, what each adds on average over the choice of their records, and the mean of its squared norm; ``within``
    is at least the sum of the variances that this choice leaves, 0 where there is none.
    """

    sum: Tensor
    squares: Number
    within: float = 0.0

    def mean(self, sampler: Sampler, planted: Tensor | None = None) -> Tensor:
        """The expected clipped sum of a batch, (P,): inclusion probability times ``sum`` and that of ``planted``."""
        return sampler.inclusion * (self.sum if planted is None else self.sum + planted)

    def spread(self, sampler: Sampler) -> Number:
        """The expected squared distance of a batch's clipped sum from its mean, planted records left out.

        With q the inclusion and c the covariance of two records' inclusions (0 for Poisson batches):
        (q (1 - q) - c) sum ||g||^2 + c ||sum g||^2, where planted records count in c with g = 0. Of users, whose
        gradients G are random, q E||G||^2 - q^2 ||E G||^2 each, which is q (1 - q) E||G||^2 + q^2 Var G.
        """
        q, c = sampler.inclusion, covariance(sampler)
        if c == 0.0:
            return q * (1.0 - q) * self.squares + q * q * self.within
        length = at_hand(torch.linalg.vector_norm(self.sum, dtype=torch.float64))
        return (q * (1.0 - q) - c) * self.squares + c * length**2


@dataclass(frozen=True)
class Drawn:
    """The clipped gradients of the real records that a step drew, for who knows these: ``sum`` (P,), and no spread."""

    sum: Tensor
    squares: float = 0.0
    within: float = 0.0

    def mean(self, sampler: Sampler, planted: Tensor | None = None) -> Tensor:
        """The sum itself, (P,); of ``planted`` records, whose draws are not known, what they add on average."""
        return self.sum if planted is None else self.sum + sampler.inclusion * planted

    def spread(self, sampler: Sampler) -> float:
        """Nothing is left to chance."""
        return 0.0


@dataclass(frozen=True)
class Sample:
    """Which real records stand for all of them: ``count`` at each step, drawn anew, apart from everything else.

    seed: at least 0, used for nothing else.
    """

    count: int
    seed: int

    def at(self, step: int, records: int, number: int = 0) -> Tensor:
        """Their places (count,) among ``records`` at a step, without replacement and ascending.

        number: which of the samples of that step, all drawn apart from each other.
        """
        drawn = np.random.default_rng((self.seed, step, number)).choice(records, self.count, replace=False)
        return torch.from_numpy(np.sort(drawn))


@dataclass(frozen=True)
class Estimated:
    """What all n real records add on average, by s of them that were drawn without replacement, ``places`` (s,).

    ``sum`` (P,) is n / s times that of their clipped gradients, and ``sampled`` the sum of their squared norms. What a
    step adds besides noise has, along any one direction, at most the variance

        q (1 - q) squares + q^2 within,  squares = n C^2,  within = n^2 C^2 / s,  C the clip norm:

    the batch's and the estimate's, sum ||g||^2 being at most n C^2. While s is at least q n nothing that is drawn adds
    more than one clip norm, so that tests of martingales (Freedman's, with increments up to 1) hold with this variance
    as they do with a batch's: a sum w sum_S <g, u>, w = q n / s, has no larger exponential moments than one drawn with
    replacement (Hoeffding 1963, theorem 4), whose increments w <g_I, u> are at most w <= 1 and have second moments of
    w^2 mean <g, u>^2 (Bennett's inequality).
    """

    sum: Tensor
    sampled: Number
    places: Tensor
    records: int
    clip_norm: float

    @property
    def factor(self) -> float:
        """How many records each of the sample stands for."""
        return self.records / len(self.places)

    @property
    def squares(self) -> float:
        """The most that squared norms of all records can sum to."""
        return self.records * self.clip_norm**2

    @property
    def within(self) -> float:
        """At most the variance of ``sum`` along any one direction."""
        return self.factor * self.squares

    def mean(self, sampler: Sampler, planted: Tensor | None = None) -> Tensor:
        """As of a population, without bias."""
        return sampler.inclusion * (self.sum if planted is None else self.sum + planted)

    def spread(self, sampler: Sampler) -> Number:
        """The expected squared distance of a Poisson batch's clipped sum from ``mean``, itself without bias.

        q (1 - q) n/s sum_S ||g||^2 of the batch, and q^2 n (n - s) / (s (s - 1)) (sum_S ||g||^2 - ||sum_S g||^2 / s) of
        the estimate.
        """
        q, n, s = sampler.inclusion, self.records, len(self.places)
        length = at_hand(torch.linalg.vector_norm(self.sum, dtype=torch.float64)) / self.factor
        scatter = (self.sampled - length**2 / s) / (s - 1)
        return q * (1.0 - q) * self.factor * self.sampled + q * q * self.factor * (n - s) * scatter


def population(
    model: FlatModel, state: Tensor, x: Tensor, y: Tensor, clip: Clip, records_per_user: int | None = None
) -> Population:
    """Clip the gradients of all records ``x`` (n, ...), ``y`` (n,) at ``state`` (P,), in chunks; of users ``x``
    (n, k, ...), ``y`` (n, k) the mean gradients of all choices of ``records_per_user`` of their records."""
    if records_per_user is not None:
        return _of_users(model, state, x, y, clip, records_per_user)
    clipped = clipped_sum(model, state, x, y, clip)
    return Population(clipped.sum, at_hand(clipped.norms.square().sum()))


def drawn(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, indices: Tensor, clip: Clip) -> Drawn:
    """Clip the gradients of the records ``indices`` (b,) of ``x``, ``y`` at ``state`` (P,)."""
    at = send(indices, x.device)
    return Drawn(clipped_sum(model, state, x[at], y[at], clip).sum)


def estimated(
    model: FlatModel, state: Tensor, x: Tensor, y: Tensor, places: Tensor, clip: Clip, clip_norm: float
) -> Estimated:
    """Clip the gradients of at least two records ``places`` (s,) of ``x`` (n, ...), ``y`` (n,) at ``state`` (P,)."""
    at = send(places, x.device)
    clipped = model.clipped_sum(state, x[at], y[at], clip)
    found = Estimated(clipped.sum, at_hand(clipped.norms.square().sum()), places, len(x), clip_norm)
    return replace(found, sum=found.factor * clipped.sum)


def _of_users(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, clip: Clip, most: int) -> Population:
    """Exact: users with equally many records have equally many choices, and all of them are made."""
    total, squares, within = torch.zeros_like(state), 0.0, 0.0
    counts = (y >= 0).sum(1)
    for count in torch.unique(counts).tolist():
        at = counts == count
        choices = users.every_choice(count, most)
        weights = choices.expand(int(at.sum()), *choices.shape)
        clipped = users.clipped_sum(model, state, x[at, :count], y[at, :count], weights, clip)
        total += clipped.sum / len(choices)
        square = float(clipped.norms.square().sum()) / len(choices)
        squares += square
        within += square if len(choices) > 1 else 0.0
    return Population(total, squares, within)


class Asking(Protocol):
    """A watcher of a run, which asks what its real records ``x`` (n, ...), ``y`` (n,) add.

    steps: how many it has seen. previous: the model (P,) after these. populations: whom it asks.
    """

    x: Tensor
    y: Tensor
    steps: int
    populations: Populations | None

    @property
    def previous(self) -> Tensor | None:
        """None before the first model."""


class Populations:
    """Computes the population of every watcher whose run is at the same step when the first of them asks.

    Watchers of runs that train one after the other are served one by one.
    """

    def __init__(self, watchers: Sequence[Asking], module: nn.Module) -> None:
        """``watchers`` look at runs on equal real records, of models like ``module``; they share one copy of the rows.

        From here on they ask here.
        """
        first = watchers[0]
        self._watchers = tuple(watchers)
        self._x, self._y = first.x, first.y
        self._model = StackedModel(module, self._x, self._y)
        self._ready: dict[int, tuple[Tensor, Population]] = {}
        self._most: int | None = None
        for watcher in watchers:
            watcher.x, watcher.y, watcher.populations = self._x, self._y, self

    def of(self, watcher: Asking, state: Tensor, clip: Clip) -> Population:
        """The population of ``watcher``, which has just seen the step after ``state`` (P,)."""
        at, population = self._ready.pop(id(watcher), (None, None))
        if at is state and population is not None:
            return population
        waiting = [other for other in self._watchers if _is_a_step_behind(other, watcher)]
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
        return [Population(total, at_hand(square)) for total, square in zip(sums, squares, strict=True)]


def _is_a_step_behind(other: Asking, watcher: Asking) -> bool:
    return other is not watcher and other.steps == watcher.steps - 1 and other.previous is not None
