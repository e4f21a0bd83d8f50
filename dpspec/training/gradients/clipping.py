"""Clippers keep the l2 norm of each contribution within ``clip_norm``. Functions accept a number for :class:`Flat`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, isfinite, sqrt
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dpspec.contract.phase import Phase
from dpspec.training.gradients.ghost_calls import Gradients, Rows
from dpspec.training.gradients.ghost_calls import squares_of as squares_of

#: Relative margin for float64 rounding when a bound is split among layers.
_ROOM = 2.0**-40

#: Factor below 1 that survives rounding to float32.
_BELOW = 1.0 - 2.0**-22


class Clipper(ABC):
    """Scale each record's gradient by factors of its squared norms, then truncate its coordinates."""

    clip_norm: float
    coordinate_bound: float = inf

    @abstractmethod
    def scale(self, squares: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Compute factors from the squared norms (k, b), float64, of k parameters' gradients for b records.

        Returns factors (k, b), float32, and norms (b,), float64, of the scaled gradients. Both are zero for a record
        with a non-finite gradient.
        """


@dataclass(frozen=True)
class Flat(Clipper):
    """g * min(1, clip_norm / ||g||): one factor for the whole gradient."""

    clip_norm: float

    def __post_init__(self) -> None:
        _require_positive("clip_norm", self.clip_norm)

    def scale(self, squares: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        norms = squares.sum(0).sqrt()
        factors = clip_factors(norms, self.clip_norm)
        return factors.expand(len(names), -1), torch.where(norms.isfinite(), norms * factors, 0.0)


@dataclass(frozen=True)
class PerLayer(Clipper):
    """Clip the gradient of each layer to its own bound, by default clip_norm / sqrt(L) for each of L layers.

    A layer consists of the parameters with the same name up to the last dot. ``bounds`` are in the order of the
    parameters, with a joint l2 norm of at most ``clip_norm``.
    """

    clip_norm: float
    bounds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _require_positive("clip_norm", self.clip_norm)
        for bound in self.bounds or ():
            _require_positive("every layer's bound", bound)
        if self.bounds is not None and hypot(*self.bounds) > self.clip_norm * (1.0 + _ROOM):
            joint = hypot(*self.bounds)
            raise ValueError(
                f"the layers' bounds have a joint l2 norm of {joint:g}, above clip_norm {self.clip_norm:g}"
            )

    def scale(self, squares: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        layer_of = [name.rpartition(".")[0] for name in names]
        layers = list(dict.fromkeys(layer_of))
        if self.bounds is not None and len(self.bounds) != len(layers):
            raise ValueError(f"{len(self.bounds)} bounds for the {len(layers)} layers of the model: {layers}")
        bounds = self.bounds or (self.clip_norm / sqrt(len(layers)),) * len(layers)
        where = torch.tensor([layers.index(layer) for layer in layer_of], device=squares.device)
        norms = squares.new_zeros(len(layers), squares.shape[1]).index_add_(0, where, squares).sqrt()
        limits = squares.new_tensor(bounds)[:, None] * (1.0 - 2.0 * _ROOM)
        finite = norms.isfinite().all(0)
        factors = torch.where(finite, clip_factors(norms, limits), 0.0)
        scaled = torch.linalg.vector_norm(torch.where(finite, norms * factors, 0.0), dim=0)
        return factors[where], scaled


@dataclass(frozen=True)
class Truncated(Clipper):
    """Clip as :class:`Flat`, then truncate every coordinate to +- ``coordinate_bound``.

    Algorithm 2 of Xiao, Wan and Devadas. Truncation only shortens, so the l2 norm stays within ``clip_norm``.
    """

    clip_norm: float
    coordinate_bound: float

    def __post_init__(self) -> None:
        _require_positive("clip_norm", self.clip_norm)
        _require_positive("coordinate_bound", self.coordinate_bound)

    def scale(self, squares: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        # Slightly smaller factors than of flat clipping, so that float32 rounding of products cannot exceed the norm.
        factors, norms = Flat(self.clip_norm).scale(squares, names)
        return factors * _BELOW, norms


#: A clipper, or a clip norm for flat clipping.
Clip: TypeAlias = float | Clipper


def clipper(clip: Clip) -> Clipper:
    return clip if isinstance(clip, Clipper) else Flat(float(clip))


def clipper_of(phase: Mapping[str, Any]) -> Clipper:
    """Build the clipper of a phase from its ``clip_norm`` and ``clipping`` block (default: flat)."""
    clip_norm = Phase.of(phase).clip_norm
    clipping = phase.get("clipping") or {"scheme": "flat"}
    match clipping.get("scheme"):
        case "flat":
            return Flat(clip_norm)
        case "per-layer":
            bounds = clipping.get("bounds")
            return PerLayer(clip_norm, None if bounds is None else tuple(float(bound) for bound in bounds))
        case "truncated":
            return Truncated(clip_norm, float(clipping["coordinate_bound"]))
    raise ValueError(f"clipping scheme must be flat, per-layer or truncated, got {clipping.get('scheme')!r}")


def clip_factors(norms: Tensor, bound: float | Tensor) -> Tensor:
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
    factors, norms = how.scale(squares, names)
    kept = squares.isfinite().all(0)
    whole = bool(kept.all())
    if not whole:
        factors, each = factors[:, kept], {name: Rows(found.rows()[kept]) for name, found in each.items()}
    if isfinite(how.coordinate_bound):
        parts, bound = [], how.coordinate_bound * _BELOW
        for name, weights in zip(names, factors, strict=True):
            rows = each[name].rows().reshape(len(weights), totals[name].numel())
            added = (rows * weights[:, None]).clamp_(-bound, bound)
            parts.append(squares_of(added))
            totals[name].view(-1).add_(added.sum(0))
        shortened = torch.stack(parts).sum(0).sqrt()
        if whole:
            return shortened
        norms[kept] = shortened
        return norms
    for name, weights in zip(names, factors, strict=True):
        each[name].add(totals[name], weights)
    return norms


def _require_positive(what: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{what} must be finite and above 0, got {value}")
