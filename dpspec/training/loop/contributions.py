"""The clipped sum of a step, over real records or users and gradient canaries, and its expectation for an adversary.

A drawn user contributes clip(mean of the gradients of min(m, n) random records), so that datasets that differ in all
records of a user differ in one contribution (Charles et al. 2024). Users are rows (n, k, ...) with labels (n, k),
missing records last with label -1.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.providers import GradientCanaries
from dpspec.sampling import SamplingScheme
from dpspec.training.adaptive_clipping import unclipped
from dpspec.training.device import Number, float_on_cpu, generator, send
from dpspec.training.gradients import memory, persample
from dpspec.training.gradients.ghost_calls import add_rows
from dpspec.training.gradients.persample import Clip, ClippedSum, FlatModel, clipper, no_norms
from dpspec.training.loop.checkpoint import Remembering


@runtime_checkable
class SparseCanaries(GradientCanaries, Protocol):
    def sparse(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates, int64, and values, float32, (b, s) each, of canary records ``indices`` (b,) before clipping."""


#: Below this many bytes, free memory is not checked.
_AT_ONCE = 2**20


def clipped_sparse_sum(canaries: SparseCanaries, state: Tensor, indices: Tensor, clip_norm: float) -> ClippedSum:
    """Sum clipped sparse gradients of canaries ``indices`` (b,) in O(b s + P). A non-finite gradient counts as zero."""
    total = torch.zeros_like(state)
    norms = [no_norms(state.device)]
    width = canaries.sparse(indices[:1])[0].shape[1] if len(indices) else 1
    few = 24 * width * len(indices) <= _AT_ONCE  # checking free memory takes longer
    for block in torch.split(indices, len(indices) if few else memory.chunk_size(24 * width, state.device)):
        coordinates, values = canaries.sparse(block)
        values = values.to(state)
        lengths = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64)
        factors = persample.clip_factors(lengths, clip_norm).to(state)
        clipped = torch.where(factors.unsqueeze(1) > 0, values * factors.unsqueeze(1), 0.0)
        add_rows(total, send(coordinates, state.device).reshape(-1), clipped.reshape(-1))
        norms.append(torch.where(lengths.isfinite(), lengths * factors, 0.0))
    return ClippedSum(total, torch.cat(norms))


#: Maximum bytes of rows copied from the dataset at a time.
_COPIED = 64 * 2**20


