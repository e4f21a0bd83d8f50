"""Is every step's noise new? Inner products between the noise of different steps, at every lag and for every pair.

Noise that is used again shows at one lag (the same at each step, a generator that is seeded anew each epoch), or in
single pairs of steps (drawn from a small pool). Both are looked at, on a few thousand coordinates of each step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from dpspec.stats.conformance import noise_size
from dpspec.stats.conformance.measurement import Measurement

Rows: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

#: Steps whose inner products with all others are computed at once.
_BLOCK = 256


@dataclass(frozen=True, kw_only=True)
class Products:
    """Inner products between rows.

    lags: (steps,), the sum over t of <row t, row t - lag>; lag 0 is left at 0.
    largest: the most surprising inner product between rows of different steps, and its two steps, later one first.
    """

    lags: Rows
    largest: float
    steps: tuple[int, int]


def products(rows: Rows, earlier: Rows | None = None, slack: Rows | None = None, scale: Rows | None = None) -> Products:
    """Inner products of each row (steps, width) with all ``earlier`` rows before it, by default its own.

    The most surprising one is largest in size, less the later row's ``slack`` (steps,) and in units of its ``scale``
    (steps,), by default 0 and 1.
    """
    before = rows if earlier is None else earlier
    count = len(rows)
    slack = np.zeros(count) if slack is None else slack
    scale = np.ones(count) if scale is None else scale
    lags, most, largest, steps = np.zeros(count), 0.0, 0.0, (0, 0)
    for start in range(0, count, _BLOCK):
        some = np.arange(start, min(count, start + _BLOCK))
        lag = some[:, None] - np.arange(some[-1])[None, :]
        found = np.where(lag > 0, rows[some] @ before[: some[-1]].T, 0.0)
        lags += np.bincount(np.maximum(lag, 0).ravel(), weights=found.ravel(), minlength=count)
        if found.size:
            surprise = np.where(lag > 0, (np.abs(found) - slack[some, None]) / scale[some, None], -np.inf)
            i, j = np.unravel_index(int(np.argmax(surprise)), found.shape)
            if steps == (0, 0) or surprise[i, j] > most:
                most, largest, steps = float(surprise[i, j]), float(found[i, j]), (start + int(i), int(j))
    lags[:1] = 0.0
    return Products(lags=lags, largest=largest, steps=steps)


def across(one: Rows, other: Rows) -> tuple[float, float]:
    """Two runs' rows (steps, width): the sum of <one t, other t>, and the largest inner product of any two steps."""
    steps = min(len(one), len(other))
    aligned = float((one[:steps] * other[:steps]).sum())
    largest = 0.0
    for start in range(0, len(one), _BLOCK):
        found = one[start : start + _BLOCK] @ other.T
        if found.size:
            value = float(found.flat[int(np.argmax(np.abs(found)))])
            largest = value if abs(value) > abs(largest) else largest
    return aligned, largest


def tested_lags(steps: int) -> int:
    """Up to which lag sums are tested: at longer ones there is little to add up, and pairs of steps are tested too."""
    return steps // 2


def worst_lag(sums: Rows) -> int:
    """Of the tested lags, that with the most surprising sum of products of standard normal rows; 0 without any."""
    count = len(sums)
    last = tested_lags(count)
    if last < 1:
        return 0
    return 1 + int(np.argmax(np.abs(sums[1 : last + 1]) / np.sqrt(count - np.arange(1, last + 1))))


def repeated(product: float, pairs: int, count: int, tried: int, test: str) -> Measurement:
    """Test the largest of ``tried`` sums of ``pairs`` products among ``count`` standard normal numbers."""
    return replace(noise_size.correlation(product, pairs, count, tried), test=test)
