"""Clippers keep the l2 norm of each contribution within ``clip_norm``, which functions accept in their place."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dpspec.contract.phase import Phase
from dpspec.training.gradients.ghost_calls import Gradients, Rows
from dpspec.training.gradients.ghost_calls import squares_of as squares_of

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
