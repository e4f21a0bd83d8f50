"""What the paper prints of curves and sensitivities (Tables 1 and 2, Theorem 2), and what it has no number for.

``changed`` is kappa, in how many records processed data sets can differ; sgd-iterated alone reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.execution.refusals import warning
from dpspec_preprocessing.options import Declaration, Pipeline
from dpspec_preprocessing.schema import OLD_REPAIRED
from dpspec_preprocessing.theory.declared_steps import Imputation, Merging, Projection, Step
from dpspec_preprocessing.theory.divergence import compose, compose_lines, composed_slope
from dpspec_preprocessing.theory.private import PrivateMechanism
from dpspec_preprocessing.theory.sensitivity import (
    REQUIRED_LIMITS,
    Sensitivity,
    median,
    one_record_of_regression,
    trimmed_mean,
)

#: Table 2 holds from this order on, and its last column from so many records on.
PRINTED_ORDER, PRINTED_RECORDS = 11.0, 101


def printed_rdp(m: PrivateMechanism, order: float) -> float:
    """Table 1's RDP, misprints repaired; refuted for sgd-sampled with less noise than twice the paper's."""
    e = m.noise
    if m.kind in ("laplace", "exponential"):
        return e
    if m.kind == "dp-gd":
        return 2.0 * order * e * e
    if m.kind == "sgd-sampled":
        return 0.5 * (order * e) ** 2 if order <= largest_sampled_order(m) else math.inf
    if m.kind == "sgd-iterated" and m.lipschitz * math.sqrt(2.0 * order * (order - 1.0)) > m.sigma:
        return math.inf
    return 0.5 * order * e * e


def printed_srdp(m: PrivateMechanism, order: float, tau: float, changed: float) -> float:
    """Table 1's smooth RDP at distance ``tau``, misprints repaired, with gamma = 1."""
    e, moved = m.noise, m.reach * tau
    if m.kind in ("laplace", "exponential"):
        return e * moved
    if m.kind == "sgd-sampled" and order > largest_sampled_order(m):
        return math.inf
    if m.kind == "sgd-iterated":
        if m.lipschitz * max(1.0, tau) * math.sqrt(2.0 * order * (order - 1.0)) > m.sigma:
            return math.inf
        n, left = m.records, m.records - changed
        late = n * math.log(left + 2.0) / (2.0 * (left + 1.0) * math.log(n))
        return order * (moved * e) ** 2 * late
    return 0.5 * order * (moved * e) ** 2


def largest_sampled_order(m: PrivateMechanism) -> float:
    """Theorem 13: the largest order that it covers, min(sqrt(T) / e, L^2 T / (e n)^2 ln(n^2 e / (L sqrt(T))))."""
    e, n, root = m.noise, m.records, math.sqrt(m.steps)
    scale = (m.lipschitz * root / (e * n)) ** 2
    return min(root / e, scale * math.log(n * n * e / (m.lipschitz * root)))


def table_2_divergence(m: PrivateMechanism, order: float, moved: float, changed: float) -> float:
    """Table 2 with x = ``moved`` (tau as the paper takes it); NaN where the table has no entry.

    Theorem 16 takes p = q = 2, and so needs the curves at twice the order.
    """
    twice = 2.0 * order
    if order < PRINTED_ORDER or not math.isfinite(printed_srdp(m, twice, moved, changed) + printed_rdp(m, twice)):
        return math.nan
    e2 = m.noise**2
    if m.kind in ("laplace", "exponential"):
        return m.noise * (1.0 + moved)
    if m.kind == "gaussian":
        return 1.05 * order * e2 * (1.0 + moved**2)
    if m.kind == "dp-gd":
        return 1.05 * order * e2 * (4.0 + moved**2)
    if m.kind == "sgd-sampled":
        return 1.05 * order * e2 * (2.0 * order + moved**2)
    n, p = m.records, changed
    late = n * math.log(n - p) / ((n - p) * math.log(n))
    return 1.1 * order * e2 * (1.0 + moved**2 * late)


