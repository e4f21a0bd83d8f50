"""Per-example gradients by ``torch.func``: what DP-SGD clips, and what an auditor recomputes.

Gradients are float32 (the model's dtype), norms float64. Work is cut into chunks, and sums of clipped gradients are
accumulated chunk by chunk and parameter by parameter, so that no (records, parameters) matrix is ever held for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpspec.training import flat, memory
from dpspec.training.coupling import require_uncoupled

#: The mean loss of a batch: outputs (b, classes) and labels (b,) to a scalar. Called with b = 1.
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

#: Gradients by parameter name, each (b, *shape).
Named: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True)
class ClippedSum:
    """What a batch contributes.

    sum: (P,) the sum of the clipped gradients.
    norms: (b,) float64, each contribution's norm after clipping.
    """

    sum: Tensor
    norms: Tensor


class FlatModel:
    """A module as a function of one flat vector of parameters; the module itself is never changed.

    The module may stay on the CPU: parameters come with each call, and what is not trained (buffers, frozen
    parameters) is copied to ``device`` once. Raises ``ValueError`` for layers that couple records.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: str | torch.device = "cpu",
        loss: Loss = nn.functional.cross_entropy,
        budget: int | None = None,
    ) -> None:
        """``budget``: bytes for one chunk; by default what :func:`dpspec.training.memory.chunk_size` finds."""
        require_uncoupled(model)
        self.layout = flat.Layout.of(model)
        self.size = self.layout.size
        self.device = torch.device(device)
        self._model = model
        self._loss = loss
        self._budget = budget
        self._chunk: int | None = None
        frozen = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
        self._constants = {n: t.to(self.device) for n, t in {**frozen, **dict(model.named_buffers())}.items()}
        self._gradients = vmap(grad(self._example_loss), in_dims=(None, 0, 0))

    def initial(self) -> Tensor:
        """The module's own parameters as a vector (P,) on the device."""
        return flat.flatten(self._model).to(self.device)

    def logits(self, state: Tensor, x: Tensor) -> Tensor:
        """The outputs (b, classes) for records ``x`` (b, ...) at parameters ``state`` (P,)."""
        return self._call(self.layout.unflatten(state), x)

    def gradients(self, state: Tensor, x: Tensor, y: Tensor) -> Iterator[Named]:
        """The gradients of records ``x`` (b, ...), ``y`` (b,) at ``state``, one chunk after the other."""
        if len(x) == 0:
            return
        parameters = self.layout.unflatten(state)
        if self._chunk is None:
            self._chunk = memory.chunk_size(self._record_bytes(x[:1]), self.device, self._budget)
        for some_x, some_y in zip(torch.split(x, self._chunk), torch.split(y, self._chunk), strict=True):
            yield self._gradients(parameters, some_x, some_y)

    def clipped_sum(self, state: Tensor, x: Tensor, y: Tensor, clip_norm: float) -> ClippedSum:
        """Sum of the records' clipped gradients at ``state``; zeros (P,) and no norms for an empty batch."""
        total = torch.zeros_like(state)
        pieces = self.layout.unflatten(total)
        norms = [no_norms(self.device)]
        norms += [add_clipped(pieces, chunk, clip_norm) for chunk in self.gradients(state, x, y)]
        return ClippedSum(total, torch.cat(norms))

    def _call(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self._model, {**self._constants, **parameters}, (x,))
        return outputs

    def _example_loss(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self._loss(self._call(parameters, x.unsqueeze(0)), y.unsqueeze(0))

    def _record_bytes(self, x: Tensor) -> int:
        # The gradient and one temporary of its size; activations and, on the way back, their gradients.
        with torch.no_grad():
            kept = memory.activation_bytes(self._model, x.to(next(self._model.parameters()).device))
        return 2 * 4 * self.size + 2 * kept


def norms_of(rows: Named) -> Tensor:
    """The l2 norm (b,) in float64 of each record over all its parameters, without a float64 copy of the rows."""
    parts = [torch.linalg.vector_norm(r.reshape(len(r), -1), dim=1, dtype=torch.float64) for r in rows.values()]
    norms: Tensor = parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts), dim=0)
    return norms


def add_clipped(totals: Mapping[str, Tensor], rows: Named, clip_norm: float) -> Tensor:
    """Add sum_i g_i * min(1, clip_norm / ||g_i||) to ``totals`` in place; the norms (b,) float64 that were added.

    A gradient within ``clip_norm`` is added as it is. A gradient that is not finite counts as zero: no record,
    however broken, contributes more than ``clip_norm``.
    """
    norms = norms_of(rows)
    factors = clip_factors(norms, clip_norm, next(iter(rows.values())).dtype)
    finite = norms.isfinite()
    if not bool(finite.all()):
        rows = {name: r[finite] for name, r in rows.items()}
    weights = factors[finite]
    for name, total in totals.items():
        total.view(-1).addmv_(rows[name].reshape(len(weights), total.numel()).T, weights)
    return torch.where(finite, norms * factors, 0.0)


def clip_factors(norms: Tensor, clip_norm: float, dtype: torch.dtype) -> Tensor:
    """min(1, clip_norm / norm) for norms (b,) in float64, rounded down to ``dtype``; zero where a norm is not finite.

    Rounding down keeps norm * factor <= clip_norm in float64.
    """
    exact = clip_norm / norms.clamp_min(clip_norm)
    factors = exact.to(dtype)
    factors = torch.where(factors > exact, torch.nextafter(factors, torch.zeros_like(factors)), factors)
    return torch.where(norms.isfinite(), factors, 0.0)


def no_norms(device: torch.device) -> Tensor:
    """The norms of no records: (0,) float64."""
    return torch.zeros(0, dtype=torch.float64, device=device)


def per_example_gradients(model: nn.Module | FlatModel, x: Tensor, y: Tensor, *, state: Tensor | None = None) -> Tensor:
    """The gradient of each record's loss as rows (b, P), at ``state`` (P,) or else the model's own parameters."""
    functional, state = _at(model, x, state)
    rows = [functional.layout.flatten(chunk, leading=1) for chunk in functional.gradients(state, x, y)]
    return torch.cat([state.new_zeros(0, functional.size), *rows])


def per_example_norms(model: nn.Module | FlatModel, x: Tensor, y: Tensor, *, state: Tensor | None = None) -> Tensor:
    """The l2 norm of each record's gradient, (b,) in float64, before any clipping."""
    functional, state = _at(model, x, state)
    return torch.cat([no_norms(functional.device), *map(norms_of, functional.gradients(state, x, y))])


def clipped_sum(
    model: nn.Module | FlatModel, x: Tensor, y: Tensor, clip_norm: float, *, state: Tensor | None = None
) -> Tensor:
    """sum_i g_i * min(1, clip_norm / ||g_i||) over the records, (P,)."""
    functional, state = _at(model, x, state)
    return functional.clipped_sum(state, x, y, clip_norm).sum


def _at(model: nn.Module | FlatModel, x: Tensor, state: Tensor | None) -> tuple[FlatModel, Tensor]:
    functional = model if isinstance(model, FlatModel) else FlatModel(model, device=x.device)
    return functional, functional.initial() if state is None else state
