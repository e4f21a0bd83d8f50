"""Clipping for which gradients are written out: to an l1 norm, and in two parts, within a subspace and beside it.

Core's clippers scale by l2 norms and never need the gradients themselves. These do, as rows (b, P); the training loop
and the adversary share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec.training.device import full_precision
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.clipping import Clip, clip_factors, clipper, no_norms
from dpspec.training.gradients.fetching import send
from dpspec.training.gradients.persample import ClippedSum, FlatModel
from dpspec.training.loop.checkpoint import Memory, Random
from dpspec.training.loop.native import tensors
from dpspec.training.seeds import generator
from dpspec_modelmix.options import Embedding, embedding_of

#: So far below one that rounding sums of float32 products does not lead back above it.
_BELOW = 1.0 - 2.0**-18

#: Canaries are written out so many at a time.
CANARY_CHUNK = 256


class RowClip(Protocol):
    """How rows are clipped at a released model."""

    def prepare(self, state: Tensor) -> None:
        """From here on rows are gradients at ``state`` (P,)."""

    def __call__(self, rows: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
        """The clipped rows (b, P), and how long they are in the norm that is bounded by the clip norm, (b,) float64.

        Rows that are not finite count as zero.
        """


class Absolute:
    """g * min(1, clip_norm / ||g||_1)."""

    def prepare(self, state: Tensor) -> None:
        """The same everywhere."""

    def __call__(self, rows: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
        """See :class:`RowClip`."""
        norms = torch.linalg.vector_norm(rows, ord=1, dim=1, dtype=torch.float64)
        factors = clip_factors(norms, clipper(clip).clip_norm)
        scaled = torch.where(norms.isfinite()[:, None], rows * (factors * _BELOW)[:, None], 0.0)
        return scaled, torch.where(norms.isfinite(), norms * factors, 0.0)


class Anchors(NamedTuple):
    """Public records, on the device of the run."""

    model: FlatModel
    x: Tensor
    y: Tensor


class TwoParts:
    """The part e of a gradient within a subspace to a clip norm of its own, the residual r to the phase's.

    With the isotropic floor e + r are put together again, of a norm of at most sqrt(clip_norm_e^2 + clip_norm_r^2), and
    coordinates are truncated then; else those of r are. ``basis`` (P, k): orthonormal columns.
    """

    basis: Tensor

    def __init__(self, rule: Embedding, parameters: int, anchors: Anchors | None, seed: int, device: str) -> None:
        """``anchors``: whose gradients span the subspace, or None for a random one."""
        self.rule = rule
        self._anchors = anchors
        if anchors is None:
            drawn = torch.randn(parameters, rule.dimension, generator=generator(seed, "subspace"), dtype=torch.float64)
            self.basis = torch.linalg.qr(drawn).Q.float().to(device)

    def prepare(self, state: Tensor) -> None:
        """The subspace at ``state``: the leading right singular vectors of the anchors' gradients."""
        if self._anchors is not None:
            rows = self._anchors.model.rows(state, self._anchors.x, self._anchors.y).double()
            # Where a run has blown up there are no directions to find; any will do.
            decomposed = torch.linalg.svd(rows.nan_to_num(0.0, 0.0, 0.0), full_matrices=False)
            self.basis = decomposed.Vh[: self.rule.dimension].T.to(state)

    def __call__(self, rows: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
        """See :class:`RowClip`; lengths are the larger of both parts, each relative to its bound, in clip norms."""
        residual_clip, rule = clipper(clip), self.rule
        within = rows @ self.basis
        residual = rows - within @ self.basis.T
        finite = (residual.isfinite().all(1) & within.isfinite().all(1))[:, None]
        residual, r = _scaled(torch.where(finite, residual, 0.0), residual_clip.clip_norm)
        within, e = _scaled(torch.where(finite, within, 0.0), rule.clip_norm)
        bound = residual_clip.coordinate_bound * _BELOW
        if rule.floor:
            joint, _ = _scaled(
                residual + within @ self.basis.T, (residual_clip.clip_norm**2 + rule.clip_norm**2) ** 0.5
            )
            clipped = joint.clamp(-bound, bound)
        else:
            clipped = residual.clamp(-bound, bound) + within @ self.basis.T
        return clipped, torch.maximum(r, e / rule.clip_norm * residual_clip.clip_norm)


def _scaled(rows: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Rows to an l2 norm of at most ``bound``, and their norms (b,) float64."""
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    factors = clip_factors(norms, bound)
    return rows * (factors * _BELOW)[:, None], norms * factors


class WrittenOut:
    """The part ``contributions`` of the loop, its rows clipped by ``clipping``.

    Noise of ``deviation`` within the subspace of :class:`TwoParts` joins here, from a generator of its own, so that the
    loop's own noise is the one that fills all directions.
    """

    def __init__(
        self,
        model: FlatModel,
        x: Tensor,
        y: Tensor,
        clipping: RowClip,
        canaries: dps.GradientCanaries | None = None,
        *,
        seed: int = 0,
        deviation: float = 0.0,
    ) -> None:
        """Records 0..n-1 are the rows of ``x``, those after them canaries."""
        self._model, self._x, self._y, self._clipping = model, x, y, clipping
        self._canaries = canaries
        self._seed, self._deviation = seed, deviation
        self.restore({})

    @property
    def records(self) -> int:
        """Real and planted records together."""
        return len(self._x) + (self._canaries.count if self._canaries is not None else 0)

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
        """The clipped sum of ``indices`` (b,), ascending and on the CPU, and the noise within the subspace."""
        clipped = self.clipped(state, indices, clip)
        if self._deviation > 0.0 and isinstance(self._clipping, TwoParts):
            drawn = torch.randn(self._clipping.basis.shape[1], generator=self._source, device=state.device)
            return replace(clipped, sum=clipped.sum + self._clipping.basis @ (drawn * self._deviation))
        return clipped

    def clipped(self, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
        """The same without noise."""
        total, norms = torch.zeros_like(state), [no_norms(state.device)]
        with full_precision(state.device):
            self._clipping.prepare(state)
            for rows in self._rows(state, indices):
                clipped, lengths = self._clipping(rows, clip)
                total += clipped.sum(0)
                norms.append(lengths)
        return ClippedSum(total, torch.cat(norms))

    def _rows(self, state: Tensor, indices: Tensor) -> Iterator[Tensor]:
        real = int(torch.searchsorted(indices, len(self._x)))
        chosen = send(indices[:real], self._x.device)
        for named in self._model.gradients(state, self._x[chosen], self._y[chosen]):
            yield self._model.layout.flatten(named, leading=1)
        if self._canaries is not None and real < len(indices):
            for chunk in torch.split(send(indices[real:] - len(self._x), state.device), CANARY_CHUNK):
                yield self._canaries.gradients(chunk).to(state)

    def state(self) -> Memory:
        """Where the generator stands."""
        return Random(self._source).state()

    def restore(self, state: Memory) -> None:
        """Go on from there, or begin anew."""
        self._source = generator(self._seed, "embedded noise", self._x.device)
        Random(self._source).restore(state)


def make_row_clip(job: dps.TrainingJob, context: dps.Context, index: int) -> RowClip | None:
    """Clipping that needs gradients written out, where the job declares such: a new one for each who uses it."""
    if dps.Phase.of(job.phases[0]).noise == "laplace":
        return Absolute()
    embedding = embedding_of(job.phases[0])
    if embedding is None:
        return None
    anchors = None
    if embedding.anchors:
        public = context.data.test_x[: embedding.anchors], context.data.test_y[: embedding.anchors]
        anchors = Anchors(FlatModel(job.model, device=job.device), *tensors(*public, job.device))
    size = flat_model.Layout.of(job.model).size
    return TwoParts(embedding, size, anchors, context.seed(index, "subspace"), job.device)
