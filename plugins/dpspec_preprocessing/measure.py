"""What the declared collection bounds, measured on the rows at hand: a membership test of the collection, no bound.

Measured values depend on the rows. They say whether this data set lies in the collection, and how much slack the
declaration has; a bound never uses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: Quantities that the collection bounds from below; all others it bounds from above.
AT_LEAST = frozenset({"min_observed", "min_eigengap", "min_std", "min_eigenvalue"})

#: Rows that are summed at once.
_BLOCK = 1 << 16


def measured(x: Array, step: Mapping[str, Any], device: str = "cpu") -> dict[str, float]:
    """The quantities that a bound for ``step`` reads, by the keys under which a collection declares them.

    device: where near-duplicates of many features are sought.
    """
    if "impute" in step:
        return _missing(x, step)
    if "deduplicate" in step or "quantise" in step:
        return _clusters(x, float(step.get("deduplicate", step.get("quantise"))), device)
    if "pca" in step:
        values, k = spectrum(x), int(step["pca"])
        return {"min_eigengap": float(values[k - 1] - values[k])}
    return {"min_std": float(np.sqrt(_moments(x)[1].diagonal() / len(x)).min())}


def outside(found: Mapping[str, float], collection: Mapping[str, Any]) -> list[str]:
    """The declared keys that a measured value breaks."""
    broken = []
    for key, declared in collection.items():
        value = found.get(key)
        if value is not None and (value < declared if key in AT_LEAST else value > declared):
            broken.append(key)
    return broken


def spectrum(x: Array) -> Array:
    """Eigenvalues of the covariance (divisor n - 1), largest first, from one pass over float64 blocks."""
    values = np.linalg.eigvalsh(_moments(x)[1] / (len(x) - 1))
    return np.asarray(values[::-1], dtype=np.float64)


def _moments(x: Array) -> tuple[Array, Array]:
    """The mean (d,) and the centred scatter matrix (d, d) of rows without missing values."""
    start = x[:_BLOCK].mean(axis=0, dtype=np.float64)
    total, scatter = np.zeros(x.shape[1]), np.zeros((x.shape[1], x.shape[1]))
    for row in range(0, len(x), _BLOCK):
        block = x[row : row + _BLOCK].astype(np.float64) - start
        total += block.sum(axis=0)
        scatter += block.T @ block
    drift = total / len(x)
    return start + drift, scatter - len(x) * np.outer(drift, drift)


def _missing(x: Array, step: Mapping[str, Any]) -> dict[str, float]:
    missing = np.isnan(x)
    in_row = missing.sum(axis=1)
    observed = len(x) - missing.sum(axis=0)
    found = {
        "max_missing_rows": float(np.count_nonzero(in_row)),
        "max_missing_in_row": float(in_row.max(initial=0)),
        "min_observed": float(observed.min()),
    }
    by = str(step["impute"])
    if by == "mean":
        sums = np.where(missing, 0.0, x).sum(axis=0)
        found["max_mean_norm"] = float(np.linalg.norm(sums / np.maximum(observed, 1)))
    elif by in ("median", "trimmed"):
        found["max_spread"] = _spread(x, missing, int(step.get("trim", 0)) if by == "trimmed" else None)
    elif by == "regression":
        complete = x[in_row == 0]
        values = np.linalg.eigvalsh(complete.T @ complete) if len(complete) else np.zeros(1)
        found |= {"min_eigenvalue": float(max(0.0, values[0])), "max_eigenvalue": float(values[-1])}
    return found


def _spread(x: Array, missing: Array, trim: int | None) -> float:
    """The largest difference, over features, of the two order statistics between which the centre of a feature lies.

    Median: numbers ceil((n + 1) / 2) and floor(n / 2), one further out on either side, where a neighbour's may lie;
    trimmed mean: numbers n - m and m (of this data set alone: a collection has the extremes over its members).
    """
    widest = 0.0
    for j in range(x.shape[1]):
        values = np.sort(x[~missing[:, j], j])
        n = len(values)
        if trim is None:
            high, low = math.ceil((n + 1) / 2) + 1, n // 2 - 1
        else:
            high, low = n - trim, max(1, trim)
        widest = max(widest, float(values[min(n, high) - 1] - values[max(1, low) - 1]))
    return widest


def _clusters(x: Array, eta: float, device: str) -> dict[str, float]:
    from dpspec_preprocessing.clusters import Neighbourhoods

    found = Neighbourhoods(x, 8.0 * eta, device)
    return {
        "max_ball": float(found.ball_counts(8.0 * eta).max()),
        "max_cluster": float(found.good_clusters(eta).largest),
    }
