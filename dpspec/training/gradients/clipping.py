"""How a record's gradient is made small: clippers scale it, and may then truncate it, to an l2 norm of clip_norm.

Every clipper keeps the l2 norm of a whole contribution within ``clip_norm``, so that the accounting never depends on
which one is used. ``clipper_of(phase)`` makes the one that a phase of a job declares. Wherever a clipper is wanted,
a plain number stands for :class:`Flat` clipping to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, isfinite, sqrt
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dpspec.contract.phase import Phase
from dpspec.training.gradients.ghost_parameters import Gradients, Rows
from dpspec.training.gradients.ghost_parameters import squares_of as squares_of

#: Relative room for the rounding of float64 arithmetic where a bound is split into several.
_ROOM = 2.0**-40

#: So far below one that rounding to float32 does not lead back above it.
_BELOW = 1.0 - 2.0**-22


class Clipper(ABC):
    """Scales each record's gradient by factors that its squared norms decide, then truncates its coordinates.

    clip_norm: what the l2 norm of a contribution never exceeds.
    coordinate_bound: coordinates are cut to +- this after scaling; infinity where they are not.
    """

    clip_norm: float
    coordinate_bound: float = inf

    @abstractmethod
    def scale(self, squares: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Factors (k, b) in float32 and the norms (b,) in float64 of the scaled gradients.

        squares: (k, b) float64, the squared norm of each of k parameters' gradients for each of b records.
        names: the k parameters' names.

        A record that is not finite anywhere has factor and norm zero.
        """


@dataclass(frozen=True)
class Flat(Clipper):
    """g * min(1, clip_norm / ||g||): one factor for the whole gradient."""

    clip_norm: float

    def __post_init__(self) -> None:
        _require_positive("clip_norm", self.clip_norm)

    def scale(self, squares: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The same factor for every parameter, as a view."""
        norms = squares.sum(0).sqrt()
        factors = clip_factors(norms, self.clip_norm)
        return factors.expand(len(names), -1), torch.where(norms.isfinite(), norms * factors, 0.0)


@dataclass(frozen=True)
class PerLayer(Clipper):
    """Each layer's part of the gradient to a bound of its own.

    A layer is what shares the name up to its last dot: the weight and the bias of one module. ``bounds`` are the
    layers' l2 bounds in the order of the parameters, their squares adding up to at most clip_norm^2; by default each
    of L layers has clip_norm / sqrt(L).
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
        """One factor per layer; raises ``ValueError`` where there are not as many bounds as layers."""
        layers = list(dict.fromkeys(layer_of(name) for name in names))
        if self.bounds is not None and len(self.bounds) != len(layers):
            raise ValueError(f"{len(self.bounds)} bounds for the {len(layers)} layers of the model: {layers}")
        bounds = self.bounds or (self.clip_norm / sqrt(len(layers)),) * len(layers)
        where = torch.tensor([layers.index(layer_of(name)) for name in names], device=squares.device)
        norms = squares.new_zeros(len(layers), squares.shape[1]).index_add_(0, where, squares).sqrt()
        limits = squares.new_tensor(bounds)[:, None] * (1.0 - 2.0 * _ROOM)
        finite = norms.isfinite().all(0)
        factors = torch.where(finite, clip_factors(norms, limits), 0.0)
        scaled = torch.linalg.vector_norm(torch.where(finite, norms * factors, 0.0), dim=0)
        return factors[where], scaled


@dataclass(frozen=True)
class Truncated(Clipper):
    """First as :class:`Flat`, then every coordinate to +- ``coordinate_bound`` (Xiao, Wan and Devadas, Algorithm 2).

    Truncation only shortens: the l2 norm stays within clip_norm.
    """

    clip_norm: float
    coordinate_bound: float

    def __post_init__(self) -> None:
        _require_positive("clip_norm", self.clip_norm)
        _require_positive("coordinate_bound", self.coordinate_bound)

    def scale(self, squares: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """A hair below the flat factors, so that rounding products to float32 never lengthens a contribution."""
        factors, norms = Flat(self.clip_norm).scale(squares, names)
        return factors * _BELOW, norms


#: A clipper, or the norm to which to clip as a whole.
Clip: TypeAlias = float | Clipper


def clipper(clip: Clip) -> Clipper:
    """The clipper itself, or flat clipping to a number."""
    return clip if isinstance(clip, Clipper) else Flat(float(clip))


def clipper_of(phase: Mapping[str, Any]) -> Clipper:
    """The clipper of a phase: its ``clip_norm``, and ``clipping`` as the contract's fragment CLIPPING describes it.

    Without ``clipping`` it is :class:`Flat`. Raises ``ValueError`` on anything else than the fragment allows.
    """
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
    """min(1, bound / norm) for float64 norms, rounded down to float32; zero where a norm is not finite.

    Rounding down keeps norm * factor <= bound in float64.
    """
    exact = bound / torch.clamp(norms, min=bound)
    factors = exact.float()
    above = (factors > exact) | (norms * factors > bound)
    factors = torch.where(above, torch.nextafter(factors, torch.zeros_like(factors)), factors)
    return torch.where(norms.isfinite(), factors, 0.0)


def layer_of(name: str) -> str:
    """The module that a parameter belongs to: its name up to the last dot."""
    return name.rpartition(".")[0]


def no_norms(device: torch.device) -> Tensor:
    """The norms of no records: (0,) float64."""
    return torch.zeros(0, dtype=torch.float64, device=device)


def add_clipped(totals: Mapping[str, Tensor], gradients: Mapping[str, Tensor | Gradients], clip: Clip) -> Tensor:
    """Add clipped gradients, by parameter, to ``totals`` in place; the norms (b,) of what was added.

    gradients: of b records, as rows (b, ...) or as
    :class:`~dpspec.training.gradients.ghost_parameters.Gradients`.

    A gradient within the bounds is added as it is. A gradient that is not finite counts as zero: no record, however
    broken, contributes more than clip_norm.
    """
    how, names = clipper(clip), tuple(totals)
    each = {name: _gradients(gradients[name]) for name in names}
    squares = torch.stack([each[name].squares() for name in names])
    factors, norms = how.scale(squares, names)
    kept = squares.isfinite().all(0)
    whole = bool(kept.all())
    if not whole:
        factors, each = factors[:, kept], {name: gradient.only(kept) for name, gradient in each.items()}
    if isfinite(how.coordinate_bound):
        added = _add_truncated(totals, each, factors, how.coordinate_bound)
        if whole:
            return added
        norms[kept] = added
        return norms
    for name, weights in zip(names, factors, strict=True):
        each[name].add(totals[name], weights)
    return norms


def _add_truncated(
    totals: Mapping[str, Tensor], each: Mapping[str, Gradients], factors: Tensor, bound: float
) -> Tensor:
    squares, bound = [], bound * _BELOW
    for name, weights in zip(totals, factors, strict=True):
        total = totals[name]
        added = (each[name].rows().reshape(len(weights), total.numel()) * weights[:, None]).clamp_(-bound, bound)
        squares.append(squares_of(added))
        total.view(-1).add_(added.sum(0))
    return torch.stack(squares).sum(0).sqrt()


def _gradients(found: Tensor | Gradients) -> Gradients:
    return Rows(found) if isinstance(found, Tensor) else found


def _require_positive(what: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{what} must be finite and above 0, got {value}")
