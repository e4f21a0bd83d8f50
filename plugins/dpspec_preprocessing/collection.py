"""Measurement of the data and comparison with the declared ball and collection. Bounds never use measured values."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import dpspec.contract as dps
from dpspec_preprocessing.options import Declaration, Pipeline
from dpspec_preprocessing.sensitivity import Step, gap_sensitivity
from dpspec_preprocessing.steps import TREE_FEATURES, Array, Neighbourhoods, clip_rows

#: Limits from below; all others are limits from above.
AT_LEAST = frozenset({"min_observed", "min_eigengap", "min_std", "min_eigenvalue"})

#: Factor on the radius of counted balls, which must include records that rounding moves to within 3 eta of another.
_EDGE = 1.0 + 1e-9


#: Relative rounding error of the norm of float32 rows.
_ROUNDING = 1e-6


def flat_rows(context: dps.Context, declared: Declaration, *, test: bool = False) -> Array:
    data = context.data
    rows = data.test_x if test else data.train_x
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:])).astype(np.float64)
    return in_ball(flat, declared.radius, clip=declared.clip_rows)


def in_ball(x: Array, radius: float, *, clip: bool = False) -> Array:
    """Rows of norm at most ``radius``. Without ``clip`` longer rows are errors, except for float32 rounding."""
    norms = np.sqrt(np.nansum(np.square(x), axis=1))
    beyond = int(np.count_nonzero(norms > radius * (1.0 + _ROUNDING)))
    if beyond and not clip:
        raise dps.DataError(
            f"{beyond} records are outside the declared ball of radius {radius:g}; write mechanism.clip_rows: true or "
            f"data.radius: {radius:g} to scale them down, or data.standardise to scale features first"
        )
    return clip_rows(x, radius)


def search_device(context: dps.Context, pipeline: Pipeline) -> str:
    """Device of the near-duplicate search in many features. Other steps use the CPU without torch."""
    seeks = any(step.merges for step in pipeline.steps)
    return context.device if seeks and pipeline.features > TREE_FEATURES else "cpu"


def require_in_collection(x: Array, pipeline: Pipeline, *, tested: bool, device: str = "cpu") -> dict[str, float]:
    """Limits measured on rows (n, d) for a single step. Refuses rows outside, unless a test does so (``tested``)."""
    assert pipeline.step is not None
    if np.isnan(x).any() and not pipeline.step.imputes:
        raise dps.DataError("values are missing, but the pipeline has no imputation: begin it with {impute: mean}")
    empty = np.flatnonzero(np.isnan(x).all(axis=0))
    if len(empty) and not tested:
        raise dps.DataError(
            f"feature {empty[0] + 1} of {x.shape[1]} has no observed value and cannot be imputed; remove its column "
            "from the table"
        )
    measured = measure_limits(x, pipeline.step, device)
    broken = broken_limits(measured, pipeline.collection)
    if broken and not tested:
        raise dps.DataError(
            f"the dataset is outside the declared collection: {', '.join(broken)}. Bounds over the collection do not "
            "apply to it; declare wider limits from public knowledge"
            + (", or write ptr to test them privately" if pipeline.step.kind.testable else "")
        )
    return measured


def measure_limits(x: Array, step: Step, device: str = "cpu") -> dict[str, float]:
    if step.merges:
        reach = 8.0 * step.eta * _EDGE
        neighbourhoods = Neighbourhoods(x, device)
        return {
            "max_ball": float(neighbourhoods.count_in_balls(reach).max()),
            "max_cluster": float(neighbourhoods.good_clusters(step.eta).largest),
        }
    if step.name == "pca":
        return {"min_eigengap": _eigengap(x, step.components)}
    if not step.imputes:
        return {"min_std": float(x.std(axis=0).min())}
    missing = np.isnan(x)
    in_row = missing.sum(axis=1)
    observed = len(x) - missing.sum(axis=0)
    limits = {
        "max_missing_rows": float(np.count_nonzero(in_row)),
        "max_missing_in_row": float(in_row.max(initial=0)),
        "min_observed": float(observed.min()),
    }
    if step.name == "mean":
        sums = np.where(missing, 0.0, x).sum(axis=0)
        limits["max_mean_norm"] = float(np.linalg.norm(sums / np.maximum(observed, 1)))
    elif step.name in ("median", "trimmed"):
        limits["max_spread"] = _spread(x, missing, step.trim if step.name == "trimmed" else None)
    else:
        complete = x[in_row == 0]
        values = np.linalg.eigvalsh(complete.T @ complete) if len(complete) else np.zeros(1)
        limits |= {"min_eigenvalue": float(max(0.0, values[0])), "max_eigenvalue": float(values[-1])}
    return limits


def broken_limits(measured: Mapping[str, float], collection: Mapping[str, Any]) -> list[str]:
    pairs = ((key, measured[key], limit) for key, limit in collection.items() if key in measured)
    return [key for key, value, limit in pairs if (value < limit if key in AT_LEAST else value > limit)]


def distance_to_edge(x: Array, pipeline: Pipeline) -> float:
    """J: lower bound on the number of replacements until the dataset leaves the collection; 0 for chains."""
    step, limits = pipeline.step, pipeline.collection
    if step is None:
        return 0.0
    if step.name == "pca":
        gap, minimum = _eigengap(x, step.components) / pipeline.radius**2, float(limits["min_eigengap"])
        return max(0.0, (gap - minimum / pipeline.radius**2) / gap_sensitivity(len(x)))
    if step.merges:
        # The maximum number of records in a window along (1, ..., 1) / sqrt(d): at least the number in any ball of that
        # diameter. Unlike the largest ball around a record, it has sensitivity 1.
        starts = np.sort(x.sum(axis=1) / np.sqrt(x.shape[1]))
        ends = np.searchsorted(starts, starts + 8.0 * step.eta * (1.0 + 1e-12), side="right")
        count, maximum = int((ends - np.arange(len(starts))).max()), float(limits["max_ball"])
    else:
        count, maximum = int(np.isnan(x).any(axis=1).sum()), float(limits["max_missing_rows"])
    return max(0.0, maximum + 1.0 - count)  # these counts have sensitivity 1


def covariance_spectrum(x: Array) -> Array:
    """Eigenvalues of the covariance (divisor n - 1), largest first."""
    return np.asarray(np.linalg.eigvalsh(np.cov(x, rowvar=False))[::-1], dtype=np.float64)


def _eigengap(x: Array, k: int) -> float:
    values = covariance_spectrum(x)
    return float(values[k - 1] - values[k])


def _spread(x: Array, missing: Array, trim: int | None) -> float:
    """Maximum over features of the difference of the two order statistics that enclose the feature's center.

    Median: order statistics ceil((n + 1) / 2) + 1 and floor(n / 2) - 1, one position wider for a neighbour's median.
    Trimmed mean: n - m and m, for this dataset only; a collection has the extremes over its members. Infinite if a
    feature has no observed value.
    """
    if missing.all(axis=0).any():
        return math.inf
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
