"""The noise of a step in a few numbers: each layer's sum of squares, and the noise along a recording's directions.

Coordinate i of a layer belongs to direction i mod W, with the sign S[(i div W) mod R, i mod W]. S is a table of R by W
random signs from the operating system's randomness. The directions are orthogonal and together hold every coordinate,
so Gaussian noise gives independent values along them, and noise that is reused at another step shows in their products.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

#: Largest number of directions, and number of rows of signs.
MOST_DIRECTIONS, _ROWS = 128, 127

#: Numbers that are read in one piece: the processor's caches hold a piece, and one float32 sum of 10^8 products is 1 %
#: short.
_PIECE = 8 * MOST_DIRECTIONS * _ROWS


def width_of(sizes: Sequence[int], most: int = MOST_DIRECTIONS) -> int:
    return min(most, max(sizes, default=0))


@dataclass(frozen=True)
class MeasuredNoise:
    """The noise of k steps.

    noise: (k, coordinates). sums: (k, size) of each layer, empty if unknown; ``scale`` times them is the sum that the
    noise was added to. squares: (k, layers), float64: sums of squares of each layer's noise. along:
    (k, width) along the directions. lengths: (k,) of the sum; products: (k,) of the noise with it; largest: (k,) the
    largest absolute coordinate of the sum, or of the noise if the sum is unknown; extreme: (k,) of the noise. is_exact:
    whether the noise was read, and not computed as the difference of two rounded tensors.
    """

    noise: Tensor
    sums: Sequence[Tensor]
    scale: float
    squares: Tensor
    along: Tensor
    lengths: Tensor
    products: Tensor
    largest: Tensor
    extreme: Tensor
    is_exact: bool

    @property
    def sketches(self) -> Tensor:
        """(k, layers + width), float64."""
        return torch.cat([self.squares, self.along], dim=1)

    def whole_sums(self) -> Tensor | None:
        """(k, coordinates), None if they are unknown."""
        if not self.sums:
            return None
        return torch.cat([layer_sums.to(self.noise) for layer_sums in self.sums], dim=1).mul_(self.scale)


class NoiseSketch:
    """The signs of one recording. complete: Every direction has a coordinate."""

    def __init__(
        self, sizes: Sequence[int], *, most: int = MOST_DIRECTIONS, seed: int | None = None, width: int | None = None
    ) -> None:
        """sizes: the number of coordinates of each layer. seed: of the signs, by default the system's randomness.
        width: the number of directions, by default of the largest layer."""
        self.width = width_of(sizes, most) if width is None else width
        columns = max(1, self.width)
        rows = min(_ROWS, max(1, -(-max(sizes, default=0) // columns)))
        self._whole = whole = rows * columns
        chance = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
        self._signs = torch.tensor(chance.integers(0, 2, size=(rows, columns)) * 2.0 - 1.0, dtype=torch.float64)
        counts = np.zeros(columns)
        for size in sizes:
            counts += np.bincount(np.arange(size % whole) % columns, minlength=columns) + size // whole * rows
        self.complete = bool(counts.min() > 0)
        self._lengths = torch.tensor(np.sqrt(np.maximum(counts, 1.0)))
        self._noise = torch.empty(0)  # memory of the last noise, since new memory takes longer than its numbers

    @torch.no_grad()
    def measure(
        self,
        layer_noise: Sequence[Tensor],
        sums: Sequence[Tensor] = (),
        *,
        starts: Iterable[int] = repeat(0),
        scale: float = 1.0,
        noisy: bool = False,
    ) -> MeasuredNoise:
        """Measure the noise of k steps in one pass over its coordinates. The next call overwrites the noise.

        layer_noise: (k, size) of each layer, the noise, or with ``noisy`` its sum with ``sums``, times 1 / ``scale``.
        starts: the place of the first coordinate in each layer.
        """
        double = torch.float64 in {part.dtype for part in (*layer_noise, *sums)}
        kind, device = torch.float64 if double else torch.float32, layer_noise[0].device
        steps, width = len(layer_noise[0]), sum(part.shape[1] for part in layer_noise)
        if (self._noise.shape, self._noise.dtype, self._noise.device) != ((steps, width), kind, device):
            self._noise = torch.empty(steps, width, dtype=kind, device=device)
        noise, end = self._noise, 0
        none, block = noise.new_zeros(steps), noise.new_zeros(steps, self._whole)
        piece_sums, layers, ends, extremes = [torch.stack([none] * 3)], [0], [none], [none]
        for layer, (part, start) in enumerate(zip(layer_noise, starts, strict=False)):
            for low in range(0, part.shape[1], _PIECE):
                chunk, *total = (rows[:, low : low + _PIECE].to(noise) for rows in (part, *sums[layer : layer + 1]))
                if scale != 1.0:
                    chunk, total = scale * chunk, [scale * rows for rows in total]
                piece, end = noise[:, end : end + chunk.shape[1]], end + chunk.shape[1]
                torch.sub(chunk, *total, out=piece) if noisy else piece.copy_(chunk)
                self.fold([piece], [start + low], block)
                both = [torch.linalg.vecdot(factor, rows) for rows in total for factor in (piece, rows)]
                piece_sums.append(torch.stack([torch.linalg.vecdot(piece, piece), *(both or [none] * 2)]))
                extremes.append(torch.linalg.vector_norm(piece, torch.inf, dim=1))
                ends += [torch.linalg.vector_norm(rows, torch.inf, dim=1) for rows in total] or extremes[-1:]
                layers.append(layer)
        layer_moments = torch.zeros(len(layer_noise), 3, steps, dtype=torch.float64, device=device)
        layer_moments.index_add_(0, torch.tensor(layers, device=device), torch.stack(piece_sums).double())
        squares, along_sums, of_sums = layer_moments.unbind(1)
        lengths, products = of_sums.sum(0).sqrt(), along_sums.sum(0)
        largest, extreme = torch.stack(ends).amax(0), torch.stack(extremes).amax(0)
        along = self.along(block).double()
        return MeasuredNoise(noise, sums, scale, squares.T, along, lengths, products, largest, extreme, not noisy)

    def fold(self, noise: Iterable[Tensor], starts: Iterable[int] = repeat(0), block: Tensor | None = None) -> Tensor:
        """Add layers, (k, size), to a block for :meth:`along`, by default a new one of float64.

        starts: the place of the first coordinate in each layer.
        """
        for part, start in zip(noise, starts, strict=False):
            rows = part if part.dtype in (torch.float32, torch.float64) else part.float()
            block = rows.new_zeros(len(rows), self._whole, dtype=torch.float64) if block is None else block
            rows, shift, size = rows.to(block.device), start % self._whole, rows.shape[1]
            first = min(size, -shift % self._whole)
            full = (size - first) // self._whole * self._whole
            if first:
                block[:, shift : shift + first] += rows[:, :first]
            if full:
                several = rows[:, first : first + full].view(len(rows), -1, self._whole)
                block += several[:, 0] if full == self._whole else several.sum(1)
            if first + full < size:
                block[:, : size - first - full] += rows[:, first + full :]
        return torch.zeros(1, self._whole, dtype=torch.float64) if block is None else block

    def along(self, block: Tensor) -> Tensor:
        """(k, width), the noise of all layers of a block, which changes, along the directions."""
        self._signs, lengths = self._signs.to(block), self._lengths.to(block)
        along: Tensor = block.view(-1, *self._signs.shape).mul_(self._signs).sum(1) / lengths
        return along[:, : self.width]
