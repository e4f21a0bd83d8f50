"""How far one replaced record moves what a pre-processing makes of the other records: what is proved.

Changed (Delta_inf) counts how many of the common records are processed differently, moved (Delta_2) is how far one of
them goes at most, and tau = changed * moved bounds the sum of all distances. The replaced record itself is the private
mechanism's. Records lie in a ball of radius 1; other radii scale what is said at each function.

*Propose, test, release* gives an unconditional guarantee for pipelines whose bound holds on a collection only.
A distance J to the data sets outside the collection, 1-Lipschitz under replacement, is tested with Laplace noise:
refuse where J + Lap(1 / e) <= ln(2 / delta) / e. If at least one of two neighbours lies inside with a margin, one
Davis-Kahan bound covers the pair; if neither does, both release with probability delta / 4 at most. So the whole is
(mechanism + e, delta)-DP for all data sets. (Theorem 7 argues differently when one neighbour lies outside; its
argument gives delta e^e / 4, more than delta for e > ln 4.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dpspec_preprocessing.theory.declared_steps import Imputation, Merging, Projection, Scaling, Step

#: The keys of a collection that each step's repaired bound needs.
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
    """changed: how many common records differ. moved: by how much each. ``tau`` is their product."""

    changed: float
    moved: float

    @property
    def tau(self) -> float:
        """A bound on the sum of the distances between the processed common records."""
        return self.changed * self.moved


def repaired_sensitivity(
    step: Step, collection: Mapping[str, Any], records: int, features: int, radius: float = 1.0
) -> Sensitivity | None:
    """The proved sensitivity of one step over a collection, or None where the collection leaves out what it needs."""
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
    """How far a record moves at most that is merged now and was not before, or the reverse."""
    return radius if step.drops else 2.0 * step.eta


def _imputed(step: Imputation, collection: Mapping[str, Any], records: int, features: int, radius: float) -> float:
    """How far one replaced record moves an imputed record at most."""
    missing_in_row = int(collection.get("max_missing_in_row", features))
    if step.by == "mean":
        observed = int(collection["min_observed"])
        if step.same_mask:
            return mean_same_mask(observed, radius)
        return mean_any_mask(observed, features, collection.get("max_mean_norm"), radius)
    if step.by == "median":
        if max(int(collection.get("min_observed", 0)), records - int(collection["max_missing_rows"])) < 2:
            return math.inf  # the one observed value may be the replaced one
        return median(float(collection["max_spread"]), missing_in_row)
    if step.by == "trimmed":
        spread, observed = float(collection["max_spread"]), int(collection["min_observed"])
        return trimmed_mean(spread, observed, step.trim, missing_in_row)
    least, largest = float(collection["min_eigenvalue"]) / radius**2, float(collection["max_eigenvalue"]) / radius**2
    return radius * regression(least, largest, missing_in_row)


def mean_same_mask(observed: int, radius: float = 1.0) -> float:
    """2 R / N, N the least number of observed values of a feature: both neighbours miss the same entries."""
    return 2.0 * radius / observed


def mean_any_mask(observed: int, features: int, mean_norm: float | None = None, radius: float = 1.0) -> float:
    """The same where the replaced record may miss other entries than its replacement.

    M = min(sqrt(d), ||mean|| + 2 sqrt(d) / N) bounds the mean of the common records; then sqrt(4 + 2 M^2) / N for
    M <= sqrt(2), and (M + sqrt(2)) / N beyond.

    mean_norm: the norm of the vector of observed means; left out, only sqrt(d) is known of it.
    """
    if observed < 2:
        raise ValueError("every feature needs at least two observed values")
    m = math.sqrt(features)
    if mean_norm is not None:
        m = min(m, mean_norm / radius + 2.0 * m / observed)
    return radius * (math.sqrt(4.0 + 2.0 * m * m) if m <= math.sqrt(2.0) else m + math.sqrt(2.0)) / observed


def median(spread: float, missing_in_row: int = 1) -> float:
    """sqrt(q) (upper - lower): every median of the collection lies between two order statistics that differ by
    ``spread`` at most; q features can be missing in one row.
    """
    return math.sqrt(missing_in_row) * spread


def trimmed_mean(spread: float, observed: int, trim: int, missing_in_row: int = 1) -> float:
    """sqrt(q) (x_hi - x_lo) / (N - 2 m): of the kept values one is replaced, or one is added or removed.

    observed: the least number of observed values, n - p where nothing else is known.
    """
    kept = observed - 2 * trim
    if kept < 1:
        raise ValueError(f"trimming {trim} values at each end leaves nothing of {observed}")
    return math.sqrt(missing_in_row) * spread / kept


def regression(least: float, largest: float, missing_in_row: int = 1) -> float:
    """2 sqrt(q) times :func:`one_record_of_regression`, for a replacement: one record removed and one added.

    The eigenvalues are those of the n records of a member of the collection; without the replaced record, of norm at
    most 1, the least is smaller by at most 1. Raises ``ValueError`` unless it exceeds 1.
    """
    return 2.0 * math.sqrt(missing_in_row) * one_record_of_regression(least - 1.0, largest)


def one_record_of_regression(least: float, largest: float) -> float:
    """largest^2 / ((largest + 1) least^2) + 1 / least, from the extreme eigenvalues of X^T X: one record added.

    Raises ``ValueError`` unless 0 < least <= largest.
    """
    if not 0.0 < least <= largest:
        raise ValueError("eigenvalues must be positive, the least first")
    return largest**2 / ((largest + 1.0) * least**2) + 1.0 / least


def clusters(ball: int) -> float:
    """2 N_4: each of the two records changes only what lies within 4 eta of it.

    ball: at least the largest number of records within 8 eta of one of them.
    """
    return 2.0 * ball


def pca(gap: float, records: int, radius: float = 1.0) -> Sensitivity:
    """Projection on the first k principal directions: Delta_2 = R min(1, e / (gap - e)) with e = 4 R^2 / n.

    Two covariances differ by (a a^T - b b^T) / n with ||a||, ||b|| <= 2 R, hence by e in norm; then Davis and Kahan.
    """
    e = 4.0 * radius**2 / records
    return Sensitivity(records, radius * (min(1.0, e / (gap - e)) if gap > 2.0 * e else 1.0))


def affine_pca(gap: float, records: int, radius: float = 1.0) -> Sensitivity:
    """For x -> A A^T (x - mean) + mean: twice that of the projection, and 2 R / n for the mean."""
    return Sensitivity(records, 2.0 * pca(gap, records, radius).moved + 2.0 * radius / records)


def gap_sensitivity(records: int, radius: float = 1.0) -> float:
    """By how much one replaced record moves an eigengap: 3 sqrt(3) R^2 / n."""
    return 3.0 * math.sqrt(3.0) * radius**2 / records


def scaling(least_deviation: float, records: int, radius: float = 1.0) -> Sensitivity:
    """(x - mean) / deviation per feature: 2 R / (n s) + 4 R^3 / (n s^3), s the least population deviation."""
    s = least_deviation / radius
    return Sensitivity(records, 2.0 / (records * s) + 4.0 / (records * s**3))


#: Steps of which the distance to the collection's edge is known, so that it can be tested.
TESTABLE = ("mean", "deduplicate", "quantise", "pca")


def distance_of_gap(gap: float, least: float, records: int) -> float:
    """How many records have to be replaced, at least, before the eigengap is below ``least``."""
    return max(0.0, (gap - least) / gap_sensitivity(records))


def distance_of_count(count: float, most: float) -> float:
    """The same for a count that one replaced record moves by at most one, and that must stay at most ``most``."""
    return max(0.0, most + 1.0 - count)


def threshold(epsilon: float, delta: float) -> float:
    """ln(2 / delta) / epsilon: what the noisy distance has to exceed."""
    return math.log(2.0 / delta) / epsilon


def refusal_probability(distance: float, epsilon: float, delta: float) -> float:
    """The exact probability of a refusal at a true distance J."""
    gap = epsilon * (distance - threshold(epsilon, delta))
    return 0.5 * math.exp(-gap) if gap >= 0.0 else 1.0 - 0.5 * math.exp(gap)


def tested_sensitivity(
    step: Step, collection: Mapping[str, Any], records: int, features: int, radius: float
) -> Sensitivity:
    """The sensitivity for pairs of which one lies inside the proposed limit and the other one record beyond."""
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
