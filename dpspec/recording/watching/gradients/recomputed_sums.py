"""The clipped sum, recomputed from the per-sample gradients at random calls of ``clip_and_accumulate``.

Call n is recomputed with probability min(1, 4 / n), so all of the first four calls and about 4 + 4 ln(T / 4) of T. The
choice comes from the system's randomness: a script cannot predict it, and its generators draw the same numbers.

Two float32 sums of b terms with lengths l_i differ by at most (16 + 4 sqrt(b)) u sum l_i in practice, where u = 2^-23
covers the terms, the factors and their norms. A sum of b unrelated gradients is about sqrt(b) times shorter than
sum l_i, so the smallest factor on the sum that the comparison detects is about 1 + (16 sqrt(b) + 4 b) u: 1.00005 for
b = 64. The recorder reports the largest of these limits over the recomputed calls.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

#: All calls up to this one are recomputed.
_FIRST = 4


class RecomputedSums:
    """Compares ``summed_grad`` with the recomputed sum of clipped per-sample gradients."""

    def __init__(self, optimizer: Any, clipping: str) -> None:
        """clipping: ``flat``, ``per-layer`` or ``adaptive``."""
        self._optimizer, self._clipping = optimizer, clipping
        self._random = random.SystemRandom()
        self._expected: list[tuple[Tensor, Tensor]] = []
        self._calls = self._recomputed = self._different = 0
        self._limit = 0.0

    @property
    def found(self) -> list[float]:
        """[calls, recomputed calls, calls with another sum, smallest relative change that every comparison detects]."""
        return [self._calls, self._recomputed, self._different, min(self._limit, 1e9)]

    @torch.no_grad()
    def expect(self) -> None:
        """A call begins: compute the sum that it must leave, if the call is chosen."""
        self._calls += 1
        self._expected = []
        if self._random.random() * self._calls >= _FIRST:
            return
        optimizer, parameters = self._optimizer, self._optimizer.params
        gradients = [g.detach().flatten(1) if g.dim() > 1 else g.detach()[:, None] for g in optimizer.grad_samples]
        norms = [torch.linalg.vector_norm(g, dim=1, dtype=_single(g)) for g in gradients]
        if self._clipping == "per-layer":
            limits = [float(limit) for limit in optimizer.max_grad_norms]
            factors = [_factors(limit, norm) for limit, norm in zip(limits, norms, strict=True)]
        else:
            device = norms[0].device
            whole = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), dim=0)
            factors = [_factors(float(optimizer.max_grad_norm), whole).to(norm.device) for norm in norms]
        with torch.autocast(gradients[0].device.type, enabled=False):
            for p, g, norm, factor in zip(parameters, gradients, norms, factors, strict=True):
                total = torch.mv(g.to(norm.dtype).t(), factor)
                room = (16.0 + 4.0 * math.sqrt(len(g))) * _unit(g, p) * (factor * norm).sum()
                before = p.summed_grad
                if before is not None:
                    room = room + 4.0 * _unit(g, p) * torch.linalg.vector_norm(before.detach().to(total))
                    total = total + before.detach().reshape(-1).to(total)
                self._expected.append((total, room))

    @torch.no_grad()
    def compare(self) -> None:
        """The call is over."""
        expected, self._expected = self._expected, []
        if not expected:
            return
        apart, lengths, rooms = [], [], []
        for p, (total, room) in zip(self._optimizer.params, expected, strict=True):
            apart.append(float(torch.linalg.vector_norm(p.summed_grad.detach().reshape(-1).to(total) - total)))
            lengths.append(float(torch.linalg.vector_norm(total)))
            rooms.append(float(room))
        self._recomputed += 1
        self._different += any(distance > room for distance, room in zip(apart, rooms, strict=True))
        if math.hypot(*lengths) > 0.0:
            self._limit = max(self._limit, math.hypot(*rooms) / math.hypot(*lengths))


def _single(gradients: Tensor) -> torch.dtype:
    """The type to compute in: single precision, or better if the gradients are."""
    return torch.float64 if gradients.dtype == torch.float64 else torch.float32


def _factors(limit: float, norms: Tensor) -> Tensor:
    return (limit / (norms + 1e-6)).clamp(max=1.0)


def _unit(gradients: Tensor, parameter: Tensor) -> float:
    """The relative rounding error of one operation in the types of the sum and of matrix products."""
    kinds = [kind for kind in (gradients.dtype, parameter.dtype) if kind.is_floating_point]
    unit = max(torch.finfo(kind).eps for kind in kinds)
    coarse = {"high": 2.0**-11, "medium": 2.0**-8}.get(torch.get_float32_matmul_precision(), 0.0)
    return max(unit, coarse)
