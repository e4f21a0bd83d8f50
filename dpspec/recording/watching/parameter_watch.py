"""Distances that parameters moved: one copy of the parameters, and comparisons with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: Distance of a parameter that became or was NaN, and of a zero whose sign changed.
_HUGE, _TINY = 1e300, 1e-30

#: Integers of the same size as a number.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ParameterWatch:
    """Keeps the parameters as the optimizer left them; memory for one copy."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._last = [p.detach().clone() for p in self._parameters]
        self._on_host = all(p.device.type == "cpu" for p in self._parameters)

    def same(self) -> bool:
        """Whether all parameters are in the host's memory and have the bits of the copy, signs of zeros included."""
        pairs = zip(self._parameters, self._last, strict=True)
        return self._on_host and all(torch.equal(_bits(p), _bits(q)) for p, q in pairs)

    @torch.no_grad()
    def moved(self) -> Tensor:
        """The l2 distance of the parameters from the copy, 0 only if all bits are the same.

        Infinities and NaN that stayed are no move; where one came or went the distance is huge, and never NaN.
        """
        return torch.zeros((), dtype=torch.float64) if self.same() else self._distance()

    @torch.no_grad()
    def advance(self) -> Tensor:
        """The distance as of :meth:`moved`; from now on it counts from the parameters as they are."""
        distance = self._distance()
        self.keep()
        return distance

    def _distance(self) -> Tensor:
        pairs = list(zip(self._parameters, self._last, strict=True))
        if not pairs:
            return torch.zeros((), dtype=torch.float64)
        if self._on_host:
            apart = torch.stack([torch.linalg.vector_norm(p.detach() - q) for p, q in pairs]).double()
            if 0.0 < (distance := float(torch.linalg.vector_norm(apart))) < math.inf:
                return torch.tensor(distance, dtype=torch.float64)
        device = self._last[0].device
        apart = torch.stack([torch.linalg.vector_norm(_difference(p, q)).to(device) for p, q in pairs])
        norm: Tensor = torch.linalg.vector_norm(apart.double())
        other = torch.stack([(_bits(p) != _bits(q)).any().to(device) for p, q in pairs])
        return torch.maximum(norm.nan_to_num(nan=_HUGE, posinf=_HUGE), other.any().double() * _TINY)

    @torch.no_grad()
    def keep(self) -> None:
        """Take the parameters as they are now for the copy."""
        for p, q in zip(self._parameters, self._last, strict=True):
            q.copy_(p)


def _difference(p: Tensor, q: Tensor) -> Tensor:
    same = (p == q) | (p.isnan() & q.isnan())
    return torch.where(same, torch.zeros((), dtype=p.dtype, device=p.device), p - q)


def _bits(value: Tensor) -> Tensor:
    """The numbers as integers of the same size."""
    value = value.detach()
    real = torch.view_as_real(value) if value.is_complex() else value
    return real.view(_BITS[real.element_size()])
