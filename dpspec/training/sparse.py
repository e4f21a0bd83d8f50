"""Canaries whose gradients are zero nearly everywhere: clipped and summed without ever writing the zeros."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dpspec.contract.providers import GradientCanaries
from dpspec.training import memory
from dpspec.training.clipping import clip_factors, no_norms
from dpspec.training.persample import ClippedSum


@runtime_checkable
class SparseCanaries(GradientCanaries, Protocol):
    """Gradient canaries that also say where they are not zero."""

    def sparse(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates int64 and values float32, (b, s) each, of canary records ``indices`` (b,), before clipping."""


def clipped_sparse_sum(canaries: SparseCanaries, state: Tensor, indices: Tensor, clip_norm: float) -> ClippedSum:
    """sum_i v_i * min(1, clip_norm / ||v_i||) over canary records ``indices`` (b,), in O(b s + P).

    ``state`` (P,) is the model. A gradient that is not finite counts as zero.
    """
    total = torch.zeros_like(state)
    norms = [no_norms(state.device)]
    width = canaries.sparse(indices[:1])[0].shape[1] if len(indices) else 1
    for some in torch.split(indices, memory.chunk_size(24 * width, state.device)):
        coordinates, values = canaries.sparse(some)
        values = values.to(state)
        lengths = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64)
        factors = clip_factors(lengths, clip_norm).to(state)
        clipped = torch.where(factors.unsqueeze(1) > 0, values * factors.unsqueeze(1), 0.0)
        where, what = coordinates.to(state.device).reshape(-1), clipped.reshape(-1)
        if state.is_cuda:  # of the two, this one sums in the same order each time there, the other one on a CPU
            total.index_put_((where,), what, accumulate=True)
        else:
            total.index_add_(0, where, what)
        norms.append(torch.where(lengths.isfinite(), lengths * factors, 0.0))
    return ClippedSum(total, torch.cat(norms))
