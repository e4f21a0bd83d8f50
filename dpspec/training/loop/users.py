"""User-level sampling: each drawn user contributes one clipped mean gradient.

For a user's gradients g_1, ..., g_n and a uniformly random set S of min(m, n) of them, drawn independently at each
step, the user contributes clip(mean of g_i over S). Its norm is at most the clip norm for any number of records.
Datasets that differ in all records of a user differ in one contribution, as for single records under record sampling
(Charles et al. 2024, "Fine-tuning large language models with user-level differential privacy").

Users are rows (n, k, ...) with labels (n, k). A user's records come first; missing ones have label -1.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from dpspec.contract.providers import GradientCanaries
from dpspec.training.gradients import memory
from dpspec.training.gradients.clipping import Clip, add_clipped, no_norms
from dpspec.training.gradients.contributions import RecordsAndCanaries
from dpspec.training.gradients.persample import ClippedSum, FlatModel
from dpspec.training.loop.checkpoint import GeneratorState, Memory
from dpspec.training.seeds import generator


def random_choice_weights(existing: Tensor, most: int, source: torch.Generator) -> Tensor:
    """Draw a uniformly random subset of each user's records.

    Args:
        existing: Mask (b, k) of existing records, bool on the CPU. Every user has at least one.
        most: Maximum number of records per user.
        source: CPU generator.

    Returns:
        Weights (b, 1, k), float32: 1/s at s = min(most, n) of a user's n records, 0 elsewhere.
    """
    keys = torch.rand(existing.shape, generator=source, dtype=torch.float64).masked_fill_(~existing, 2.0)
    taken = existing & (keys.argsort(1).argsort(1) < most)
    return (taken / taken.sum(1, keepdim=True)).float().unsqueeze(1)


def all_choice_weights(count: int, most: int) -> Tensor:
    """Weights (choices, count), float32: one row per subset of min(most, count) records, 1/s at its s members."""
    size = min(most, count)
    chosen = torch.tensor(list(combinations(range(count), size)))
    return torch.zeros(len(chosen), count).scatter_(1, chosen, 1.0 / size)


def clipped_sum(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, weights: Tensor, clip: Clip) -> ClippedSum:
    """Sum clipped weighted means of the users' gradients.

    A mean counts as zero if the gradient of any of its records is not finite.

    Args:
        model: Model with P parameters.
        state: Parameters (P,).
        x: Records (b, k, ...).
        y: Labels (b, k).
        weights: Weights (b, s, k) of s choices per user.
        clip: Clipper or clip norm.

    Returns:
        The sum (P,) over users and choices, and the norms (b s,), grouped by user.
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


class UsersAndCanaries(RecordsAndCanaries):
    """Contributions of n users, followed by ``count`` gradient canaries, which are one contribution each.

    A separate, resumable generator chooses the records of users.
    """

    def __init__(
        self, model: FlatModel, x: Tensor, y: Tensor, canaries: GradientCanaries | None = None, *, most: int, seed: int
    ) -> None:
        """Store the users and canaries.

        Args:
            model: Model with P parameters.
            x: Records (n, k, ...) on the model's device.
            y: Labels (n, k) on the model's device.
            canaries: Inserted gradient canaries.
            most: Maximum number of records per user and step.
            seed: Seed of the choices.
        """
        if y.ndim != 2 or x.shape[:2] != y.shape:
            raise ValueError(f"users must be (users, records, ...) and (users, records), got {x.shape} and {y.shape}")
        if not bool((y >= 0).any(1).all()):
            raise ValueError("every user needs a record")
        super().__init__(model, x, y, canaries)
        self._existing = (y >= 0).cpu()
        self._most, self._seed = most, seed
        self.restore({})

    def state(self) -> Memory:
        """The generator's state."""
        return GeneratorState(self._source).state()

    def restore(self, state: Memory) -> None:
        """Continue the stream of choices, or restart it."""
        self._source = generator(self._seed, "records of users")
        GeneratorState(self._source).restore(state)

    def _real(self, state: Tensor, rows: Tensor, clip_norm: Clip) -> ClippedSum:
        weights = random_choice_weights(self._existing[rows.cpu()], self._most, self._source)
        return clipped_sum(self._model, state, self._x[rows], self._y[rows], weights, clip_norm)
