"""Random choices of the noise tests: which steps are sampled, and which coordinates.

All randomness comes from the operating system, so that no script can predict a choice. The generators of the training
stay as they are.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

#: Sampled steps: all of the first few, then pairs of successive steps that begin at step n with probability rate / n.
_FIRST, _RATE = 4, 2.0

#: Number of coordinates in the window for products, and in one of its blocks.
WINDOW, _BLOCK = 2**16, 2**13

#: Rows and columns of a block of one layer, and the number of layers sampled at one step.
_ROWS, _COLUMNS, _LAYERS = 64, 512, 16


class SampledSteps:
    """Decides for each step in turn whether it is sampled: about 20 of 200 steps, 30 of 2,000."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()
        self._step, self._follows = 0, False

    def next(self) -> bool:
        """Whether the next step is sampled."""
        self._step += 1
        begins = self._step <= _FIRST or self._random.random() < _RATE / self._step
        sampled = begins or self._follows
        self._follows = begins and not self._follows
        return sampled


class Coordinates:
    """Chooses coordinates of a model with layers of given shapes."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        """``shapes``: one for each layer, in order."""
        self._random = np.random.default_rng(int.from_bytes(os.urandom(16), "little"))
        self._shapes = [tuple(shape) for shape in shapes]
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        self._starts = [0, *np.cumsum(sizes).tolist()]
        self.count = self._starts[-1]
        self._matrices = [n for n, shape in enumerate(self._shapes) if sum(side > 1 for side in shape) > 1]

    def every(self, most: int) -> slice:
        """At most ``most`` coordinates at equal distances, from a random start."""
        stride = max(1, -(-self.count // most))
        return slice(int(self._random.integers(stride)), None, stride)

    def window(self) -> list[slice]:
        """Disjoint stretches of coordinates: all, or four of a large model.

        Three of the four are a random stretch, the one half a model further on, and its mirror image.
        """
        if self.count <= WINDOW:
            return [slice(0, self.count)]
        start, half = int(self._random.integers(self.count // 8)), self.count // 2
        quarter = self.count // 4
        other = quarter + int(self._random.integers(max(1, quarter - 4 * _BLOCK)))
        first = [(start, _BLOCK), (other, min(4 * _BLOCK, half - other)), (half + start, _BLOCK)]
        ends = [(low, low + size) for low, size in [*first, (self.count - start - _BLOCK, _BLOCK)]]
        assert all(before[1] <= after[0] for before, after in pairwise(ends))
        return [slice(low, high) for low, high in ends]

    def blocks(self) -> list[tuple[int, Tensor]]:
        """Random submatrices of layers with two dimensions or more: the layer's number and (p, q) coordinates.

        Each takes some of the layer's dimensions for rows and the others for columns; p <= q.
        """
        chosen = self._matrices
        if len(chosen) > _LAYERS:
            chosen = sorted(self._random.choice(chosen, _LAYERS, replace=False).tolist())
        return [(layer, self._block(layer)) for layer in chosen]

    def _block(self, layer: int) -> Tensor:
        shape = self._shapes[layer]
        sides = [n for n, side in enumerate(shape) if side > 1]
        rows = sides[: int(self._random.integers(1, len(sides)))]
        if len(sides) > 2 and self._random.random() < 0.5:
            rows = [sides[int(self._random.integers(len(sides)))]]
        columns = [n for n in sides if n not in rows]
        strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1).astype(np.int64)
        parts = []
        for dimensions in (rows, columns):
            lengths = [shape[n] for n in dimensions]
            parts.append((int(np.prod(lengths)), lengths, strides[dimensions]))
        if parts[0][0] > parts[1][0]:
            parts.reverse()
        offsets = []
        for (size, lengths, steps), most in zip(parts, (_ROWS, _COLUMNS), strict=True):
            picked = self._random.choice(size, min(size, most), replace=False, shuffle=False)
            offsets.append(np.stack(np.unravel_index(picked, lengths), axis=-1) @ steps)
        return torch.from_numpy(self._starts[layer] + offsets[0][:, None] + offsets[1][None, :])
