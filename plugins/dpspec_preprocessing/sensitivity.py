"""The declared steps of a pipeline, and the proved effect of one replaced record on the other processed records.

Formulas are for records of norm at most R (``docs/explanation/proofs/preprocessing.md``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple


class StepKind(NamedTuple):
    """Key in specs, and limits that the repaired bound requires; ``testable`` by propose-test-release."""

    key: str
    required: tuple[str, ...]
    further: tuple[str, ...] = ()
    testable: bool = False


_MISSING = ("max_missing_in_row", "min_observed")

STEPS: Final = {
    "mean": StepKind("impute", ("max_missing_rows", "min_observed"), ("max_missing_in_row", "max_mean_norm"), True),
    "median": StepKind("impute", ("max_missing_rows", "max_spread"), _MISSING),
    "trimmed": StepKind("impute", ("max_missing_rows", "min_observed", "max_spread"), _MISSING),
    "regression": StepKind("impute", ("max_missing_rows", "min_eigenvalue", "max_eigenvalue"), _MISSING),
    "deduplicate": StepKind("deduplicate", ("max_ball",), ("max_cluster",), testable=True),
    "quantise": StepKind("quantise", ("max_ball",), ("max_cluster",), testable=True),
    "pca": StepKind("pca", ("min_eigengap",), testable=True),
    "dp-pca": StepKind("dp-pca", ()),
    "scale": StepKind("scale", ("min_std",)),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A declared step; options of other kinds keep their defaults.

    Attributes:
        same_mask: Neighbours have the same missing entries.
        mu: The release of a private step is mu-GDP; 0 for the other steps, which release nothing.
    """

    name: str
    trim: int = 0
    same_mask: bool = False
    eta: float = 0.0
    components: int = 0
    affine: bool = False
    clip: float = math.inf
    mu: float = 0.0

    @property
    def kind(self) -> StepKind:
        return STEPS[self.name]

    @property
    def imputes(self) -> bool:
        return self.kind.key == "impute"

    @property
    def merges(self) -> bool:
        return self.name in ("deduplicate", "quantise")


def read_step(block: Mapping[str, Any]) -> Step:
    """Read a block of ``mechanism.pipeline``."""
    return Step(
        name=block["impute"] if "impute" in block else next(name for name in STEPS if name in block),
        trim=int(block.get("trim", 0)),
        same_mask=block.get("mask") == "same",
        eta=float(block.get("deduplicate", block.get("quantise", 0.0))),
        components=int(block.get("pca", block.get("dp-pca", 0))),
        affine=bool(block.get("affine", False)),
        clip=float(block.get("clip", math.inf)),
        mu=float(block.get("eps_noise", 0.0)),
    )


class Sensitivity(NamedTuple):
    """Number of changed common records, maximum displacement of each, and their product ``tau``."""

    changed: float
    moved: float

    @property
    def tau(self) -> float:
        return self.changed * self.moved


def repaired_sensitivity(
    step: Step, collection: Mapping[str, Any], records: int, features: int, radius: float = 1.0
) -> Sensitivity | None:
    if not all(key in collection for key in step.kind.required):
        return None
    if step.name == "dp-pca":  # given the released projection no other record moves
        return Sensitivity(0.0, 0.0)
    if step.name == "pca":
        return pca(float(collection["min_eigengap"]), records, radius, affine=step.affine)
    if step.name == "scale":
        return scaling(float(collection["min_std"]), records, radius)
    if step.merges:
        return merging(step, int(collection["max_ball"]), records, radius)
    missing_in_row = int(collection.get("max_missing_in_row", features))
    spread, observed = float(collection.get("max_spread", 0.0)), int(collection.get("min_observed", 0))
    missing = int(collection["max_missing_rows"])
    if step.name == "mean":
        moved = math.inf  # a feature with one observed value
        if observed >= 2:
            norm = collection.get("max_mean_norm")
            moved = (
                mean_same_mask(observed, radius) if step.same_mask else mean_any_mask(observed, features, norm, radius)
            )
    elif step.name == "median":
        # The only observed value may be the replaced one.
        moved = median(spread, missing_in_row) if max(observed, records - missing) >= 2 else math.inf
    elif step.name == "trimmed":
        moved = trimmed_mean(spread, observed, step.trim, missing_in_row)
    else:
        smallest, largest = (float(collection[key]) / radius**2 for key in ("min_eigenvalue", "max_eigenvalue"))
        moved = radius * regression(smallest, largest, missing_in_row)
    return Sensitivity(float(missing), min(2.0 * radius, moved))


def merging(step: Step, ball: int, records: int, radius: float = 1.0) -> Sensitivity:
    """2 N_4, with ``ball`` records within 8 eta of a record: both records change only records within 4 eta."""
    return Sensitivity(min(float(records), 2.0 * ball), radius if step.name == "deduplicate" else 2.0 * step.eta)


