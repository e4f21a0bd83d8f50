"""What a step adds on average over its sampling: known to an adversary who knows the data but not the draw."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpspec.training.gradients.clipping import Clip
from dpspec.training.gradients.fetching import Number, at_hand
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.samplers import Sampler, covariance


@dataclass(frozen=True)
class Population:
    """The clipped gradients of all real records at one model: their ``sum`` (P,), and the sum of squared norms."""

    sum: Tensor
    squares: Number

    def mean(self, sampler: Sampler) -> Tensor:
        """The expected clipped sum of a batch, (P,): inclusion probability times ``sum``."""
        return sampler.inclusion * self.sum

    def spread(self, sampler: Sampler) -> Number:
        """The expected squared distance of a batch's clipped sum from its mean, planted records left out.

        With q the inclusion and c the covariance of two records' inclusions (0 for Poisson batches):
        (q (1 - q) - c) sum ||g||^2 + c ||sum g||^2, where planted records count in c with g = 0.
        """
        q, c = sampler.inclusion, covariance(sampler)
        if c == 0.0:
            return q * (1.0 - q) * self.squares
        length = at_hand(torch.linalg.vector_norm(self.sum, dtype=torch.float64))
        return (q * (1.0 - q) - c) * self.squares + c * length**2


def population(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, clip: Clip) -> Population:
    """Clip the gradients of all records ``x`` (n, ...), ``y`` (n,) at ``state`` (P,), in chunks."""
    clipped = model.clipped_sum(state, x, y, clip)
    return Population(clipped.sum, at_hand(clipped.norms.square().sum()))
