"""Execution of the pre-processing steps, with scikit-learn and scipy.

A step maps rows (n, d) float64, with NaN for missing values, to rows of the same shape and order. A row that
deduplication removes becomes the zero vector, so that n does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from dpspec_preprocessing.execution.finders import find_good_clusters
from dpspec_preprocessing.theory.declared_steps import Imputation, Merging, Projection, Step

Array: TypeAlias = np.ndarray[Any, Any]

#: A fitted step: maps rows (n, d) to rows (n, d).
Map: TypeAlias = Callable[[Array], Array]


def run_steps(
    x: Array,
    pipeline: Sequence[Step],
    radius: float = 1.0,
    test: Array | None = None,
    device: str = "cpu",
) -> tuple[Array, Array]:
    """Fit all steps to ``x`` in order, and apply them to ``x`` and ``test``.

    Args:
        x: Rows, shape (n, d).
        pipeline: The steps.
        radius: Maximum norm of a row.
        test: Other rows that the fitted steps are applied to, shape (m, d).
        device: Device of the near-duplicate search.

    Returns:
        Processed rows, shape (n, d), and processed test rows, shape (m, d).

    Raises:
        ValueError: If missing or infinite values remain.
    """
    rows = np.array(x, dtype=np.float64)
    others = np.zeros((0, rows.shape[1])) if test is None else np.array(test, dtype=np.float64)
    for step in pipeline:
        transform = fit_step(rows, step, radius, device)
        rows, others = transform(rows), transform(others) if len(others) else others
    if not (np.isfinite(rows).all() and np.isfinite(others).all()):
        raise ValueError("missing or infinite values remain after the last step of the pipeline")
    return rows, others


def fit_step(x: Array, step: Step, radius: float = 1.0, device: str = "cpu") -> Map:
    """Fit a step to rows ``x``.

    Merging applies only to ``x`` itself; it does not change other rows, such as test rows. Imputed rows are clipped to
    ``radius``.
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
    """Fit the imputation by mean, median, trimmed mean or least squares on complete rows.

    Imputes 0 if a feature has no value to use: one record must not decide whether the pipeline has an output.
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
    """Regress each feature on the others without intercept, on complete rows; missing regressors count as 0."""
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
    """Keep the representative of every good cluster and replace its other members by zero vectors."""
    is_kept = find_good_clusters(x, eta, device).representative == np.arange(len(x))
    return np.where(is_kept[:, None], x, 0.0)


def quantise(x: Array, eta: float, device: str = "cpu") -> Array:
    """Replace every member of a good cluster by its representative."""
    return np.asarray(x[find_good_clusters(x, eta, device).representative], dtype=np.float64)


def fit_projection(x: Array, k: int, *, affine: bool = False) -> Map:
    """Fit the projection onto the first k principal directions: x V^T V, or (x - mean) V^T V + mean if affine."""
    from sklearn.decomposition import PCA

    model = PCA(n_components=k, svd_solver="covariance_eigh", whiten=False).fit(x)
    v = model.components_
    centre = model.mean_ if affine else 0.0
    return lambda rows: np.asarray((rows - centre) @ v.T @ v + centre, dtype=np.float64)


def fit_standardisation(x: Array) -> Map:
    """Fit (x - mean) / std per feature, with the population standard deviation."""
    from sklearn.preprocessing import StandardScaler

    model = StandardScaler().fit(x)
    return lambda rows: np.asarray(model.transform(rows), dtype=np.float64)


def clip_rows(x: Array, radius: float) -> Array:
    """Scale longer rows down to norm ``radius``: 1-Lipschitz and per record, so without privacy cost."""
    norms = np.linalg.norm(x, axis=1)
    with np.errstate(divide="ignore"):
        scale = np.minimum(1.0, radius / norms)
    return np.asarray(x * np.where(np.isfinite(scale), scale, 1.0)[:, None], dtype=np.float64)


def moved_distance(first: Array, second: Array) -> tuple[int, float, float]:
    """Number of changed rows, maximum displacement, and sum of displacements between two arrays of rows."""
    gaps = np.linalg.norm(first - second, axis=1)
    return int(np.count_nonzero(gaps)), float(gaps.max(initial=0.0)), math.fsum(gaps.tolist())
