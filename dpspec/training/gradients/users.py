"""What users add to a step: one gradient each, the mean over some of their records, clipped as a whole.

With g_1, ..., g_n the gradients of a user's records and S a uniformly random set of min(m, n) of them, drawn afresh at
each step and by nobody else's coins, the user adds clip(mean of g_i over S): a vector within the clip norm, however
many records there are. So data sets that differ in all records of a user differ in one contribution, as they do in one
record where records are drawn (user-level sampling of Charles et al. 2024, "Fine-tuning large language models with
user-level differential privacy").

Users are rows (n, k, ...) with labels (n, k), the records of each in front and label -1 behind them.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from dpspec.training.gradients import memory
from dpspec.training.gradients.clipping import Clip, add_clipped, no_norms
from dpspec.training.gradients.persample import ClippedSum, FlatModel


def one_choice(there: Tensor, most: int, source: torch.Generator) -> Tensor:
    """Weights (b, 1, k), float32: 1/s at s = min(most, n) of each user's n records, uniformly chosen, 0 elsewhere.

    there: (b, k) bool on the CPU, which records there are; every user has one.
    """
    keys = torch.rand(there.shape, generator=source, dtype=torch.float64).masked_fill_(~there, 2.0)
    taken = there & (keys.argsort(1).argsort(1) < most)
    return (taken / taken.sum(1, keepdim=True)).float().unsqueeze(1)


def every_choice(count: int, most: int) -> Tensor:
    """Weights (choices, count), float32: all sets of min(most, count) of so many records, 1/s at each member."""
    size = min(most, count)
    chosen = torch.tensor(list(combinations(range(count), size)))
    return torch.zeros(len(chosen), count).scatter_(1, chosen, 1.0 / size)


def clipped_sum(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, weights: Tensor, clip: Clip) -> ClippedSum:
    """The sum (P,) over users ``x`` (b, k, ...), ``y`` (b, k), and over their ``weights`` (b, s, k), of clipped
    weighted sums of their records' gradients at ``state`` (P,); norms (b s,), those of one user after the other.

    A sum is zero where the gradient of one of its records is not finite, as that of a single record is.
    """
    total, norms = torch.zeros_like(state), [no_norms(model.device)]
    pieces, (users, choices, k) = model.layout.unflatten(total), weights.shape
    chunk = memory.chunk_size(4 * model.size * (2 * k + 3 * choices), model.device)
    for some in torch.split(torch.arange(users, device=x.device), chunk):
        weight = weights[some.to(weights.device)].to(model.device)
        used = (weight > 0).any(1)
        rows = state.new_zeros(*used.shape, model.size)
        rows[used] = model.rows(state, x[some][used], y[some][used])
        broken = ~rows.isfinite().all(2)
        means = weight @ rows.masked_fill_(broken.unsqueeze(2), 0.0)
        spoilt = ((weight > 0) & broken.unsqueeze(1)).any(2)
        means.masked_fill_(spoilt.unsqueeze(2), torch.inf)
        norms.append(add_clipped(pieces, model.layout.split(means.flatten(0, 1)), clip))
    return ClippedSum(total, torch.cat(norms))