def theorem_2_divergence(m: PrivateMechanism, order: float, tau: float, changed: float) -> float:
    """Theorem 2 with the paper's curves at the best p and q; its limit p = 1 where no curve depends on the order."""
    if m.kind in ("gaussian", "dp-gd"):
        slopes = printed_rdp(m, order) / order, printed_srdp(m, order, tau, changed) / order
        return order * composed_slope(*slopes)
    if m.kind in ("laplace", "exponential"):
        return printed_rdp(m, order) + printed_srdp(m, order, tau, changed)
    curves = (lambda a: printed_rdp(m, a)), (lambda a: printed_srdp(m, a, tau, changed))
    return (compose_lines if m.kind == "sgd-iterated" else compose)(*curves, order)


#: Pre-processings whose printed sensitivities are refuted, and by what.
REFUTED: Final = {
    "deduplicate": "one record can destroy several clusters at once, up to 10 in the plane: Proposition 3 counts two",
    "quantise": "one record can destroy several clusters at once, and a record can move by 2 eta: Proposition 3 counts "
    "two clusters and eta",
    "impute-any": "a neighbour that misses other entries moves imputed values by up to sqrt(6) / N, not 2 / (n - p)",
    "sgd-sampled": "Theorem 13 is exceeded by explicit gradients where the noise is below 2 L sqrt(T) / (noise n)",
}

#: Table 2's last column holds from so many records on, with tau = 12.2 / eigengap.
PRINTED_RECORDS, PRINTED_PCA = 101, 12.2


def table_2_sensitivity(pipeline: Pipeline) -> Sensitivity | None:
    """What Table 2 takes: Delta_inf, and tau / Delta_inf; None where it has no column or a limit is missing."""
    limits, records, step = pipeline.collection, pipeline.private.records, pipeline.step
    name = pipeline.step_name
    if step is None or not pipeline.is_smooth or pipeline.radius != 1.0 or _around_mean(step):
        return None
    if name == "mean" and "max_missing_rows" in limits:
        missing = int(limits["max_missing_rows"])
        return Sensitivity(missing, mean_printed(records, missing))
    if isinstance(step, Merging) and "max_cluster" in limits:
        return Sensitivity(clusters_printed(int(limits["max_cluster"])), 1.0 if step.drops else step.eta)
    if name == "pca" and "min_eigengap" in limits and records >= PRINTED_RECORDS:
        return Sensitivity(records, PRINTED_PCA / float(limits["min_eigengap"]) / records)
    return None


def theorem_2_sensitivity(pipeline: Pipeline) -> Sensitivity | None:
    """What Theorem 2 takes: Table 2's, Proposition 5's for a projection, and Table 3's for other imputations."""
    limits, records, step = pipeline.collection, pipeline.private.records, pipeline.step
    name = pipeline.step_name
    if step is None or name is None or not pipeline.is_smooth or pipeline.radius != 1.0 or _around_mean(step):
        return None
    if name == "scale" or not all(key in limits for key in REQUIRED_LIMITS[name]):
        return None
    missing = float(limits.get("max_missing_rows", 0))
    if name == "pca":
        return pca_printed(float(limits["min_eigengap"]), records)
    if name == "median":
        return Sensitivity(missing, median(float(limits["max_spread"])))
    if isinstance(step, Imputation) and step.by == "trimmed":
        observed = records - int(missing)
        return Sensitivity(missing, trimmed_mean(float(limits["max_spread"]), observed, step.trim))
    if name == "regression":
        eigenvalues = float(limits["min_eigenvalue"]), float(limits["max_eigenvalue"])
        return Sensitivity(missing, one_record_of_regression(*eigenvalues))
    return table_2_sensitivity(pipeline)


def _around_mean(step: Step) -> bool:
    """Whether a step projects around the mean, of which the paper prints nothing."""
    return isinstance(step, Projection) and step.affine


