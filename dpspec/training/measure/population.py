"""What real records add to a step, for an adversary who knows the data: on average, or by who was drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpspec.training.gradients import users
from dpspec.training.gradients.clipping import Clip
from dpspec.training.gradients.fetching import Number, at_hand
from dpspec.training.gradients.persample import FlatModel
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


def population(
    model: FlatModel, state: Tensor, x: Tensor, y: Tensor, clip: Clip, records_per_user: int | None = None
) -> Population:
    """Clip the gradients of all records ``x`` (n, ...), ``y`` (n,) at ``state`` (P,), in chunks; of users ``x``
    (n, k, ...), ``y`` (n, k) the mean gradients of all choices of ``records_per_user`` of their records."""
    if records_per_user is not None:
        return _of_users(model, state, x, y, clip, records_per_user)
    clipped = model.clipped_sum(state, x, y, clip)
    return Population(clipped.sum, at_hand(clipped.norms.square().sum()))


def drawn(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, indices: Tensor, clip: Clip) -> Drawn:
    """Clip the gradients of the records ``indices`` (b,) of ``x``, ``y`` at ``state`` (P,)."""
    at = indices.to(x.device)
    return Drawn(model.clipped_sum(state, x[at], y[at], clip).sum)


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
