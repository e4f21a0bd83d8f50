"""Clippers, per-example gradients, their norms (float64) and their clipped sums, in chunks that fit into memory.

Functions accept a clip norm in place of a clipper.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from dpspec.contract.phase import Phase
from dpspec.models.modules import FastPooling
from dpspec.training.device import full_precision
from dpspec.training.gradients import flat_model, memory
from dpspec.training.gradients.flat_model import call, record_by_record, require_uncoupled
from dpspec.training.gradients.ghost import PerExample
from dpspec.training.gradients.ghost_calls import Gradients, Rows, squares_of

#: Factor below 1 that survives rounding to float32.
_BELOW = 1.0 - 2.0**-22


@dataclass(frozen=True)
class Clipper:
    """g * min(1, clip_norm / ||g||), then every coordinate truncated to +- ``coordinate_bound``, unless it is infinite.

    Algorithm 2 of Xiao, Wan and Devadas. Truncation only shortens, so the l2 norm stays within ``clip_norm``.
    """

    clip_norm: float
    coordinate_bound: float = inf

    def __post_init__(self) -> None:
        if not 0.0 < self.clip_norm < inf:
            raise ValueError(f"clip_norm must be finite and above 0, got {self.clip_norm}")
        if not self.coordinate_bound > 0.0:
            raise ValueError(f"coordinate_bound must be above 0, got {self.coordinate_bound}")

    @property
    def is_flat(self) -> bool:
        return self.coordinate_bound == inf

    def scale(self, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Compute factors from the squared norms (k, b), float64, of k parameters' gradients for b records.

        Returns factors (b,), float32, and norms (b,), float64, of the scaled gradients. Both are zero for a record
        with a non-finite gradient.
        """
        norms = squares.sum(0).sqrt()
        factors = clip_factors(norms, self.clip_norm)
        scaled = torch.where(norms.isfinite(), norms * factors, 0.0)
        # Before truncation slightly smaller, so that float32 rounding of products cannot exceed the norm.
        return factors if self.is_flat else factors * _BELOW, scaled


#: A clipper, or a clip norm for flat clipping.
Clip: TypeAlias = float | Clipper


def clipper(clip: Clip) -> Clipper:
    return clip if isinstance(clip, Clipper) else Clipper(float(clip))


def clipper_of(phase: Mapping[str, Any]) -> Clipper:
    """Build the clipper of a phase from its ``clip_norm`` and ``clipping`` block (default: flat)."""
    clip_norm = Phase.of(phase).clip_norm
    clipping = phase.get("clipping") or {"scheme": "flat"}
    match clipping.get("scheme"):
        case "flat":
            return Clipper(clip_norm)
        case "truncated":
            return Clipper(clip_norm, float(clipping["coordinate_bound"]))
    raise ValueError(f"clipping scheme must be flat or truncated, got {clipping.get('scheme')!r}")


def clip_factors(norms: Tensor, bound: float) -> Tensor:
    """min(1, bound / norm) for float64 norms, rounded down to float32; 0 if a norm is not finite.

    Rounding down ensures norm * factor <= bound in float64.
    """
    exact = bound / torch.clamp(norms, min=bound)
    factors = exact.float()
    above = (factors > exact) | (norms * factors > bound)
    factors = torch.where(above, torch.nextafter(factors, torch.zeros_like(factors)), factors)
    return torch.where(norms.isfinite(), factors, 0.0)


def no_norms(device: torch.device) -> Tensor:
    return torch.zeros(0, dtype=torch.float64, device=device)


def add_clipped(totals: Mapping[str, Tensor], gradients: Mapping[str, Tensor | Gradients], clip: Clip) -> Tensor:
    """Add clipped gradients to ``totals`` in place.

    A gradient within the bound is added unchanged. A non-finite gradient counts as zero, so no record contributes more
    than the clip norm. Tensors are rows (b, ...). Returns the norms (b,), float64, of the added contributions.
    """
    how, names, given = clipper(clip), tuple(totals), gradients.items()
    each = {name: Rows(found) if isinstance(found, Tensor) else found for name, found in given if name in totals}
    squares = torch.stack([each[name].squares() for name in names])
    factors, norms = how.scale(squares)
    kept = squares.isfinite().all(0)
    whole = bool(kept.all())
    if not whole:
        factors, each = factors[kept], {name: Rows(found.rows()[kept]) for name, found in each.items()}
    if not how.is_flat:
        parts, bound = [], how.coordinate_bound * _BELOW
        for name in names:
            rows = each[name].rows().reshape(len(factors), totals[name].numel())
            added = (rows * factors[:, None]).clamp_(-bound, bound)
            parts.append(squares_of(added))
            totals[name].view(-1).add_(added.sum(0))
        shortened = torch.stack(parts).sum(0).sqrt()
        if whole:
            return shortened
        norms[kept] = shortened
        return norms
    for name in names:
        each[name].add(totals[name], factors)
    return norms


#: Tensors by parameter name.
Named: TypeAlias = Mapping[str, Tensor]

#: Result of a pass per chunk besides outputs: written-out gradients, gradients to sum, or squared norms.
Wanted: TypeAlias = Literal["rows", "sums", "norms"]

#: Maximum number of large records per chunk for norms; sums use half of it.
_MEASURED = 64

T = TypeVar("T")


@dataclass(frozen=True)
class ClippedSum:
    """Sum (P,) of the clipped gradients of a batch, and the norms (b,), float64, of the contributions."""

    sum: Tensor
    norms: Tensor


