"""Exact tests that the noise vectors of different steps are independent standard normal.

Let n_1, ..., n_T be the noise of the steps along W orthonormal directions, in standard deviations. If each n_k is
N(0, I) given all earlier vectors, then n_k . u is N(0, 1) for any unit vector u that is a function of the earlier ones,
and sums of such products over different k are normal with their number as the variance. Over disjoint windows of w
steps, the squared length of the sum of their noise divided by w is chi-square with W degrees of freedom.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from scipy import special

from dpspec.stats import gaussian_noise
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Rows of a block of products.
_BLOCK = 512


def pairs(vectors: Array, test: str) -> Measurement:
    """Test the most correlated of all pairs of ``vectors`` (T, W); ``measured`` is n_k . n_j / (|n_j| sqrt(W))."""
    units, worst = _units(vectors), 0.0
    for start in range(0, len(vectors), _BLOCK):
        products = vectors[start : start + _BLOCK] @ units[: start + _BLOCK].T
        lower = np.tril(products, start - 1)
        worst = max((worst, float(lower.min()), float(lower.max())), key=abs)
    return _normal(worst, len(vectors) * (len(vectors) - 1) // 2, vectors.shape[1], test)


def distances(vectors: Array, test: str) -> Measurement:
    """Test the most extreme sum of products of ``vectors`` (T, W) at one distance; ``measured`` is a correlation."""
    count = len(vectors)
    length = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(vectors, length, axis=0) * np.conj(np.fft.rfft(_units(vectors), length, axis=0))
    sums = np.fft.irfft(spectrum.sum(axis=1), length)[1:count]
    number = count - np.arange(1.0, count)
    scores = sums / np.sqrt(number)
    worst = int(np.argmax(np.abs(scores)))
    return _normal(float(scores[worst]), count - 1, vectors.shape[1] * number[worst], test)


def earlier_sums(vectors: Array, test: str) -> tuple[Measurement, Measurement]:
    """Test ``vectors`` (T, W) along the sum of the earlier ones: the most extreme step, and the sum over the steps."""
    scores = np.einsum("ij,ij->i", vectors[1:], _units(np.cumsum(vectors, axis=0)[:-1]))
    total, width = float(scores.sum()) / math.sqrt(len(scores)), vectors.shape[1]
    return (
        _normal(float(scores[np.argmax(np.abs(scores))]), len(scores), width, test),
        _normal(total, 1, width * len(scores), test),
    )


def windows(vectors: Array, test: str) -> list[Measurement]:
    """Test the sums of ``vectors`` (T, W) over windows of T, T/2, T/4, ... steps, down to 2."""
    made, count = [], len(vectors)
    size = count
    sums = np.concatenate([np.zeros((1, vectors.shape[1])), np.cumsum(vectors, axis=0)])
    while size >= 2:
        parts = np.diff(sums[::size], axis=0)
        made.append(gaussian_noise.spread(float(np.square(parts).sum()) / size, parts.size, test))
        size //= 2
    return made


def _units(vectors: Array) -> Array:
    """The directions of vectors, 0 of a vector without length."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Array = vectors / np.where(lengths > 0.0, lengths, 1.0)
    return found


def _normal(score: float, tried: int, dimensions: float, test: str) -> Measurement:
    """Test the most extreme of ``tried`` values that are N(0, 1); as correlations in ``dimensions`` dimensions."""
    seen = (float(special.ndtri(POWER)) - float(special.ndtri(0.5 * LEVEL / tried))) / math.sqrt(dimensions)
    return Measurement(
        test=test,
        declared=0.0,
        measured=score / math.sqrt(dimensions),
        p_value=min(1.0, 2.0 * tried * float(special.ndtr(-abs(score)))),
        detectable=seen if seen <= 1.0 else None,
    )
