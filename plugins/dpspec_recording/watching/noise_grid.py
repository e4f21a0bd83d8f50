"""The grid of noise that is rounded together with its sum, as a discrete Gaussian mechanism does.

Contributions that are rounded to multiples of a spacing h, and noise that is rounded to the same multiples, release
round(sum + noise): the rounding processes the output of a Gaussian mechanism. Values on a grid repeat, so that repeats
do not show reused noise. Noise on a grid that its sum does not share is another matter: the sum shows through it.
"""

import random
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: The number of values of a step's noise and of its sum that are kept, and of all steps.
_VALUES, _MOST = 256, 2**13

#: The number of values of noise and of sums below which a grid may be chance: 8 ** -64 for values between grid points.
_FEWEST = 64

#: Largest distance of a value from the grid, in spacings: float32 sums of rounded contributions miss it by 1e-7 of
#: their size.
_OFF = 1.0 / 16.0

#: The smallest spacing, in resolutions of the values: all floating-point numbers are on a grid of this size.
_FINEST = 16.0


class NoiseGrid:
    """Values of noise and sums of sampled steps, and their common spacing."""

    def __init__(self, resolution: float) -> None:
        """resolution: of the type of the values, relative to 1."""
        self._resolution, self._random = resolution, random.SystemRandom()
        self._noise: list[Array] = []
        self._sums: list[Array] = []
        self._least_std = np.inf

    def add(self, noise: Tensor, total: Tensor, std: float) -> None:
        """Keep some values of a step. noise, total: (coordinates,). std: of the noise."""
        for pool, values in ((self._noise, noise), (self._sums, total)):
            if sum(map(len, pool)) < _MOST:
                pool.append(self._some(values))
        self._least_std = min(self._least_std, std)

    def _some(self, values: Tensor) -> Array:
        """At most :data:`_VALUES` of the values that are not 0, which is on each grid, at equal distances."""
        nonzero = torch.nonzero(values).flatten()
        stride = max(1, len(nonzero) // _VALUES)
        chosen: Array = values[nonzero[self._random.randrange(stride) :: stride][:_VALUES]].abs().cpu().double().numpy()
        return chosen

    def found(self) -> list[float]:
        """[spacing in the smallest standard deviation of the noise, values of noise, values of sums]; [] without."""
        noise, sums = (np.concatenate([np.zeros(0), *pool]) for pool in (self._noise, self._sums))
        if min(len(noise), len(sums)) < _FEWEST:
            return []
        spacing = spacing_of(noise, self._resolution)
        if not spacing or not _is_on_grid(sums, spacing):
            return []
        return [spacing / self._least_std, len(noise), len(sums)]


def spacing_of(values: Array, resolution: float) -> float:
    """The largest h that divides all values (n,) up to rounding; 0.0 if none is far above the resolution.

    The smallest gap between two values is a first estimate. Each larger value improves it, if it is nearly a multiple
    of it, so that the estimate is exact enough for the next.
    """
    distinct = np.unique(values)
    finest = _FINEST * resolution * float(distinct[-1])
    gaps = np.diff(np.concatenate([[0.0], distinct]))
    gaps = gaps[gaps > finest]  # smaller ones are roundings of equal values
    if not len(gaps):
        return 0.0
    spacing = float(gaps.min())
    for value in distinct[distinct > finest].tolist():
        multiple = round(value / spacing)
        if not multiple or abs(value / spacing - multiple) > 2.0 * _OFF:
            return 0.0
        spacing = value / multiple
    return spacing if _is_on_grid(values, spacing) else 0.0


def _is_on_grid(values: Array, spacing: float) -> bool:
    multiples = values / spacing
    return bool((np.abs(multiples - np.rint(multiples)) <= _OFF).all())