class RecordsAndCanaries:
    """Contributions of n real records, the rows of ``x``, followed by ``count`` gradient canaries. Both are clipped."""

    def __init__(self, model: FlatModel, x: Tensor, y: Tensor, canaries: GradientCanaries | None = None) -> None:
        self._model = model
        self._x, self._y = x, y
        self._canaries = canaries
        self._chunk = memory.chunk_size(2 * 4 * model.size, model.device)
        self._copied = max(1, _COPIED // max(1, x[:1].nbytes))

    def __call__(self, state: Tensor, indices: Tensor, clip_norm: Clip) -> ClippedSum:
        real = int(torch.searchsorted(indices, len(self._x)))
        records = self._real(state, send(indices[:real], self._model.device), clip_norm)
        if self._canaries is None or real == len(indices):
            return records
        planted = self._planted(self._canaries, state, indices[real:] - len(self._x), clip_norm)
        return ClippedSum(records.sum + planted.sum, torch.cat([records.norms, planted.norms]))

    def _real(self, state: Tensor, rows: Tensor, clip_norm: Clip) -> ClippedSum:
        total, norms = None, []
        for block in torch.split(rows, self._copied):
            clipped = self._model.clipped_sum(state, self._x[block], self._y[block], clip_norm)
            total = clipped.sum if total is None else total.add_(clipped.sum)
            norms.append(clipped.norms)
        assert total is not None  # an empty batch is one empty piece
        return ClippedSum(total, torch.cat(norms))

    def _planted(self, canaries: GradientCanaries, state: Tensor, indices: Tensor, clip_norm: Clip) -> ClippedSum:
        how = clipper(clip_norm)
        if isinstance(canaries, SparseCanaries) and how.is_flat:
            return clipped_sparse_sum(canaries, state, indices, how.clip_norm)
        total, layout = torch.zeros_like(state), self._model.layout
        pieces, norms = layout.unflatten(total), [no_norms(state.device)]
        for block in torch.split(send(indices, state.device), self._chunk):
            rows = canaries.gradients(block).to(state)
            expected_shape = len(block), self._model.size
            if rows.shape != expected_shape:
                raise ValueError(f"canary gradients must have shape {expected_shape}, got {tuple(rows.shape)}")
            norms.append(persample.add_clipped(pieces, layout.split(rows), how))
        return ClippedSum(total, torch.cat(norms))


def random_choice_weights(existing: Tensor, most: int, source: torch.Generator) -> Tensor:
    """Draw a uniformly random subset of at most ``most`` of each user's records; ``existing`` (b, k) is a CPU mask.

    Returns weights (b, 1, k), float32: 1/s at s = min(most, n) of a user's n >= 1 records, 0 elsewhere.
    """
    keys = torch.rand(existing.shape, generator=source, dtype=torch.float64).masked_fill_(~existing, 2.0)
    taken = existing & (keys.argsort(1).argsort(1) < most)
    return (taken / taken.sum(1, keepdim=True)).float().unsqueeze(1)


def all_choice_weights(count: int, most: int) -> Tensor:
    """Weights (choices, count), float32: one row per subset of min(most, count) records, 1/s at its s members."""
    size = min(most, count)
    chosen = torch.tensor(list(combinations(range(count), size)))
    return torch.zeros(len(chosen), count).scatter_(1, chosen, 1.0 / size)


def clipped_user_sum(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, weights: Tensor, clip: Clip) -> ClippedSum:
    """Sum clipped weighted means of the gradients of users ``x`` (b, k, ...), ``y`` (b, k), for s choices per user.

    ``weights`` are (b, s, k). A mean counts as zero if the gradient of any of its records is not finite. Returns the
    sum (P,) over users and choices, and the norms (b s,), grouped by user.
    """
    total, norms = torch.zeros_like(state), [no_norms(model.device)]
    pieces, (users, choices, k) = model.layout.unflatten(total), weights.shape
    chunk = memory.chunk_size(4 * model.size * (2 * k + 3 * choices), model.device)
    for block in torch.split(torch.arange(users, device=x.device), chunk):
        weight = weights[block.to(weights.device)].to(model.device)
        used = (weight > 0).any(1)
        rows = state.new_zeros(*used.shape, model.size)
        rows[used] = model.rows(state, x[block][used], y[block][used])
        broken = ~rows.isfinite().all(2)
        means = weight @ rows.masked_fill_(broken.unsqueeze(2), 0.0)
        spoilt = ((weight > 0) & broken.unsqueeze(1)).any(2)
        means.masked_fill_(spoilt.unsqueeze(2), torch.inf)
        norms.append(persample.add_clipped(pieces, model.layout.split(means.flatten(0, 1)), clip))
    return ClippedSum(total, torch.cat(norms))


class UsersAndCanaries(RecordsAndCanaries, Remembering):
    """Contributions of n users, followed by ``count`` gradient canaries, which are one contribution each.

    A separate, resumable generator chooses the records of users.
    """

    kept = ("_source",)

    def __init__(
        self, model: FlatModel, x: Tensor, y: Tensor, canaries: GradientCanaries | None = None, *, most: int, seed: int
    ) -> None:
        """Store users ``x`` (n, k, ...), ``y`` (n, k); ``most``: maximum number of records per user and step."""
        if y.ndim != 2 or x.shape[:2] != y.shape:
            raise ValueError(f"users must be (users, records, ...) and (users, records), got {x.shape} and {y.shape}")
        if not bool((y >= 0).any(1).all()):
            raise ValueError("every user needs a record")
        super().__init__(model, x, y, canaries)
        self._existing = (y >= 0).cpu()
        self._most, self._source = most, generator(seed, "records of users")

    def _real(self, state: Tensor, rows: Tensor, clip_norm: Clip) -> ClippedSum:
        weights = random_choice_weights(self._existing[rows.cpu()], self._most, self._source)
        return clipped_user_sum(self._model, state, self._x[rows], self._y[rows], weights, clip_norm)


@dataclass(frozen=True)
class Population:
    """Clipped gradients of all real records at one model: ``sum`` (P,), and sum of squared norms.

    For users, the mean contribution over the choice of their records. ``within``: upper bound on the sum of variances
    over this choice; 0 for records. ``unclipped``: number of contributions shorter than the clip norm, of records only.
    """

    sum: Tensor
    squares: Number = 0.0
    within: float = 0.0
    unclipped: Number = 0.0

    def mean(self, sampler: SamplingScheme, planted: Tensor | None = None) -> Tensor:
        """Expected clipped sum of a batch (P,): inclusion probability times ``sum`` plus ``planted``."""
        return sampler.inclusion * (self.sum if planted is None else self.sum + planted)

    def spread(self, sampler: SamplingScheme) -> Number:
        """Expected squared distance of a batch's clipped sum from its mean, without canaries.

        With covariance c of two records' inclusions: (q (1 - q) - c) sum ||g||^2 + c ||sum g||^2. For users with random
        G: q E||G||^2 - q^2 ||E G||^2 each, which is q (1 - q) E||G||^2 + q^2 Var G.
        """
        q, c = sampler.inclusion, sampler.covariance()
        if c == 0.0:
            return q * (1.0 - q) * self.squares + q * q * self.within
        length = float_on_cpu(torch.linalg.vector_norm(self.sum, dtype=torch.float64))
        return (q * (1.0 - q) - c) * self.squares + c * length**2


class Drawn(Population):
    """Clipped gradients of a step's known real records: ``sum`` (P,), without spread."""

    def mean(self, sampler: SamplingScheme, planted: Tensor | None = None) -> Tensor:
        """The sum itself (P,), plus the expected contribution of ``planted`` records, whose draws are unknown."""
        return self.sum if planted is None else self.sum + sampler.inclusion * planted

    def spread(self, sampler: SamplingScheme) -> float:
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


@dataclass(frozen=True, kw_only=True)
class Estimated(Population):
    """Estimate of the contribution of all n records from s sampled without replacement, ``places`` (s,).

    ``sum`` (P,) is ``factor`` = n / s times the sample's clipped sum, and ``sampled`` the sum of its squared norms.
    Along any direction, the variance of a step without noise is at most q (1 - q) squares + q^2 within, with squares =
    n C^2 and within = n^2 C^2 / s for the clip norm C, since sum ||g||^2 <= n C^2. If s >= q n, no draw adds more than
    one clip norm, and Freedman's inequality holds with this variance: a sum w sum_S <g, u>, w = q n / s, has
    exponential moments no larger than with replacement (Hoeffding 1963, theorem 4), with increments w <g_I, u> <= 1
    (Bennett).
    """

    sampled: Number
    places: Tensor
    factor: float

    def spread(self, sampler: SamplingScheme) -> Number:
        """Unbiased, for Poisson batches: q (1 - q) n/s sum_S ||g||^2 from the batch, and from the estimate
        q^2 n (n - s) / (s (s - 1)) (sum_S ||g||^2 - ||sum_S g||^2 / s).
        """
        q, s = sampler.inclusion, len(self.places)
        n = round(self.factor * s)
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
        clipped = model.clipped_sum(state, x, y, clip)
        number = float_on_cpu(unclipped(clipped.norms, clipper(clip).clip_norm))
        return Population(clipped.sum, float_on_cpu(clipped.norms.square().sum()), unclipped=number)
    total, squares, within = torch.zeros_like(state), 0.0, 0.0
    counts = (y >= 0).sum(1)
    for count in torch.unique(counts).tolist():
        with_count = counts == count
        choices = all_choice_weights(count, records_per_user)
        weights = choices.expand(int(with_count.sum()), *choices.shape)
        clipped = clipped_user_sum(model, state, x[with_count, :count], y[with_count, :count], weights, clip)
        total += clipped.sum / len(choices)
        square = float(clipped.norms.square().sum()) / len(choices)
        squares += square
        within += square if len(choices) > 1 else 0.0
    return Population(total, squares, within)


def estimated(
    model: FlatModel, state: Tensor, x: Tensor, y: Tensor, indices: Tensor, clip: Clip, clip_norm: float
) -> Estimated:
    """Estimate from at least two records ``indices`` (s,) of ``x`` (n, ...), ``y`` (n,) at ``state`` (P,)."""
    rows = send(indices, x.device)
    clipped = model.clipped_sum(state, x[rows], y[rows], clip)
    factor, squares = len(x) / len(indices), len(x) * clip_norm**2
    means, sampled = (factor * clipped.sum, squares, factor * squares), float_on_cpu(clipped.norms.square().sum())
    return Estimated(*means, sampled=sampled, places=indices, factor=factor)
