"""Clipping of materialized gradients: to an l1 norm, or in two parts, inside and outside a subspace.

The core clippers scale by l2 norms without materialized gradients. The clippers here need gradients as rows (b, P). The
training loop and the adversary share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec.training.device import full_precision, generator, send
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.clipping import Clip, clip_factors, clipper, no_norms
from dpspec.training.gradients.persample import ClippedSum, FlatModel
from dpspec.training.loop.checkpoint import GeneratorState, Memory
from dpspec.training.loop.native import tensors
from dpspec_modelmix.options import Embedding, embedding_of

#: Factor below 1 that absorbs the rounding of float32 sums of products.
_BELOW = 1.0 - 2.0**-18

#: Number of materialized canaries per chunk.
CANARY_CHUNK = 256


class Absolute:
    """g * min(1, clip_norm / ||g||_1), at any model."""

    def prepare(self, state: Tensor) -> None:
        pass

    def __call__(self, rows: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
        """Return the clipped rows (b, P) and their norms (b,), float64. Rows that are not finite become 0."""
        norms = torch.linalg.vector_norm(rows, ord=1, dim=1, dtype=torch.float64)
        factors = clip_factors(norms, clipper(clip).clip_norm)
        scaled = torch.where(norms.isfinite()[:, None], rows * (factors * _BELOW)[:, None], 0.0)
        return scaled, torch.where(norms.isfinite(), norms * factors, 0.0)


class Anchors(NamedTuple):
    model: FlatModel
    x: Tensor
    y: Tensor


class TwoParts:
    """Clips the component e of a gradient in the subspace ``basis`` (P, k) and the residual r to separate norms.

    With the isotropic floor, coordinates of e + r are truncated, whose norm is at most sqrt(clip_norm_e^2 +
    clip_norm_r^2); otherwise coordinates of r.
    """

    basis: Tensor

    def __init__(self, rule: Embedding, parameters: int, anchors: Anchors | None, seed: int, device: str) -> None:
        self.rule = rule
        self._anchors = anchors
        if anchors is None:
            drawn = torch.randn(parameters, rule.dimension, generator=generator(seed, "subspace"), dtype=torch.float64)
            self.basis = torch.linalg.qr(drawn).Q.float().to(device)

    def prepare(self, state: Tensor) -> None:
        """Set the subspace at ``state``: the leading right singular vectors of the anchors' gradients."""
        if self._anchors is not None:
            rows = self._anchors.model.rows(state, self._anchors.x, self._anchors.y).double()
            # A diverged run has no finite gradients; any subspace is valid.
            decomposed = torch.linalg.svd(rows.nan_to_num(0.0, 0.0, 0.0), full_matrices=False)
            self.basis = decomposed.Vh[: self.rule.dimension].T.to(state)

    def __call__(self, rows: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
        """As :class:`Absolute`. A row's norm is the larger of both parts' norms relative to their bounds."""
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


#: Clipping of gradient rows at the model given to ``prepare``.
RowClip: TypeAlias = Absolute | TwoParts


def _scaled(rows: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Scale rows to an l2 norm of at most ``bound``; also return the norms (b,), float64."""
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    factors = clip_factors(norms, bound)
    return rows * (factors * _BELOW)[:, None], norms * factors


class WrittenOut:
    """The part ``contributions`` of the loop, with rows clipped by ``clipping``.

    Adds noise of standard deviation ``deviation`` in the subspace of :class:`TwoParts` from a separate generator. The
    loop's noise covers all directions.
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
        self._model, self._x, self._y, self._clipping = model, x, y, clipping
        self._canaries = canaries
        self._seed, self._deviation = seed, deviation
        self.restore({})

    @property
    def records(self) -> int:
        return len(self._x) + (self._canaries.count if self._canaries is not None else 0)

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
        """The clipped sum of ``indices`` (b,), ascending and on the CPU, plus the noise in the subspace."""
        clipped = self.clipped(state, indices, clip)
        if self._deviation > 0.0 and isinstance(self._clipping, TwoParts):
            drawn = torch.randn(self._clipping.basis.shape[1], generator=self._source, device=state.device)
            return replace(clipped, sum=clipped.sum + self._clipping.basis @ (drawn * self._deviation))
        return clipped

    def clipped(self, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
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
        yield from self._model.gradients(state, self._x[chosen], self._y[chosen])
        if self._canaries is not None and real < len(indices):
            for chunk in torch.split(send(indices[real:] - len(self._x), state.device), CANARY_CHUNK):
                yield self._canaries.gradients(chunk).to(state)

    def state(self) -> Memory:
        return GeneratorState(self._source).state()

    def restore(self, state: Memory) -> None:
        self._source = generator(self._seed, "embedded noise", self._x.device)
        GeneratorState(self._source).restore(state)


def make_row_clip(job: dps.TrainingJob, context: dps.Context, index: int) -> RowClip | None:
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
