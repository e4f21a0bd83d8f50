"""Whether noise is used again within one step: in another layer, in another row, or in the other half of a vector.

Two coordinates with the same noise have none in their difference. Fresh noise of float32 takes the same two absolute
values one after the other twice with a chance of about 2^-47: what is looked at is how many neighbouring pairs of a
step's noise occur a second time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: So many numbers of a step are looked at, equally many of each layer.
MOST_NUMBERS = 2**20

_SIGN = 0x7FFFFFFF


class RepeatedNoise:
    """Looks at steps 1, 2, 4, 8, ...: who uses noise again does so from the first step on."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """``sizes``: how many numbers the noise of each layer has, in their order."""
        self._sizes, self._each = list(sizes), max(2, MOST_NUMBERS // max(1, len(sizes)))
        self._steps = self._looks = 0
        self._worst = (0, 0)

    def look(self, noise: Tensor) -> None:
        """The noise of one more step, all its numbers in a row."""
        self._steps += 1
        if self._steps & (self._steps - 1) or noise.dtype not in (torch.float32, torch.float64):
            return
        parts = [part[: self._each] for part in torch.split(noise.detach().reshape(-1).float(), self._sizes)]
        bits = torch.cat(parts).contiguous().view(torch.int32).long() & _SIGN
        if len(bits) < 2 or not bool(bits.any()):
            return
        pairs = (bits[:-1] << 31) | bits[1:]
        repeated = len(pairs) - len(torch.unique(pairs))
        self._looks += 1
        self._worst = max(self._worst, (repeated, len(pairs)))

    def found(self) -> list[int] | None:
        """[looks, the most pairs that occurred before, among so many]; None where no step was looked at."""
        return [self._looks, *self._worst] if self._looks else None