def mean_same_mask(observed: int, radius: float = 1.0) -> float:
    """2 R / N, with N the minimum number of observed values of a feature, for neighbours with the same mask."""
    return 2.0 * radius / observed


def mean_any_mask(observed: int, features: int, mean_norm: float | None = None, radius: float = 1.0) -> float:
    """Displacement by mean imputation for neighbours with arbitrary masks.

    M = min(sqrt(d), ||mean|| + 2 sqrt(d) / N) bounds the mean of the common records. The displacement in units of R is
    sqrt(4 + 2 M^2) / N for M <= sqrt(2), else (M + sqrt(2)) / N.
    """
    m = math.sqrt(features)
    if mean_norm is not None:
        m = min(m, mean_norm / radius + 2.0 * m / observed)
    return radius * (math.sqrt(4.0 + 2.0 * m * m) if m <= math.sqrt(2.0) else m + math.sqrt(2.0)) / observed


def median(spread: float, missing_in_row: int = 1) -> float:
    """sqrt(q) times the maximum difference over the collection of the order statistics that enclose every median."""
    return math.sqrt(missing_in_row) * spread


def trimmed_mean(spread: float, observed: int, trim: int, missing_in_row: int = 1) -> float:
    """sqrt(q) (x_hi - x_lo) / (N - 2 m): one kept value is replaced, added or removed."""
    kept_values = observed - 2 * trim
    if kept_values < 1:
        raise ValueError(f"trimming {trim} values at each end removes all {observed} values")
    return math.sqrt(missing_in_row) * spread / kept_values


def regression(smallest: float, largest: float, missing_in_row: int = 1) -> float:
    """2 sqrt(q) times :func:`one_record_of_regression`; without the replaced record eigenvalues fall by at most 1."""
    return 2.0 * math.sqrt(missing_in_row) * one_record_of_regression(smallest - 1.0, largest)


def one_record_of_regression(smallest: float, largest: float) -> float:
    """largest^2 / ((largest + 1) smallest^2) + 1 / smallest, from the eigenvalues of X^T X: one record added."""
    if not 0.0 < smallest <= largest:
        raise ValueError("eigenvalues must be positive and in ascending order")
    return largest**2 / ((largest + 1.0) * smallest**2) + 1.0 / smallest


def pca(gap: float, records: int, radius: float = 1.0, *, affine: bool = False) -> Sensitivity:
    """Projection onto the first k principal directions: Delta_2 = R min(1, e / (gap - e)) with e = 4 R^2 / n.

    The covariances differ by (a a^T - b b^T) / n with ||a||, ||b|| <= 2 R, hence by at most e in norm. Then use
    Davis-Kahan with the gap of either one. The affine map x -> A A^T (x - mean) + mean has twice the displacement, plus
    2 R / n for the mean.
    """
    e = 4.0 * radius**2 / records
    moved = radius * (e / (gap - e) if gap > 2.0 * e else 1.0)
    return Sensitivity(records, 2.0 * moved + 2.0 * radius / records if affine else moved)


def second_moment_sensitivity(radius: float = 1.0) -> float:
    """Frobenius sensitivity sqrt(2) R^2 of X^T X to one replaced record.

    ||a a^T - b b^T||^2 = ||a||^4 + ||b||^4 - 2 (a b)^2 is at most 2 R^4, for orthogonal a and b of norm R.
    """
    return math.sqrt(2.0) * radius**2


def scaling(min_std: float, records: int, radius: float = 1.0) -> Sensitivity:
    """Standard scaling: 2 R / (n s) + 4 R^3 / (n s^3), with s the minimum population standard deviation."""
    s = min_std / radius
    return Sensitivity(records, 2.0 / (records * s) + 4.0 / (records * s**3))


def gap_sensitivity(records: int) -> float:
    """Sensitivity of an eigengap, in units of R^2, to one replaced record: 3 sqrt(3) / n."""
    return 3.0 * math.sqrt(3.0) / records


def threshold(epsilon: float, delta: float) -> float:
    """ln(2 / delta) / epsilon: the test passes if the noisy distance exceeds it."""
    return math.log(2.0 / delta) / epsilon


def refusal_probability(distance: float, epsilon: float, delta: float) -> float:
    """Exact probability of a refusal at distance J."""
    gap = epsilon * (distance - threshold(epsilon, delta))
    return 0.5 * math.exp(-gap) if gap >= 0.0 else 1.0 - 0.5 * math.exp(gap)


def tested_sensitivity(
    step: Step, collection: Mapping[str, Any], records: int, features: int, radius: float
) -> Sensitivity | None:
    """For pairs with one dataset inside the collection: the other one is a replacement away."""
    missing = int(collection.get("max_missing_rows", 0)) + 1
    wider = {**collection, "max_missing_rows": missing, "min_observed": records - missing, "max_mean_norm": None}
    wider["max_ball"] = int(collection.get("max_ball", 0)) + 1
    return repaired_sensitivity(step, wider, records, features, radius)
