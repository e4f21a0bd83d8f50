"""Inner products between the noise of different steps, for every lag and every pair of steps.

Repeated noise shows at one lag (the same noise at each step, a generator seeded again each epoch), or in single pairs
of steps (noise drawn from a small pool). A few thousand coordinates of each step are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Rows: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

#: Number of steps whose inner products with all others are computed at a time.
_BLOCK = 256


@dataclass(frozen=True, kw_only=True)
class Products:
    """Inner products between rows.

    Attributes:
        lags: (steps,), the sum over t of <row t, row t - lag>; 0 at lag 0.
        largest: The inner product with the largest absolute value between rows of different steps.
    """

    lags: Rows
    largest: float


def products(rows: Rows, earlier: Rows | None = None) -> Products:
    """Multiply each row (steps, width) with all ``earlier`` rows before it, by default its own."""
    before = rows if earlier is None else earlier
    count = len(rows)
    lags, largest = np.zeros(count), 0.0
    for start in range(0, count, _BLOCK):
        some = np.arange(start, min(count, start + _BLOCK))
        lag = some[:, None] - np.arange(some[-1])[None, :]
        found = np.where(lag > 0, rows[some] @ before[: some[-1]].T, 0.0)
        lags += np.bincount(np.maximum(lag, 0).ravel(), weights=found.ravel(), minlength=count)
        largest = _larger(largest, found)
    lags[:1] = 0.0
    return Products(lags=lags, largest=largest)


def largest_across(one: Rows, other: Rows) -> float:
    """Return the inner product with the largest absolute value of any two steps of two runs, rows (steps, width)."""
    largest = 0.0
    for start in range(0, len(one), _BLOCK):
        largest = _larger(largest, one[start : start + _BLOCK] @ other.T)
    return largest


def _larger(largest: float, found: Rows) -> float:
    value = float(found.flat[int(np.argmax(np.abs(found)))]) if found.size else 0.0
    return value if abs(value) > abs(largest) else largest


def tested_lags(steps: int) -> int:
    """Return the largest tested lag: longer ones have few terms, and pairs of steps are tested as well."""
    return steps // 2


def worst_lag(sums: Rows) -> int:
    """Return the tested lag with the most surprising sum of products of standard normal rows; 0 without any."""
    count = len(sums)
    last = tested_lags(count)
    if last < 1:
        return 0
    return 1 + int(np.argmax(np.abs(sums[1 : last + 1]) / np.sqrt(count - np.arange(1, last + 1))))
