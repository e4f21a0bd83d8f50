"""The pre-processings themselves: every step runs on real rows, with scikit-learn and scipy where they have it.

A step maps rows (n, d) float64, NaN where a value is missing, to rows of the same shape. Rows are never reordered and
never dropped: a row that deduplication removes becomes the zero vector, and the divisor stays n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from dpspec_preprocessing.execution.finders import find_good_clusters
from dpspec_preprocessing.theory.declared_steps import Imputation, Merging, Projection, Step

Array: TypeAlias = np.ndarray[Any, Any]

#: What a fitted step does to rows (n, d).
Map: TypeAlias = Callable[[Array], Array]


def run_steps(
    x: Array,
    pipeline: Sequence[Step],
    radius: float = 1.0,
    test: Array | None = None,
    device: str = "cpu",
) -> tuple[Array, Array]:
    """All steps in order, fitted to ``x``: the processed rows, and the rows of ``test`` by the same maps.

    device: where near-duplicates of many features are sought.
    Raises ``ValueError`` where missing or infinite values are left.
    """
    rows = np.array(x, dtype=np.float64)
    others = np.zeros((0, rows.shape[1])) if test is None else np.array(test, dtype=np.float64)
    for step in pipeline:
        transform = fit_step(rows, step, radius, device)
        rows, others = transform(rows), transform(others) if len(others) else others
    if not (np.isfinite(rows).all() and np.isfinite(others).all()):
        raise ValueError("missing or infinite values are left after the last step of the pipeline")
    return rows, others


def fit_step(x: Array, step: Step, radius: float = 1.0, device: str = "cpu") -> Map:
    """The record-wise map that a step makes of rows ``x``; also for rows that it was not fitted to, such as test rows.

    Near-duplicates are sought among the fitted rows only: other rows stay as they are. ``radius`` is that of the ball
    that rows are cut back to where a step can leave it.
    """
    if isinstance(step, Imputation):
        fill = fit_imputation(x, step.by, step.trim)
        return lambda rows: clip_rows(fill(rows), radius)
    if isinstance(step, Merging):
        merge, eta = deduplicate if step.drops else quantise, step.eta
        return lambda rows: merge(rows, eta, device) if rows is x else rows
    if isinstance(step, Projection):
        return fit_projection(x, step.components, affine=step.affine)
    scale, clip = fit_standardisation(x), step.clip
    return lambda rows: clip_rows(scale(rows), clip)


def fit_imputation(x: Array, by: str, trim: int = 0) -> Map:
    """Missing values replaced by the feature's mean, median, trimmed mean, or a least-squares fit on complete rows.

    By 0 where nothing is left to take them from: whether a pipeline has an output must not depend on one record.
    """
    if by == "regression":
        return _fit_regression(x)
    if by == "trimmed":
        values = [np.sort(column[~np.isnan(column)]) for column in x.T]
        centres = np.array([v[trim : len(v) - trim].mean() if len(v) > 2 * trim else 0.0 for v in values])
        return lambda rows: np.where(np.isnan(rows), centres, rows)
    from sklearn.impute import SimpleImputer

    model = SimpleImputer(strategy=by, keep_empty_features=True).fit(x)
    return lambda rows: np.asarray(model.transform(rows), dtype=np.float64)


def _fit_regression(x: Array) -> Map:
    """Each feature on all others by least squares without intercept, fitted on complete rows; missing ones count 0."""
    complete = x[~np.isnan(x).any(axis=1)]
    fits = []
    for j in range(x.shape[1]):
        others = np.arange(x.shape[1]) != j
        fits.append(np.linalg.lstsq(complete[:, others], complete[:, j], rcond=None)[0])

    def fill(rows: Array) -> Array:
        missing = np.isnan(rows)
        filled, zeroed = rows.copy(), np.where(missing, 0.0, rows)
        for j in np.flatnonzero(missing.any(axis=0)):
            at = missing[:, j]
            filled[at, j] = np.delete(zeroed[at], j, axis=1) @ fits[j]
        return filled

    return fill


def deduplicate(x: Array, eta: float, device: str = "cpu") -> Array:
    """Of every good cluster only the representative stays; the others become zero vectors."""
    is_kept = find_good_clusters(x, eta, device).representative == np.arange(len(x))
    return np.where(is_kept[:, None], x, 0.0)


def quantise(x: Array, eta: float, device: str = "cpu") -> Array:
    """Every member of a good cluster becomes its representative."""
    return np.asarray(x[find_good_clusters(x, eta, device).representative], dtype=np.float64)


def fit_projection(x: Array, k: int, *, affine: bool = False) -> Map:
    """Rows on the first k principal directions, in the same space: x V^T V, or that of x - mean, plus mean."""
    from sklearn.decomposition import PCA

    model = PCA(n_components=k, svd_solver="covariance_eigh", whiten=False).fit(x)
    v = model.components_
    centre = model.mean_ if affine else 0.0
    return lambda rows: np.asarray((rows - centre) @ v.T @ v + centre, dtype=np.float64)


def fit_standardisation(x: Array) -> Map:
    """(x - mean) / deviation per feature, the population's deviation (scikit-learn)."""
    from sklearn.preprocessing import StandardScaler

    model = StandardScaler().fit(x)
    return lambda rows: np.asarray(model.transform(rows), dtype=np.float64)


def clip_rows(x: Array, radius: float) -> Array:
    """Longer rows scaled back to norm ``radius``: 1-Lipschitz and record by record, so that it costs nothing."""
    norms = np.linalg.norm(x, axis=1)
    with np.errstate(divide="ignore"):
        scale = np.minimum(1.0, radius / norms)
    return np.asarray(x * np.where(np.isfinite(scale), scale, 1.0)[:, None], dtype=np.float64)


def moved_distance(one: Array, other: Array) -> tuple[int, float, float]:
    """(changed, moved, sum of distances) between two processings of the same records."""
    gaps = np.linalg.norm(one - other, axis=1)
    return int(np.count_nonzero(gaps)), float(gaps.max(initial=0.0)), math.fsum(gaps.tolist())
