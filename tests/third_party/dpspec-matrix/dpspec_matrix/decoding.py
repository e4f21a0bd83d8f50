"""What whoever sees all models decodes of them: the noisy sums, made white, and what a record adds to them.

The noisy sums G (T,) along a direction have noise of the covariance deviation^2 L L^T, so that W = L^-1 makes it white:
W G = W X e + deviation * (standard normal). For a square encoder W is C itself.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from dpspec_matrix.encoders import Banded, Encoder, Tree

Array: TypeAlias = np.ndarray[Any, Any]

#: Along so many directions the noise of a step is looked at, or as many as there are parameters.
LOOKS = 64


def whitener(encoder: Encoder) -> Array:
    """W (T, T), lower triangular, for which W times the noise of a run is white: C, or the inverse factor of B B^T."""
    steps = encoder.steps
    if isinstance(encoder, Banded):
        matrix = np.zeros((steps, steps))
        for step in range(steps):
            for row, entry in encoder.column(step).items():
                matrix[row, step] = float(entry * encoder.unit)
        return matrix
    if not isinstance(encoder, Tree):
        raise TypeError(f"no noise is known for {type(encoder).__name__}")
    sums = np.zeros((steps + 1, encoder.number(steps.bit_length(), 0)))
    for step in range(steps):
        sums[step + 1, encoder.prefix(step)] = 1.0
    decoder = np.diff(sums, axis=0)
    return np.linalg.inv(np.linalg.cholesky(decoder @ decoder.T))


def expected(white: Array, slot: int, separation: int) -> Array:
    """What a record of ``slot`` adds to W G, (T,), in units of the clip norm; ``white`` is W (T, T)."""
    return white[:, slot::separation].sum(axis=1)


def worst_slot(encoder: Encoder, separation: int) -> tuple[int, Array]:
    """The slot whose record this attack sees best, and what it adds to W G, (T,)."""
    white = whitener(encoder)
    seen = [expected(white, slot, separation) for slot in range(min(separation, encoder.steps))]
    slot = max(range(len(seen)), key=lambda j: float(seen[j] @ seen[j]))
    return slot, seen[slot]
