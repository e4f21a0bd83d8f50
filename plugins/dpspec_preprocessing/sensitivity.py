"""How far one replaced record moves what a pre-processing makes of the other records: printed and certified.

Changed (Delta_inf) counts how many of the common records are processed differently, moved (Delta_2) is how far one of
them goes at most, and tau = changed * moved bounds the sum of all distances. The replaced record itself is the private
mechanism's. Records lie in a ball of radius 1; other radii scale what is said at each function. ``printed`` values are
those of Hu, Sanyal & Schoelkopf 2024; some of them are refuted by explicit data (``REFUTED``).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

#: Pre-processings whose printed sensitivities are refuted, and by what.
REFUTED: Final = {
    "deduplicate": "one record can destroy several clusters at once, up to 10 in the plane: Proposition 3 counts two",
    "quantise": "one record can destroy several clusters at once, and a record can move by 2 eta: Proposition 3 counts "
    "two clusters and eta",
    "impute-any": "a neighbour that misses other entries moves imputed values by up to sqrt(6) / N, not 2 / (n - p)",
    "sgd-sampled": "Theorem 13 is exceeded by explicit gradients where the noise is below 2 L sqrt(T) / (noise n)",
}


class Sensitivity(NamedTuple):
    """changed: how many common records differ. moved: by how much each. ``tau`` is their product."""

    changed: float
    moved: float

    @property
    def tau(self) -> float:
        """A bound on the sum of the distances between the processed common records."""
        return self.changed * self.moved


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


def mean_printed(records: int, missing: int, radius: float = 1.0) -> float:
    """Corollary 4: 2 R / (n - p)."""
    return 2.0 * radius / (records - missing)


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


def regression_printed(least: float, largest: float) -> float:
    """largest^2 / ((largest + 1) least^2) + 1 / least, from the extreme eigenvalues of X^T X: one record added."""
    if not 0.0 < least <= largest:
        raise ValueError("eigenvalues must be positive, the least first")
    return largest**2 / ((largest + 1.0) * least**2) + 1.0 / least


def regression(least: float, largest: float, missing_in_row: int = 1) -> float:
    """2 sqrt(q) times that, for a replacement: one record removed and one added.

    The eigenvalues are those of the n records of a member of the collection; without the replaced record, of norm at
    most 1, the least is smaller by at most 1. Raises ``ValueError`` unless it exceeds 1.
    """
    return 2.0 * math.sqrt(missing_in_row) * regression_printed(least - 1.0, largest)


def clusters(ball: int) -> float:
    """2 N_4: each of the two records changes only what lies within 4 eta of it.

    ball: at least the largest number of records within 8 eta of one of them.
    """
    return 2.0 * ball


def clusters_printed(cluster: int) -> float:
    """Proposition 3: 2 max |B|, B the good clusters."""
    return 2.0 * cluster


def pca(gap: float, records: int, radius: float = 1.0) -> Sensitivity:
    """Projection on the first k principal directions: Delta_2 = R min(1, e / (gap - e)) with e = 4 R^2 / n.

    Two covariances differ by (a a^T - b b^T) / n with ||a||, ||b|| <= 2 R, hence by e in norm; then Davis and Kahan.
    """
    e = 4.0 * radius**2 / records
    return Sensitivity(records, radius * (min(1.0, e / (gap - e)) if gap > 2.0 * e else 1.0))


def pca_printed(gap: float, records: int) -> Sensitivity:
    """Proposition 5 for the map x -> A A^T x: 4 (3 n + 2) / (n (n - 1) gap)."""
    return Sensitivity(records, 4.0 * (3.0 * records + 2.0) / (records * (records - 1.0) * gap))


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
