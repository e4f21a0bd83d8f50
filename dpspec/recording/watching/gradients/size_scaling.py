"""How the lengths of per-sample gradients change with the size of the batch.

A per-sample gradient depends on no other record, so its length does not depend on the batch size b. If the loss is
a mean and Opacus expects a sum, or the other way around, every length is wrong by a factor 1/b or b. Batches drawn by
Poisson sampling have random sizes, which makes the factor visible: the recorder regresses the logarithm of the median
length on log b, both as differences of consecutive calls, so that a trend over the training cancels.

The slope is 0 for a matching loss, -1 for a mean in place of a sum and 1 for a sum in place of a mean. Differences of
independent errors have correlation -1/2 with their neighbors, and so do differences of log b, so the variance of the
slope is 3/2 of the one that ordinary least squares states.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Medians that wait on the device before they are read.
_WAITING = 64


class SizeScaling:
    """Sums for the regression over all calls of ``clip_and_accumulate``."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Tensor]] = []
        self._last: tuple[float, float] | None = None
        self._pairs = 0
        self._sums = [0.0, 0.0, 0.0]

    def add(self, lengths: Tensor) -> None:
        """(b,) the lengths of the per-sample gradients of one call, before clipping."""
        if len(lengths) > 1:
            self._waiting.append((len(lengths), lengths.median()))
        if len(self._waiting) >= _WAITING:
            self._read()

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        device = waiting[0][1].device
        medians = torch.stack([median.to(device) for _, median in waiting]).tolist()
        for (size, _), median in zip(waiting, medians, strict=True):
            if not (0.0 < median < math.inf):
                self._last = None
                continue
            now = (math.log(size), math.log(median))
            if self._last is not None:
                x, y = now[0] - self._last[0], now[1] - self._last[1]
                self._pairs += 1
                self._sums = [one + more for one, more in zip(self._sums, (x * x, x * y, y * y), strict=True)]
            self._last = now

    @property
    def found(self) -> list[float] | None:
        """[pairs of calls, slope, its standard error]; None if sizes do not vary."""
        self._read()
        xx, xy, yy = self._sums
        if self._pairs < 8 or xx <= 0.0:
            return None
        slope = xy / xx
        error = math.sqrt(1.5 * max(0.0, yy - slope * xy) / self._pairs / xx)
        return [self._pairs, slope, error]
