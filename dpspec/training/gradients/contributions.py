"""Where a step's clipped sum comes from: the real records' gradients, and those of planted canaries.

Canaries whose gradients are zero nearly everywhere are clipped and summed without ever writing the zeros.

An adversary who is told which real records a step drew takes away what the step has just added up. It does not take
the word of the step, which is what is audited: within :func:`sums_kept` the last sum is kept with all that decided it,
if it was asked of a model like the adversary's own, and who brings the very same parameters, rows and clipping to
:func:`clipped_sum` is given it, and else computes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dpspec.contract.providers import GradientCanaries
from dpspec.training.gradients import memory
from dpspec.training.gradients.clipping import Clip, Clipper, Flat, add_clipped, clip_factors, clipper, no_norms
from dpspec.training.gradients.fetching import all_equal, send
from dpspec.training.gradients.flat_model import are_alike
from dpspec.training.gradients.persample import ClippedSum, FlatModel


@runtime_checkable
class SparseCanaries(GradientCanaries, Protocol):
    """Gradient canaries that also say where they are not zero."""

    def sparse(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates int64 and values float32, (b, s) each, of canary records ``indices`` (b,), before clipping."""


#: Of so many bytes nobody asks whether they are free.
_AT_ONCE = 2**20


def clipped_sparse_sum(canaries: SparseCanaries, state: Tensor, indices: Tensor, clip_norm: float) -> ClippedSum:
    """sum_i v_i * min(1, clip_norm / ||v_i||) over canary records ``indices`` (b,), in O(b s + P).

    ``state`` (P,) is the model. A gradient that is not finite counts as zero.
    """
    total = torch.zeros_like(state)
    norms = [no_norms(state.device)]
    width = canaries.sparse(indices[:1])[0].shape[1] if len(indices) else 1
    few = 24 * width * len(indices) <= _AT_ONCE  # how much memory is free takes longer to ask than they do
    for some in torch.split(indices, len(indices) if few else memory.chunk_size(24 * width, state.device)):
        coordinates, values = canaries.sparse(some)
        values = values.to(state)
        lengths = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64)
        factors = clip_factors(lengths, clip_norm).to(state)
        clipped = torch.where(factors.unsqueeze(1) > 0, values * factors.unsqueeze(1), 0.0)
        where, what = send(coordinates, state.device).reshape(-1), clipped.reshape(-1)
        if state.is_cuda:  # of the two, this one sums in the same order each time there, the other one on a CPU
            total.index_put_((where,), what, accumulate=True)
        else:
            total.index_add_(0, where, what)
        norms.append(torch.where(lengths.isfinite(), lengths * factors, 0.0))
    return ClippedSum(total, torch.cat(norms))


class _Kept:
    """The last sum over real records that a model like ``model`` was asked for, if any, as a copy of its own."""

    def __init__(self, model: FlatModel) -> None:
        self.model = model
        self._asked: tuple[Clipper, Tensor, Tensor, Tensor] | None = None
        self._found: ClippedSum | None = None

    def is_of(self, other: FlatModel) -> bool:
        """Whether ``other`` is the same function of parameters and records, as it stands."""
        if not self.model.is_alike(other):
            return False
        return all_equal(list(zip(self.model.constants, other.constants, strict=True)))

    def keep(self, how: Clipper, state: Tensor, x: Tensor, y: Tensor, found: ClippedSum) -> None:
        """Copies, but of the rows ``x`` (b, ...), ``y`` (b,), that nobody else has."""
        self._asked = copy.deepcopy(how), state.clone(), x, y
        self._found = ClippedSum(found.sum.clone(), found.norms.clone())

    def of(self, how: Clipper, state: Tensor, x: Tensor, y: Tensor) -> ClippedSum | None:
        """What was found for the same, entry by entry, for one wait where that stands on a GPU; None for all else."""
        if self._asked is None or type(self._asked[0]) is not type(how):
            return None
        if not are_alike(vars(self._asked[0]), vars(how)):
            return None
        return self._found if all_equal(list(zip(self._asked[1:], (state, x, y), strict=True))) else None


