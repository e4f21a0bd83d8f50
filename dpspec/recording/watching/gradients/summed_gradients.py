"""Whether the clipped sum changes between the calls that are allowed to change it.

``clip_and_accumulate`` adds to ``p.summed_grad`` and ``add_noise`` reads it. The recorder projects all sums onto random
directions after the first and compares before the next call of either. The directions come from the system's
randomness, so a script cannot aim at their kernel: an edit of relative size d > 1e-5 is missed with probability at most
(0.8 * 1e-5 / d)^4 for Gaussian directions. Their entries here are products of two Gaussian numbers, one of the place in
a row and one of the row, which costs a logarithm of d and saves the memory of a second model.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

#: Coordinates in a row, and projections of each tensor.
_ROW, _PROJECTIONS = 4096, 4

#: Largest rounding error of a projection, relative to the length of the vector.
_ROUNDING = 1e-5


class SummedGradients:
    """Counts the calls that find another sum than the call before left."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """``parameters``: all that Opacus' optimizer steps."""
        self._parameters = list(parameters)
        size = sum(p.numel() for p in parameters)
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._across = torch.randn(min(_ROW, max(1, size)), _PROJECTIONS, generator=generator).to(device)
        self._down = torch.randn(size // _ROW + 1, _PROJECTIONS, generator=generator).to(device)
        self._left: Tensor | None = None
        self._changed: Tensor | None = None
        self._compared = 0

    @property
    def found(self) -> list[int]:
        """[comparisons, those that found another sum]."""
        return [self._compared, 0 if self._changed is None else int(self._changed)]

    @torch.no_grad()
    def keep(self) -> None:
        """A call that may change the sum is over."""
        self._left = self._projected(self.flat())

    def forget(self) -> None:
        """The sum has been used, and ``zero_grad`` removes it."""
        self._left = None

    @torch.no_grad()
    def compare(self, flat: Tensor | None) -> None:
        """A call that uses the sum begins. flat: what :meth:`flat` returns now."""
        then, now = self._left, self._projected(flat)
        if then is None and now is None:
            return
        self._compared += 1
        if then is None or now is None:
            other = torch.ones((), dtype=torch.int64)
        else:
            apart = (now - then)[:-1].abs().amax() > _ROUNDING * torch.maximum(now[-1], then[-1])
            other = (apart | (now.isfinite() != then.isfinite()).any()).long()
        self._changed = other if self._changed is None else self._changed.to(other.device) + other

    def flat(self) -> Tensor | None:
        """All sums in a row, in single precision or better; None without a sum."""
        sums = [getattr(p, "summed_grad", None) for p in self._parameters]
        there = [s.detach().reshape(-1) for s in sums if isinstance(s, Tensor)]
        return torch.cat([s.to(self._across) if s.dtype.itemsize < 4 else s for s in there]) if there else None

    def _projected(self, flat: Tensor | None) -> Tensor | None:
        """The projections and the length, (5,); None of no sum."""
        if flat is None:
            return None
        flat = flat.to(self._across)
        length = torch.linalg.vector_norm(flat)
        whole = len(flat) // _ROW
        found = flat[whole * _ROW :] @ self._across[: len(flat) - whole * _ROW] * self._down[whole]
        if whole:
            rows = flat[: whole * _ROW].view(whole, _ROW) @ self._across
            found = found + (rows * self._down[:whole]).sum(0)
        return torch.cat([found, length.reshape(1)])
