"""What a step adds on average over its sampling: known to an adversary who knows the data but not the draw."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpspec.training.gradients.clipping import Clip
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.samplers import Sampler, exclusive


@dataclass(frozen=True)
class Population:
    """The clipped gradients of all real records at one model: their ``sum`` (P,), and the sum of squared norms."""

    sum: Tensor
    squares: float

    def mean(self, sampler: Sampler) -> Tensor:
        """The expected clipped sum of a batch, (P,): inclusion probability times ``sum``."""
        return sampler.inclusion * self.sum

    def spread(self, sampler: Sampler) -> float:
        """The expected squared distance of a batch's clipped sum from its mean, planted records left out.

        Poisson: q (1 - q) sum ||c||^2. Fixed size B of N records:
        B (N - B) / (N (N - 1)) * (sum ||c||^2 - ||sum c||^2 / N), where planted records count in N with c = 0.
        """
        q = sampler.inclusion
        if not exclusive(sampler):
            return q * (1.0 - q) * self.squares
        n = sampler.records
        if n == 1:
            return 0.0
        length = float(torch.linalg.vector_norm(self.sum, dtype=torch.float64))
        return q * (1.0 - q) * n / (n - 1) * (self.squares - length**2 / n)


def population(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, clip: Clip) -> Population:
    """Clip the gradients of all records ``x`` (n, ...), ``y`` (n,) at ``state`` (P,), in chunks."""
    clipped = model.clipped_sum(state, x, y, clip)
    return Population(clipped.sum, float(clipped.norms.square().sum()))
