"""The noise of a step in a few numbers: each layer's sum of squares, and the noise along a recording's directions.

Coordinate i of a layer belongs to direction i mod W, with the sign S[(i div W) mod R, i mod W]; S is a table of R by W
random signs, drawn for each recording from the operating system's randomness, so that a script cannot know it. The
directions are orthogonal, and together they hold every coordinate, so that Gaussian noise of deviation s gives
independent N(0, s^2) along them, and noise that is used again at another step shows in their products
(:mod:`~dpspec.recording.watching.repeated_noise` looks within a step). It takes one addition for each coordinate, and
no memory that grows with the model.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

#: Largest number of directions, and number of rows of signs.
MOST_DIRECTIONS, _ROWS = 128, 127


def width_of(sizes: Sequence[int]) -> int:
    """How many directions a model with layers of these sizes is looked at along: those that hold a coordinate."""
    return min(MOST_DIRECTIONS, max(sizes, default=0))


class NoiseSketch:
    """Adds up the noise of one step, layer by layer."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """``sizes``: how many coordinates each layer has."""
        self.width = width_of(sizes)
        whole = _ROWS * max(1, self.width)
        signs = (
            np.random.default_rng(secrets.randbits(128)).integers(0, 2, size=(_ROWS, max(1, self.width))) * 2.0 - 1.0
        )
        self._signs = torch.tensor(signs, dtype=torch.float64)
        counts = np.zeros(max(1, self.width))
        for size in sizes:
            counts += np.bincount(np.arange(size % whole) % max(1, self.width), minlength=max(1, self.width))
            counts += size // whole * _ROWS
        self._lengths = torch.tensor(np.sqrt(np.maximum(counts, 1.0)))
        self._whole = whole
        self._block: Tensor | None = None
        self._squares: list[Tensor] = []

    def add(self, noise: Tensor) -> None:
        """The noise of the next layer, of any shape."""
        flat = noise.detach().reshape(-1)
        if flat.dtype not in (torch.float32, torch.float64):
            flat = flat.float()
        if self._block is None:
            self._block = torch.zeros(self._whole, dtype=torch.float64, device=flat.device)
        block = self._block
        flat = flat.to(block.device)
        self._squares.append(torch.dot(flat, flat))
        size = flat.numel()
        full = size // self._whole * self._whole
        if full:
            block += flat[:full].view(-1, self._whole).sum(0)
        if full < size:
            block[: size - full] += flat[full:] if full else flat

    def results(self) -> Tensor:
        """(layers + width,) float64 on the noise's device: sums of squares, then the noise along the directions."""
        if self._block is None:
            return torch.zeros(0, dtype=torch.float64)
        signs, lengths = self._signs.to(self._block.device), self._lengths.to(self._block.device)
        along = torch.linalg.vecdot(self._block.view(signs.shape), signs, dim=0) / lengths
        return torch.cat([torch.stack(self._squares).double(), along[: self.width]])

    def clear(self) -> None:
        """Forget it all, before the next step."""
        self._squares = []
        if self._block is not None:
            self._block.zero_()


def directions(sketch: NoiseSketch, sizes: Sequence[int]) -> Tensor:
    """(width, sum of sizes) the unit directions of a sketch, for tests: slow."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = torch.zeros(sketch.width, int(starts[-1]), dtype=torch.float64)
    for low, high in pairwise(starts.tolist()):
        for i in range(high - low):
            rows[i % sketch.width, low + i] = sketch._signs[i // sketch.width % _ROWS, i % sketch.width]
    return rows / sketch._lengths[: sketch.width, None]
