"""Proved sensitivities of pre-processing steps: the effect of one replaced record on the other processed records.

``changed`` (Delta_inf) is the number of common records that are processed differently, ``moved`` (Delta_2) the maximum
displacement of one of them, and tau = changed * moved bounds the sum of displacements. The private mechanism accounts
for the replaced record itself. Formulas are for records of norm at most R.

*Propose-test-release* gives an unconditional guarantee for pipelines whose bound holds only on a collection. J is a
distance to the datasets outside the collection, 1-Lipschitz under replacement. The test with Laplace noise refuses if
J + Lap(1 / e) <= ln(2 / delta) / e. If at least one of two neighbours is inside with a margin, one Davis-Kahan bound
covers the pair; otherwise both are released with probability at most delta / 4. The whole is therefore
(mechanism + e, delta)-DP for all datasets. (Theorem 7 argues differently if one neighbour is outside; its argument
gives delta e^e / 4, more than delta for e > ln 4.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dpspec_preprocessing.theory.declared_steps import Imputation, Merging, Projection, Scaling, Step

#: Limits of the collection that each step's repaired bound requires.
REQUIRED_LIMITS: Final[dict[str, tuple[str, ...]]] = {
    "mean": ("max_missing_rows", "min_observed"),
    "median": ("max_missing_rows", "max_spread"),
    "trimmed": ("max_missing_rows", "min_observed", "max_spread"),
    "regression": ("max_missing_rows", "min_eigenvalue", "max_eigenvalue"),
    "deduplicate": ("max_ball",),
    "quantise": ("max_ball",),
    "pca": ("min_eigengap",),
    "scale": ("min_std",),
}


class Sensitivity(NamedTuple):
    """Number of changed common records, maximum displacement of each, and their product ``tau``."""

    changed: float
    moved: float

    @property
    def tau(self) -> float:
        """Bound on the sum of the displacements of the common records."""
        return self.changed * self.moved


def repaired_sensitivity(
    step: Step, collection: Mapping[str, Any], records: int, features: int, radius: float = 1.0
) -> Sensitivity | None:
    """The proved sensitivity of one step over a collection.

    Args:
        step: The step.
        collection: Declared limits by key.
        records: Number of records.
        features: Number of features.
        radius: R, maximum norm of a record.

    Returns:
        The sensitivity, or None if the collection lacks a required limit.
    """
    if not all(key in collection for key in REQUIRED_LIMITS[step.name]):
        return None
    match step:
        case Projection():
            gap = float(collection["min_eigengap"])
            return (affine_pca if step.affine else pca)(gap, records, radius)
        case Scaling():
            return scaling(float(collection["min_std"]), records, radius)
        case Merging():
            changed = min(float(records), clusters(int(collection["max_ball"])))
            return Sensitivity(changed, _merged(step, radius))
    moved = _imputed(step, collection, records, features, radius)
    return Sensitivity(float(collection["max_missing_rows"]), min(2.0 * radius, moved))


def _merged(step: Merging, radius: float) -> float:
    """Maximum displacement of a record that is merged in only one of the two datasets."""
    return radius if step.drops else 2.0 * step.eta


def _imputed(step: Imputation, collection: Mapping[str, Any], records: int, features: int, radius: float) -> float:
    """Maximum displacement of an imputed record."""
    missing_in_row = int(collection.get("max_missing_in_row", features))
    if step.by == "mean":
        observed = int(collection["min_observed"])
        if step.same_mask:
            return mean_same_mask(observed, radius)
        return mean_any_mask(observed, features, collection.get("max_mean_norm"), radius)
    if step.by == "median":
        if max(int(collection.get("min_observed", 0)), records - int(collection["max_missing_rows"])) < 2:
            return math.inf  # the only observed value may be the replaced one
        return median(float(collection["max_spread"]), missing_in_row)
    if step.by == "trimmed":
        spread, observed = float(collection["max_spread"]), int(collection["min_observed"])
        return trimmed_mean(spread, observed, step.trim, missing_in_row)
    smallest, largest = (float(collection[key]) / radius**2 for key in ("min_eigenvalue", "max_eigenvalue"))
    return radius * regression(smallest, largest, missing_in_row)


def mean_same_mask(observed: int, radius: float = 1.0) -> float:
    """2 R / N, with N the minimum number of observed values of a feature, for neighbours with the same mask."""
    return 2.0 * radius / observed


def mean_any_mask(observed: int, features: int, mean_norm: float | None = None, radius: float = 1.0) -> float:
    """Displacement by mean imputation for neighbours with arbitrary masks.

    M = min(sqrt(d), ||mean|| + 2 sqrt(d) / N) bounds the mean of the common records. The displacement in units of R is
    sqrt(4 + 2 M^2) / N for M <= sqrt(2), else (M + sqrt(2)) / N.

    Args:
        observed: N, minimum number of observed values of a feature, at least 2.
        features: d.
        mean_norm: Maximum norm of the vector of observed means; None uses sqrt(d).
        radius: R.
    """
    if observed < 2:
        raise ValueError("every feature needs at least two observed values")
    m = math.sqrt(features)
    if mean_norm is not None:
        m = min(m, mean_norm / radius + 2.0 * m / observed)
    return radius * (math.sqrt(4.0 + 2.0 * m * m) if m <= math.sqrt(2.0) else m + math.sqrt(2.0)) / observed


def median(spread: float, missing_in_row: int = 1) -> float:
    """sqrt(q) times ``spread``, the maximum difference of the order statistics that enclose every median.

    Args:
        spread: Maximum difference of the two order statistics over the collection.
        missing_in_row: q, maximum number of missing features in one row.
    """
    return math.sqrt(missing_in_row) * spread


def trimmed_mean(spread: float, observed: int, trim: int, missing_in_row: int = 1) -> float:
    """sqrt(q) (x_hi - x_lo) / (N - 2 m): one kept value is replaced, added or removed.

    Args:
        spread: x_hi - x_lo, maximum difference of kept values.
        observed: N, minimum number of observed values, at least n - p.
        trim: m.
        missing_in_row: q, maximum number of missing features in one row.
    """
    kept = observed - 2 * trim
    if kept < 1:
        raise ValueError(f"trimming {trim} values at each end removes all {observed} values")
    return math.sqrt(missing_in_row) * spread / kept


def regression(smallest: float, largest: float, missing_in_row: int = 1) -> float:
    """2 sqrt(q) times :func:`one_record_of_regression`, because a replacement removes one record and adds one.

    The eigenvalues are those of all n records. Without the replaced record, of norm at most 1, the smallest eigenvalue
    decreases by at most 1.

    Raises:
        ValueError: Unless 1 < smallest <= largest + 1.
    """
    return 2.0 * math.sqrt(missing_in_row) * one_record_of_regression(smallest - 1.0, largest)


def one_record_of_regression(smallest: float, largest: float) -> float:
    """largest^2 / ((largest + 1) smallest^2) + 1 / smallest, from the extreme eigenvalues of X^T X: one record added.

    Raises:
        ValueError: Unless 0 < smallest <= largest.
    """
    if not 0.0 < smallest <= largest:
        raise ValueError("eigenvalues must be positive and in ascending order")
    return largest**2 / ((largest + 1.0) * smallest**2) + 1.0 / smallest


def clusters(ball: int) -> float:
    """2 N_4: each of the two records changes only records within 4 eta.

    Args:
        ball: Bound on the number of records within 8 eta of a record.
    """
    return 2.0 * ball


def pca(gap: float, records: int, radius: float = 1.0) -> Sensitivity:
    """Projection onto the first k principal directions: Delta_2 = R min(1, e / (gap - e)) with e = 4 R^2 / n.

    The covariances differ by (a a^T - b b^T) / n with ||a||, ||b|| <= 2 R, hence by at most e in norm. Then use
    Davis-Kahan.
    """
    e = 4.0 * radius**2 / records
    return Sensitivity(records, radius * (min(1.0, e / (gap - e)) if gap > 2.0 * e else 1.0))


def affine_pca(gap: float, records: int, radius: float = 1.0) -> Sensitivity:
    """The map x -> A A^T (x - mean) + mean: twice the displacement of the projection, plus 2 R / n for the mean."""
    return Sensitivity(records, 2.0 * pca(gap, records, radius).moved + 2.0 * radius / records)


def gap_sensitivity(records: int, radius: float = 1.0) -> float:
    """Sensitivity of an eigengap to one replaced record: 3 sqrt(3) R^2 / n."""
    return 3.0 * math.sqrt(3.0) * radius**2 / records


def scaling(min_std: float, records: int, radius: float = 1.0) -> Sensitivity:
    """Standard scaling: 2 R / (n s) + 4 R^3 / (n s^3), with s the minimum population standard deviation."""
    s = min_std / radius
    return Sensitivity(records, 2.0 / (records * s) + 4.0 / (records * s**3))


#: Steps with a known distance to the collection's edge, which propose-test-release needs.
TESTABLE = ("mean", "deduplicate", "quantise", "pca")


def distance_of_gap(gap: float, minimum: float, records: int) -> float:
    """Lower bound on the number of replacements until the eigengap is below ``minimum``."""
    return max(0.0, (gap - minimum) / gap_sensitivity(records))


def distance_of_count(count: float, maximum: float) -> float:
    """Lower bound on the number of replacements until a count of sensitivity 1 exceeds ``maximum``."""
    return max(0.0, maximum + 1.0 - count)


def threshold(epsilon: float, delta: float) -> float:
    """ln(2 / delta) / epsilon: the test passes if the noisy distance exceeds it."""
    return math.log(2.0 / delta) / epsilon


def refusal_probability(distance: float, epsilon: float, delta: float) -> float:
    """Exact probability of a refusal at distance J."""
    gap = epsilon * (distance - threshold(epsilon, delta))
    return 0.5 * math.exp(-gap) if gap >= 0.0 else 1.0 - 0.5 * math.exp(gap)


def tested_sensitivity(
    step: Step, collection: Mapping[str, Any], records: int, features: int, radius: float
) -> Sensitivity:
    """Sensitivity for pairs with one dataset inside the proposed limit and the other one record beyond it."""
    if isinstance(step, Projection):
        e = 4.0 * radius**2 / records
        gap = float(collection["min_eigengap"])
        bound = radius * min(1.0, e / (gap - e))
        return Sensitivity(records, 2.0 * bound + 2.0 * radius / records if step.affine else bound)
    if isinstance(step, Merging):
        return Sensitivity(min(float(records), clusters(int(collection["max_ball"]) + 1)), _merged(step, radius))
    missing = int(collection["max_missing_rows"])
    observed = records - missing - 1
    if observed < 2:
        return Sensitivity(missing + 1, 2.0 * radius)
    same = isinstance(step, Imputation) and step.same_mask
    moved = mean_same_mask(observed, radius) if same else mean_any_mask(observed, features, None, radius)
    return Sensitivity(missing + 1, min(2.0 * radius, moved))