class FlatModel:
    """A module as a function of one flat vector of parameters. The module itself is never changed or moved."""

    def __init__(self, model: nn.Module, *, device: str | torch.device = "cpu") -> None:
        require_uncoupled(model)
        self.layout = flat_model.Layout.of(model)
        self.size = self.layout.size
        self.device = torch.device(device)
        self._model = model
        self._examples: PerExample | None = None
        self._sizes: dict[Wanted, int] = {}
        self._most: int | None = None
        self._trained = flat_model.trained(model)
        self._constants = {
            place: t.detach().to(self.device)
            for place, t in flat_model.places(model).items()
            if place not in self._trained
        }

    def initial(self) -> Tensor:
        return flat_model.flatten(self._model).to(self.device)

    def logits(self, state: Tensor, x: Tensor) -> Tensor:
        plain = record_by_record(self._model)  # then no torch.func transforms
        with full_precision(self.device), FastPooling() if plain else nullcontext():
            return self.forward(self.layout.unflatten(state), x)

    def gradients(self, state: Tensor, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        if len(x):
            size = self._size(state, x, y, "rows")
            for some_x, some_y in zip(torch.split(x, size), torch.split(y, size), strict=True):
                yield self.rows(state, some_x, some_y)

    def rows(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        def work(chunks: Iterator[tuple[Mapping[str, Gradients], Tensor]]) -> Tensor:
            named = ({name: gradients.rows() for name, gradients in chunk.items()} for chunk, _ in chunks)
            return torch.cat([state.new_zeros(0, self.size), *(self.layout.flatten(rows, leading=1) for rows in named)])

        return self._each(state, x, y, work, "rows")

    def look(self, state: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Norms (b,), float64, of the gradients at ``state`` before clipping, and predicted classes (b,)."""

        def work(chunks: Iterator[tuple[Named, Tensor]]) -> tuple[Tensor, Tensor]:
            norms = [no_norms(self.device)]
            classes = [torch.zeros(0, dtype=torch.int64, device=self.device)]
            for squares, outputs in chunks:
                norms.append(torch.stack(list(squares.values())).sum(0).sqrt())
                classes.append(outputs.argmax(dim=1))
            return torch.cat(norms), torch.cat(classes)

        return self._each(state, x, y, work, "norms")

    def clipped_sum(self, state: Tensor, x: Tensor, y: Tensor, clip: Clip) -> ClippedSum:
        """Sum (P,) of the records' clipped gradients at ``state``, and the clipped norms; zeros for an empty batch."""

        def work(chunks: Iterator[tuple[Mapping[str, Gradients], Tensor]]) -> ClippedSum:
            total = torch.zeros_like(state)
            pieces = self.layout.unflatten(total)
            norms = [no_norms(self.device), *(add_clipped(pieces, chunk, clip) for chunk, _ in chunks)]
            return ClippedSum(total, torch.cat(norms))

        return self._each(state, x, y, work, "sums" if clipper(clip).is_flat else "rows")

    def _each(self, state: Tensor, x: Tensor, y: Tensor, work: Callable[[Iterator[Any]], T], wanted: Wanted) -> T:
        if len(x) == 0:
            return work(iter(()))
        parameters = self.layout.unflatten(state.detach())

        def chunks(size: int) -> Iterator[Any]:
            for some_x, some_y in zip(torch.split(x, size), torch.split(y, size), strict=True):
                examples = self._tried(parameters, x, y)
                compute = examples.squares if wanted == "norms" else examples.gradients
                yield compute(parameters, some_x, some_y)

        with full_precision(self.device):
            size = self._size(state, x, y, wanted)
            found, self._most = memory.halving(lambda size: work(chunks(size)), size, self._most)
        return found

    def _size(self, state: Tensor, x: Tensor, y: Tensor, wanted: Wanted) -> int:
        if wanted not in self._sizes:
            examples = self._tried(self.layout.unflatten(state.detach()), x, y)
            with torch.no_grad():
                kept = memory.activation_bytes(self._model, x[:1].to(next(self._model.parameters()).device))
            needed = kept + (2 * state.nbytes if wanted == "rows" else examples.written)
            large = _MEASURED if wanted == "norms" else memory.RECORDS
            self._sizes[wanted] = memory.chunk_size(needed, self.device, large)
        return self._sizes[wanted]

    def _tried(self, parameters: Named, x: Tensor, y: Tensor) -> PerExample:
        """Structure of the model, from a trial pass over the first record; repeated if hooks change."""
        together = record_by_record(self._model)
        if self._examples is None or self._examples.together != together:
            # glibc keeps freed memory of up to twice the size of the largest freed block for reuse.
            torch.empty(31 * 2**20, dtype=torch.uint8)
            with flat_model.naming_layers(self._model):
                self._examples = PerExample(
                    *(self.forward, parameters, x[:1], y[:1]), together=together, constants=self._constants.values()
                )
        return self._examples

    def forward(self, parameters: Named, x: Tensor) -> Tensor:
        """Outputs for records ``x`` (b, ...) with trainable ``parameters`` by name."""
        trained = {place: parameters[name] for place, name in self._trained.items()}
        return call(self._model, {**self._constants, **trained}, x)


def per_example_gradients(model: nn.Module | FlatModel, x: Tensor, y: Tensor, *, state: Tensor | None = None) -> Tensor:
    """Gradient of each record's loss as rows (b, P), at ``state`` (P,) or the model's own parameters."""
    functional = model if isinstance(model, FlatModel) else FlatModel(model, device=x.device)
    return functional.rows(functional.initial() if state is None else state, x, y)
