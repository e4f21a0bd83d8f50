"""Whether and how far the parameters were moved: one copy of them, and comparisons with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: How far a parameter moved that became, or was, no number.
_HUGE = 1e300


class ParameterWatch:
    """Keeps the parameters as the optimizer left them; memory for one copy."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._last = [p.detach().clone() for p in self._parameters]
        self._on_host = all(p.device.type == "cpu" for p in self._parameters)

    def same(self) -> bool:
        """Whether all parameters are in the host's memory and equal to the copy."""
        return self._on_host and all(torch.equal(p, q) for p, q in zip(self._parameters, self._last, strict=True))

    @torch.no_grad()
    def moved(self) -> Tensor:
        """How far the parameters are from the copy: an l2 norm, 0 only where every one of them is the same.

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
            if math.isfinite(distance := float(torch.linalg.vector_norm(apart))):
                return torch.tensor(distance, dtype=torch.float64)
        apart = torch.stack([torch.linalg.vector_norm(_difference(p, q)).to(self._last[0].device) for p, q in pairs])
        norm: Tensor = torch.linalg.vector_norm(apart.double())
        return norm.nan_to_num(nan=_HUGE, posinf=_HUGE)

    @torch.no_grad()
    def keep(self) -> None:
        """Take the parameters as they are now for the copy."""
        for p, q in zip(self._parameters, self._last, strict=True):
            q.copy_(p)


def _difference(p: Tensor, q: Tensor) -> Tensor:
    same = (p == q) | (p.isnan() & q.isnan())
    return torch.where(same, torch.zeros((), dtype=p.dtype, device=p.device), p - q)
