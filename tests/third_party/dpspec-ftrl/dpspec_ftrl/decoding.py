"""What an adversary who sees all models decodes: the noisy sums, made white, and what a record adds to them.

The noisy sums G (T,) along a direction are X e + C^-1 Z: C makes their noise white, and C G = C X e + deviation *
(standard normal).
"""

from typing import Any, TypeAlias

import numpy as np

from dpspec_ftrl.encoders import Banded

Array: TypeAlias = np.ndarray[Any, Any]

#: Along so many directions the noise of a step is looked at, or as many as there are parameters.
LOOKS = 64


def whitener(encoder: Banded) -> Array:
    """C (T, T), lower triangular."""
    matrix = np.zeros((encoder.steps, encoder.steps))
    for step in range(encoder.steps):
        for row, entry in encoder.column(step).items():
            matrix[row, step] = float(entry * encoder.unit)
    return matrix


def expected(white: Array, slot: int, separation: int) -> Array:
    """What a record of ``slot`` adds to C G, (T,), in units of the clip norm; ``white`` is C (T, T)."""
    return white[:, slot::separation].sum(axis=1)