_KEPT: ContextVar[_Kept | None] = ContextVar("kept", default=None)


@contextmanager
def sums_kept(model: FlatModel) -> Iterator[None]:
    """Within it a step's sum over real records is kept until the next one, for who asks ``model`` for the very same."""
    token = _KEPT.set(_Kept(model))
    try:
        yield
    finally:
        _KEPT.reset(token)


def clipped_sum(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, clip: Clip) -> ClippedSum:
    """``model.clipped_sum``, or what a step has kept of a model like it, these parameters, rows and clipping."""
    kept = _KEPT.get()
    found = kept.of(clipper(clip), state, x, y) if kept is not None and kept.model is model else None
    return model.clipped_sum(state, x, y, clip) if found is None else found


#: Rows are copied out of the data piece by piece, at most so many bytes at once: a batch may be of any size.
_COPIED = 64 * 2**20


class RecordsAndCanaries:
    """Records 0..n-1 are the rows of ``x``; records n..n+count-1 are gradient canaries. All are clipped alike."""

    def __init__(self, model: FlatModel, x: Tensor, y: Tensor, canaries: GradientCanaries | None = None) -> None:
        """``x`` (n, ...) and ``y`` (n,) stand on the model's device."""
        if len(x) != len(y):
            raise ValueError(f"{len(x)} records but {len(y)} labels")
        self._model = model
        self._x, self._y = x, y
        self._canaries = canaries
        self._chunk = memory.chunk_size(2 * 4 * model.size, model.device)
        self._copied = max(1, _COPIED // max(1, x[:1].nbytes))

    @property
    def records(self) -> int:
        """Real and planted records together."""
        return len(self._x) + (self._canaries.count if self._canaries is not None else 0)

    def __call__(self, state: Tensor, indices: Tensor, clip_norm: Clip) -> ClippedSum:
        """The clipped sum of ``indices`` (b,), ascending and on the CPU, so that canaries stand at the end."""
        real = int(torch.searchsorted(indices, len(self._x)))
        records = self._real(state, send(indices[:real], self._model.device), clip_norm)
        if self._canaries is None or real == len(indices):
            return records
        planted = self._planted(self._canaries, state, indices[real:] - len(self._x), clip_norm)
        return ClippedSum(records.sum + planted.sum, torch.cat([records.norms, planted.norms]))

    def _real(self, state: Tensor, rows: Tensor, clip_norm: Clip) -> ClippedSum:
        total, norms, kept = None, [], _KEPT.get()
        pieces = torch.split(rows, self._copied)
        keeps = kept is not None and len(pieces) == 1 and kept.is_of(self._model)
        for some in pieces:
            x, y = self._x[some], self._y[some]
            found = self._model.clipped_sum(state, x, y, clip_norm)
            if kept is not None and keeps:
                kept.keep(clipper(clip_norm), state, x, y, found)
            total = found.sum if total is None else total.add_(found.sum)
            norms.append(found.norms)
        assert total is not None  # an empty batch is one empty piece
        return ClippedSum(total, torch.cat(norms))

    def _planted(self, canaries: GradientCanaries, state: Tensor, indices: Tensor, clip_norm: Clip) -> ClippedSum:
        how = clipper(clip_norm)
        if isinstance(canaries, SparseCanaries) and isinstance(how, Flat):
            return clipped_sparse_sum(canaries, state, indices, how.clip_norm)
        total, layout = torch.zeros_like(state), self._model.layout
        pieces, norms = layout.unflatten(total), [no_norms(state.device)]
        for some in torch.split(send(indices, state.device), self._chunk):
            rows = canaries.gradients(some).to(state)
            if rows.shape != (len(some), self._model.size):
                raise ValueError(
                    f"canary gradients must have shape {(len(some), self._model.size)}, got {tuple(rows.shape)}"
                )
            norms.append(add_clipped(pieces, layout.split(rows), how))
        return ClippedSum(total, torch.cat(norms))
