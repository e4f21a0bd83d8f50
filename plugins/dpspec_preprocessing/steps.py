"""Execution of the pre-processing steps, with the exact search for near-duplicates, and measurement of the data.

The data are compared with the declared ball and collection. Bounds never use measured values.

A step maps rows (n, d) float64, with NaN for missing values, to rows of the same shape and order. A row that
deduplication removes becomes the zero vector, so that n does not change.

A record is the center of a good cluster if the balls of radius eta and 3 eta around it contain the same records. Two
good clusters are equal or disjoint; the center with the smallest index represents the cluster. Balls are closed; a
distance is the norm of a difference of float64 rows. The search uses a k-d tree for few features, else blocked products
of float32 rows on the device: pairs within the rounding error of the radius are measured again in float64.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_preprocessing.options import Declaration, Pipeline
from dpspec_preprocessing.sensitivity import Step, gap_sensitivity, second_moment_sensitivity

Array: TypeAlias = np.ndarray[Any, Any]

#: Maximum number of features of a k-d tree.
TREE_FEATURES = 15

#: Maximum number of values in a block of differences, of products, and of listed neighbours.
_DIFFERENCES, _PRODUCTS, _LISTED = 1 << 23, 1 << 24, 1 << 23

#: A tree uses all cores for more records than this.
_MANY = 1 << 14


class Tree:
    """Search by a k-d tree: weight (n,) of the records within ``radius`` of each, or their indices for ``rows``."""

    def __init__(self, x: Array, weight: Array) -> None:
        from scipy.spatial import cKDTree

        self._x, self._weight, self._tree = x, weight, cKDTree(x)
        self._workers = -1 if len(x) > _MANY else 1

    def weights_within(self, radius: float) -> Array:
        counts = self._tree.query_ball_point(self._x, radius, return_length=True, workers=self._workers)
        counts = np.asarray(counts, dtype=np.int64)
        total, waiting = counts.copy(), np.flatnonzero(self._weight > 1)
        while len(waiting):
            block = waiting[: max(1, int(np.searchsorted(np.cumsum(counts[waiting]), _LISTED, side="right")))]
            for row, neighbours in zip(block, self.within(block, radius), strict=True):
                total[neighbours] += self._weight[row] - 1
            waiting = waiting[len(block) :]
        return total

    def within(self, rows: Array, radius: float) -> list[Array]:
        lists = self._tree.query_ball_point(self._x[rows], radius, return_sorted=True, workers=self._workers)
        return [np.asarray(neighbours, dtype=np.int64) for neighbours in lists]


class Products:
    """The search of :class:`Tree` by blocked products of centered rows on a device; the CPU adds borderline pairs."""

    def __init__(self, x: Array, weight: Array, device: str) -> None:
        import torch

        self._x, self._weight = x, weight
        centred = x - x.mean(axis=0)
        # Scale by a power of two to at most 1, so that float32 products cannot overflow.
        self._scale = float(np.ldexp(1.0, min(1000, -int(np.frexp(np.abs(centred).max(initial=0.0))[1]))))
        centred = centred * self._scale
        squares = np.einsum("ij,ij->i", centred, centred)
        self._rows = torch.tensor(centred, dtype=torch.float32, device=device)
        self._squares = torch.tensor(squares, dtype=torch.float32, device=device)
        self._weights = torch.tensor(weight, dtype=torch.float64, device=device)
        self._slack = (4.0 * x.shape[1] + 64.0) * 2.0**-24 * float(squares.max(initial=0.0))
        self._block = max(1, _PRODUCTS // max(1, len(x)))

    def weights_within(self, radius: float) -> Array:
        total = np.zeros(len(self._x))
        for start in range(0, len(self._x), self._block):
            rows = np.arange(start, min(len(self._x), start + self._block))
            sure, close = self._split(rows, radius)
            total[rows] = (sure.to(self._weights.dtype) @ self._weights).cpu().numpy()
            for left, right in close:
                np.add.at(total, left, self._weight[right])
        return np.rint(total).astype(np.int64)

    def within(self, rows: Array, radius: float) -> list[Array]:
        neighbours: list[Array] = []
        for start in range(0, len(rows), self._block):
            block = rows[start : start + self._block]
            sure, close = self._split(block, radius)
            left, right = (part.cpu().numpy() for part in sure.nonzero(as_tuple=True))
            position = {int(row): i for i, row in enumerate(block)}
            lists = [right[left == i] for i in range(len(block))]
            for a, b in close:
                for row in np.unique(a):
                    lists[position[int(row)]] = np.sort(np.concatenate([lists[position[int(row)]], b[a == row]]))
            neighbours += lists
        return neighbours

    def _split(self, rows: Array, radius: float) -> tuple[Any, list[tuple[Array, Array]]]:
        """Certain neighbours of ``rows`` as a mask (b, n) on the device, and borderline pairs within ``radius``."""
        from dpspec.training.device import full_precision

        block = self._rows[rows]
        with full_precision(self._rows.device):
            squared = self._squares[rows][:, None] + self._squares[None, :] - 2.0 * block @ self._rows.T
        limit = (radius * self._scale) * (radius * self._scale)
        sure = squared <= limit - self._slack
        left, right = ((squared <= limit + self._slack) & ~sure).nonzero(as_tuple=True)
        left, right = rows[left.cpu().numpy()], right.cpu().numpy()
        close = []
        pairs_at_once = max(1, _DIFFERENCES // self._x.shape[1])
        for start in range(0, len(left), pairs_at_once):
            a, b = left[start : start + pairs_at_once], right[start : start + pairs_at_once]
            inside = np.sqrt(np.square(self._x[a] - self._x[b]).sum(axis=1)) <= radius
            close.append((a[inside], b[inside]))
        return sure, close


@dataclass(frozen=True, eq=False)
class Clusters:
    """Whether a record is a center (n,), the index of its representative or itself (n,), and the largest size."""

    centres: Array
    representative: Array
    largest: int


class Neighbourhoods:
    """Search index of records (n, d). Equal rows are indexed once, with their number as weight."""

    def __init__(self, x: Array, device: str = "cpu") -> None:
        rows = np.ascontiguousarray(x, dtype=np.float64) + 0.0  # turns -0.0 into 0.0
        keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
        _, first, which, weight = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        #: First record of every distinct row, and index of the distinct row of every record.
        self._first, self._which = first[order], rank[which.ravel()]
        distinct = rows[self._first], weight[order]
        self._finder = Tree(*distinct) if rows.shape[1] <= TREE_FEATURES else Products(*distinct, device)

    def count_in_balls(self, radius: float) -> Array:
        return np.asarray(self._finder.weights_within(radius)[self._which], dtype=np.int64)

    def good_clusters(self, eta: float) -> Clusters:
        weight_within, wide = self._finder.weights_within(eta), self._finder.weights_within(3.0 * eta)
        centres = weight_within == wide
        # Any center finds its whole cluster, whose first center keeps it. Batches of centers are drawn in random order,
        # with at most as many results as there are rows, so that few clusters are searched twice.
        keeper, unassigned = np.full(len(weight_within), -1), centres & (weight_within > 1)
        random = np.random.default_rng(0)
        while unassigned.any():
            waiting = random.permutation(np.flatnonzero(unassigned))
            block = waiting[
                : max(1, int(np.searchsorted(np.cumsum(weight_within[waiting]), len(weight_within), side="right")))
            ]
            for inside in self._finder.within(block, eta):
                keeper[inside] = self._first[inside[centres[inside]]].min()
                unassigned[inside] = False
        representative = np.where(keeper[self._which] < 0, np.arange(len(self._which)), keeper[self._which])
        return Clusters(centres[self._which], representative, int(weight_within[centres].max(initial=1)))


#: A fitted step: maps rows (n, d) to rows (n, d).
Map: TypeAlias = Callable[[Array], Array]


def run_steps(
    x: Array, pipeline: Sequence[Step], radius: float = 1.0, test: Array | None = None, device: str = "cpu"
) -> tuple[Array, Array]:
    """Fit all noiseless steps in order to rows ``x`` (n, d), and apply them to ``x`` and to ``test`` (m, d)."""
    rows = np.array(x, dtype=np.float64)
    test_rows = np.zeros((0, rows.shape[1])) if test is None else np.array(test, dtype=np.float64)
    for step in pipeline:
        transform = fit_step(rows, step, radius, device)
        rows, test_rows = transform(rows), transform(test_rows) if len(test_rows) else test_rows
    if not (np.isfinite(rows).all() and np.isfinite(test_rows).all()):
        raise ValueError("missing or infinite values remain after the last step of the pipeline")
    return rows, test_rows


def fit_step(x: Array, step: Step, radius: float = 1.0, device: str = "cpu") -> Map:
    """Fit a step to rows ``x``. Merging changes only ``x`` itself, not test rows."""
    if step.imputes:
        fill = fit_imputation(x, step.name, step.trim)
        return lambda rows: clip_rows(fill(rows), radius)
    if step.merges:
        merge = deduplicate if step.name == "deduplicate" else quantise
        return lambda rows: merge(rows, step.eta, device) if rows is x else rows
    if step.name == "pca":
        return fit_projection(x, step.components, affine=step.affine)
    from sklearn.preprocessing import StandardScaler

    scaler, clip = StandardScaler().fit(x), step.clip
    return lambda rows: clip_rows(np.asarray(scaler.transform(rows), dtype=np.float64), clip)


def fit_imputation(x: Array, by: str, trim: int = 0) -> Map:
    """Imputes 0 if a feature has no value to use: one record must not decide whether the pipeline has an output."""
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
        regressors = np.arange(x.shape[1]) != j
        fits.append(np.linalg.lstsq(complete[:, regressors], complete[:, j], rcond=None)[0])

    def fill(rows: Array) -> Array:
        missing = np.isnan(rows)
        filled, zeroed = rows.copy(), np.where(missing, 0.0, rows)
        for j in np.flatnonzero(missing.any(axis=0)):
            empty = missing[:, j]
            filled[empty, j] = np.delete(zeroed[empty], j, axis=1) @ fits[j]
        return filled

    return fill


def deduplicate(x: Array, eta: float, device: str = "cpu") -> Array:
    is_kept = Neighbourhoods(x, device).good_clusters(eta).representative == np.arange(len(x))
    return np.where(is_kept[:, None], x, 0.0)


def quantise(x: Array, eta: float, device: str = "cpu") -> Array:
    return np.asarray(x[Neighbourhoods(x, device).good_clusters(eta).representative], dtype=np.float64)


def fit_projection(x: Array, k: int, *, affine: bool = False) -> Map:
    """Fit the projection onto the first k principal directions: x V^T V, or (x - mean) V^T V + mean if affine."""
    from sklearn.decomposition import PCA

    model = PCA(n_components=k, svd_solver="covariance_eigh", whiten=False).fit(x)
    v = model.components_
    centre = model.mean_ if affine else 0.0
    return lambda rows: np.asarray((rows - centre) @ v.T @ v + centre, dtype=np.float64)


def second_moments(x: Array) -> Array:
    """X^T X (d, d) of rows (n, d)."""
    return np.asarray(x.T @ x, dtype=np.float64)


def moment_noise(features: int, std: float, random: np.random.Generator) -> Array:
    """Symmetric Gaussian noise (d, d) of standard deviation ``std`` along every symmetric matrix of Frobenius norm 1.

    Entries off the diagonal have std / sqrt(2), because each counts twice in the Frobenius norm.
    """
    drawn = random.normal(0.0, std, (features, features))
    upper = np.triu(drawn, 1) / math.sqrt(2.0)
    return np.asarray(upper + upper.T + np.diag(np.diag(drawn)), dtype=np.float64)


def moment_coordinates(symmetric: Array) -> Array:
    """Coordinates (d (d + 1) / 2,) of a symmetric matrix, with the Frobenius norm as their Euclidean norm."""
    above = np.triu_indices(len(symmetric), 1)
    return np.concatenate([np.diag(symmetric), math.sqrt(2.0) * symmetric[above]])


def fit_moments(moments: Array, k: int) -> Map:
    """The projection onto the ``k`` eigenvectors of the largest eigenvalues of a symmetric matrix."""
    directions = np.linalg.eigh(moments)[1][:, -k:]
    return lambda rows: np.asarray(rows @ directions @ directions.T, dtype=np.float64)


def release_moments(x: Array, step: Step, radius: float, random: np.random.Generator) -> Array:
    """X^T X (d, d) of rows (n, d) with the noise of a private projection."""
    return second_moments(x) + moment_noise(x.shape[1], moment_std(step, radius), random)


def moment_std(step: Step, radius: float) -> float:
    return second_moment_sensitivity(radius) / step.mu


def clip_rows(x: Array, radius: float) -> Array:
    """Scale longer rows down to norm ``radius``, per record and so without privacy cost. Missing values count as 0."""
    norms = np.sqrt(np.nansum(np.square(x), axis=1))
    scale, beyond = np.ones(len(x)), norms > radius
    scale[beyond] = radius / norms[beyond]
    return np.asarray(x * scale[:, None], dtype=np.float64)


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
    if step.name == "dp-pca":
        return {}
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
