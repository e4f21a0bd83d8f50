"""Whether noise has the same variance in all directions: statistics of the noise of steps as vectors.

Noise that is confined to a subspace, filtered or scaled per coordinate can have normal values of the declared variance.
A record then shows in the directions that the noise lacks. Of p independent vectors N(0, I) in q >= p dimensions, each
has chi-square components along the earlier ones and across them (Theorem R8 of
``docs/explanation/proofs/recorded-runs.md``). The vectors are the noise of kept steps, or the rows or the columns of
the noise of a tensor at sampled steps.
"""

import random
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.stats import gaussian_noise
from dpspec_recording.watching.noise_facts import Alignment, Volume, statistic

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Coordinates of a kept step, and numbers of all kept steps (64 MB).
_COORDINATES, _NUMBERS = 2**20, 2**24

#: The numbers of steps of a block: at least twice the coordinates, if these are at most ``_SMALL``.
_FEWEST, _STEPS, _SMALL = 16, 512, 1024

#: Products of a later step with the steps of its block, on average over the steps: 1 % of a step of an MLP.
_PRODUCTS = 16

#: Coordinates whose products are computed in one go, as copies in double precision.
_PIECE = 2**13

#: Rows or columns of a tensor that are compared, and the numbers of each.
_LINES, _LENGTH = 128, 1024

#: Relative and absolute increase of the squared lengths, which keeps products of dependent vectors positive definite.
_JITTER, _LEAST = 1e-9, 1e-100

#: Coordinates whose sums of squares over the steps are compared.
_DISPERSED = 2**16


@dataclass
class _Components:
    """Squared components of vectors along the earlier ones, and the volume that the vectors span.

    ratios: (p,) squared lengths of the vectors across the earlier ones, over their degrees of freedom in q dimensions.
    """

    squares: float
    terms: int
    ratios: Array
    dimensions: int

    @staticmethod
    def of(products: Array, dimensions: int) -> "_Components":
        """Of the products (p, p) of p vectors in at least p dimensions."""
        count = len(products)
        shifted = products + (_JITTER * float(np.trace(products)) / count + _LEAST) * np.eye(count)
        lower = np.linalg.cholesky(shifted)
        ratios = np.square(np.diag(lower)) / (dimensions - np.arange(count))
        squares = float(np.square(np.tril(lower, -1)).sum())
        return _Components(squares, count * (count - 1) // 2, ratios, dimensions)

    def alignment(self, families: int) -> Alignment:
        return Alignment(squares=statistic(self.squares), terms=self.terms, families=families)

    def volume(self, rounding: float, families: int) -> Volume:
        """rounding: of a number, which can bring each vector closer to the earlier ones."""
        ratio = float(np.exp(2.0 * np.log(np.sqrt(self.ratios) + rounding).mean()))
        return Volume(ratio=statistic(ratio), vectors=len(self.ratios), dimensions=self.dimensions, families=families)


class KeptSteps:
    """Noise of steps in units of its standard deviation: all of the first ones, and later ones at random, in blocks."""

    def __init__(self, coordinates: int) -> None:
        self._random = random.SystemRandom()
        stride = max(1, -(-coordinates // _COORDINATES))
        self._where = slice(self._random.randrange(stride), None, stride)
        self._width = -(-coordinates // stride)
        most = max(_STEPS, 2 * self._width) if self._width <= _SMALL else _STEPS
        self._most = max(_FEWEST, min(most, _NUMBERS // max(1, self._width)))
        self._rows: list[Tensor] = []
        self._blocks: list[_Components] = []

    def add(self, noise: Tensor, std: float) -> None:
        """Keep the noise (coordinates,) of a step, perhaps."""
        if self._blocks and self._random.random() >= _PRODUCTS / self._most:
            return
        self._rows.append(noise[self._where] / std)
        if len(self._rows) == self._most:
            self._blocks.append(self._components())
            self._rows = []

    def found(self) -> _Components | None:
        """The squared components within all blocks, and the volume of the first; None for less than two vectors."""
        is_open = min(len(self._rows), self._width) >= 2
        blocks = [*self._blocks, *([self._components()] if is_open else [])]
        if not blocks or self._width < 2:
            return None
        squares, terms = sum(block.squares for block in blocks), sum(block.terms for block in blocks)
        return _Components(squares, terms, blocks[0].ratios, blocks[0].dimensions)

    def _components(self) -> _Components:
        """Of the kept rows as vectors, or of the coordinates as vectors if these are fewer."""
        steps, width = len(self._rows), self._width
        by_steps = steps <= width
        products = np.zeros((min(steps, width), min(steps, width)))
        for low in range(0, width, _PIECE):  # one piece, if the coordinates are fewer
            piece = torch.stack([row[low : low + _PIECE] for row in self._rows]).double()
            products += (piece @ piece.T if by_steps else piece.T @ piece).cpu().numpy()
        return _Components.of(products, max(steps, width))


class Lines:
    """Products of the rows, or of the columns, of the noise of one tensor at several steps."""

    def __init__(self, shape: tuple[int, int]) -> None:
        """shape: numbers of lines, and of values of a line. Neighboring lines are compared, from a random one on."""
        chance = random.SystemRandom()
        limits = zip(shape, (_LINES, _LENGTH), strict=True)
        first, low = (chance.randrange(max(1, size - most + 1)) for size, most in limits)
        self._where = slice(first, first + _LINES), slice(low, low + _LENGTH)
        count = min(shape[0], _LINES)
        self._products, self._length = np.zeros((count, count)), 0

    def add(self, lines: Tensor) -> None:
        """Add the noise of a step, in units of its standard deviation."""
        block = lines[self._where].double()
        self._products += (block @ block.T).cpu().numpy()
        self._length += block.shape[1]

    def found(self) -> _Components | None:
        """None if there are fewer values than lines."""
        return _Components.of(self._products, self._length) if self._length >= len(self._products) else None


def worst_alignment(families: list[_Components]) -> Alignment | None:
    """The family with the smallest probability."""
    if not families:
        return None
    worst = min(families, key=lambda family: gaussian_noise.log_upper_tail(family.squares, family.terms))
    return worst.alignment(len(families))


def worst_volume(families: list[_Components], rounding: float) -> Volume | None:
    """The family with the smallest bound on its probability."""
    volumes = [family.volume(rounding, len(families)) for family in families]
    return min(
        volumes,
        key=lambda volume: gaussian_noise.log_volume_tail(volume.ratio, int(volume.vectors), int(volume.dimensions)),
        default=None,
    )


def sampled_squares(squares: list[Tensor]) -> Array:
    """At most 2^16 of the coordinates' sums of squares, at equal distances."""
    count = sum(len(part) for part in squares)
    stride = max(1, -(-count // _DISPERSED))
    chosen: Array = torch.cat([part[::stride] for part in squares]).cpu().double().numpy()
    return chosen
