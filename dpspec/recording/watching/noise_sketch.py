"""The noise of a step in a few numbers: each layer's sum of squares, and the noise along a recording's directions.

Coordinate i of a layer belongs to direction i mod W, with the sign S[(i div W) mod R, i mod W]. S is a table of R by W
random signs from the operating system's randomness. The directions are orthogonal and together hold every coordinate,
so Gaussian noise gives independent values along them, and noise that is reused at another step shows in their products.
"""

import secrets
from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from dpspec.recording.watching.noise_watch import dots, row_of

#: Largest number of directions, and number of rows of signs.
MOST_DIRECTIONS, _ROWS = 128, 127


def width_of(sizes: Sequence[int], most: int = MOST_DIRECTIONS) -> int:
    return min(most, max(sizes, default=0))


class NoiseSketch:
    """The signs of one recording. complete: Every direction has a coordinate."""

    def __init__(
        self, sizes: Sequence[int], *, most: int = MOST_DIRECTIONS, seed: int | None = None, width: int | None = None
    ) -> None:
        """sizes: the number of coordinates of each layer. seed: of the signs, by default the system's randomness.
        width: the number of directions, by default of the largest layer."""
        self.width = width_of(sizes, most) if width is None else width
        columns = max(1, self.width)
        self._whole = whole = _ROWS * columns
        signs = (
            np.random.default_rng(secrets.randbits(128) if seed is None else seed).integers(0, 2, size=(_ROWS, columns))
            * 2.0
            - 1.0
        )
        self._signs = torch.tensor(signs, dtype=torch.float64)
        counts = np.zeros(columns)
        for size in sizes:
            counts += np.bincount(np.arange(size % whole) % columns, minlength=columns) + size // whole * _ROWS
        self.complete = bool(counts.min() > 0)
        self._lengths = torch.tensor(np.sqrt(np.maximum(counts, 1.0)))

    def of(self, noise: Iterable[Tensor], starts: Iterable[int] = repeat(0)) -> Tensor:
        """(layers + width,) float64 on the noise's device: sums of squares, then the noise along the directions.

        noise: one tensor for each layer, of any shape. starts: the place of its first coordinate in the layer.
        """
        parts = [row_of([part]) for part in noise]
        block = self.fold(parts, starts)
        return torch.cat([*(dots(part, part).to(block.device)[None] for part in parts), self.along(block)])

    def fold(self, noise: Iterable[Tensor], starts: Iterable[int] = repeat(0), block: Tensor | None = None) -> Tensor:
        """Add layers, as in :meth:`of`, to a block for :meth:`along`, by default a new one."""
        for part, start in zip(noise, starts, strict=False):
            flat = row_of([part])
            if block is None:
                block = torch.zeros(self._whole, dtype=torch.float64, device=flat.device)
            if start % self._whole:
                flat = torch.nn.functional.pad(flat, (start % self._whole, 0))
            full = flat.numel() // self._whole * self._whole
            if full:
                block += flat[:full].view(-1, self._whole).sum(0).to(block.device)
            if full < flat.numel():
                block[: flat.numel() - full] += flat[full:].to(block.device)
        return torch.zeros(self._whole, dtype=torch.float64) if block is None else block

    def along(self, block: Tensor) -> Tensor:
        """(width,) float64, the noise of all layers of a block along the directions."""
        signs, lengths = self._signs.to(block.device), self._lengths.to(block.device)
        along: Tensor = torch.linalg.vecdot(block.view(signs.shape), signs, dim=0) / lengths
        return along[: self.width]

    def of_rows(self, noise: Tensor, sizes: Sequence[int]) -> Tensor:
        """(k, layers + width): as :meth:`of`, of k steps of layers of these sizes, which are the columns of ``noise``.

        In the precision of ``noise``.
        """
        used = -(-max(sizes, default=0) // self._signs.shape[1]) * self._signs.shape[1]
        block = noise.new_zeros(len(noise), min(self._whole, used))
        squares = []
        for part in torch.split(noise, list(sizes), dim=1):
            squares.append(torch.linalg.vecdot(part, part))
            for piece in torch.split(part, self._whole, dim=1):
                block[:, : piece.shape[1]] += piece
        signs, lengths = self._signs.to(noise), self._lengths.to(noise)
        block *= signs.reshape(-1)[: block.shape[1]]
        along = block.view(len(noise), -1, signs.shape[1]).sum(1) / lengths
        return torch.cat([torch.stack(squares, dim=1), along[:, : self.width]], dim=1)