def changed_records(pipeline: Pipeline) -> float:
    """kappa: in how many records processed data sets can differ as Table 2 has it; 0 where it has no column."""
    tabled = table_2_sensitivity(pipeline)
    return min(tabled.changed, pipeline.private.records) if tabled is not None else 0.0


def refutation(pipeline: Pipeline, way: str) -> str | None:
    """Why the numbers of a way of accounting, ``printed`` or ``theorem2``, are refuted; None where they are not."""
    if way not in ("printed", "theorem2"):
        return None
    if pipeline.private.kind == "sgd-sampled" and pipeline.private.factor < 4.0:
        return REFUTED["sgd-sampled"]
    if pipeline.step_name == "mean":
        return None if pipeline.same_mask else REFUTED["impute-any"]
    return REFUTED.get(str(pipeline.step_name))


def mean_printed(records: int, missing: int, radius: float = 1.0) -> float:
    """Corollary 4: 2 R / (n - p)."""
    return 2.0 * radius / (records - missing)


def clusters_printed(cluster: int) -> float:
    """Proposition 3: 2 max |B|, B the good clusters."""
    return 2.0 * cluster


def pca_printed(gap: float, records: int) -> Sensitivity:
    """Proposition 5 for the map x -> A A^T x: 4 (3 n + 2) / (n (n - 1) gap)."""
    return Sensitivity(records, 4.0 * (3.0 * records + 2.0) / (records * (records - 1.0) * gap))


_PATH = ("mechanism", "accounting")
_REPAIRED = "accounting: repaired"


def mode_refusals(spec: dps.Spec, facts: dps.Facts, pipeline: Pipeline) -> Iterator[dps.Diagnostic]:
    """What Table 2 and Theorem 2 do not cover, and that both prove nothing."""
    if spec.mechanism.get("accounting") == OLD_REPAIRED:
        yield warning(f"accounting: {OLD_REPAIRED} is the old word for these formulas", _PATH, f"write {_REPAIRED}")
    mode = Declaration.of(spec.mechanism.options).accounting
    if mode == "repaired":
        return
    yield warning(f"accounting: {mode} proves nothing", _PATH, "claims are proved by accounting: repaired")
    if mode == "theorem2":
        if theorem_2_sensitivity(pipeline) is None:
            yield kit.unsupported("Theorem 2 has no sensitivity for this pipeline", _PATH, _REPAIRED)
        return
    if table_2_sensitivity(pipeline) is None:
        too_few = pipeline.step_name == "pca" and facts.records < PRINTED_RECORDS
        needs = f"n >= {PRINTED_RECORDS} records" if too_few else "one of its columns, radius 1 and its limits"
        yield kit.unsupported(f"Table 2 needs {needs}", _PATH, _REPAIRED)
    if not pipeline.private.unit:
        yield kit.unsupported("Table 2 is printed for constants of 1", _PATH, "accounting: theorem2 takes any")
    for i, claim in enumerate(spec.claims):
        if claim.kind == "renyi-dp":
            yield from _order_refusals(pipeline, ("claims", i, "alpha"), float(claim["alpha"]))


def _order_refusals(pipeline: Pipeline, path: dps.Path, order: float) -> Iterator[dps.Diagnostic]:
    m, sensitivity = pipeline.private, table_2_sensitivity(pipeline)
    if order < PRINTED_ORDER:
        yield kit.unsupported(f"Table 2 holds from order {PRINTED_ORDER:g} on", path, _REPAIRED)
    elif sensitivity is not None and math.isnan(
        table_2_divergence(m, order, sensitivity.tau, changed_records(pipeline))
    ):
        yield kit.unsupported(
            f"Theorem 16 takes {m.kind} at twice the order, {2.0 * order:g}, where it is not covered",
            path,
            f"{_REPAIRED}, a smaller order, or a smaller eps_noise",
        )
