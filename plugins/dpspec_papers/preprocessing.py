"""Tables that compare the accounting methods, with published divergences and sensitivities (Tables 1 and 2, Theorem 2).

Published formulas decide no verdict; some are refuted. ``changed`` is kappa, the maximum number of records in which
processed datasets differ; only sgd-iterated reads it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.bounds import PAPER, convert_curve, repaired_epsilon, tested_epsilon
from dpspec_preprocessing.options import Declaration, Pipeline, claimed_orders, distance_of
from dpspec_preprocessing.private import (
    GRADIENT,
    QUERIES,
    PrivateMechanism,
    compose,
    compose_lines,
    composed_slope,
    group_divergence,
    repaired_divergence,
)
from dpspec_preprocessing.sensitivity import (
    Sensitivity,
    Step,
    mean_same_mask,
    median,
    merging,
    one_record_of_regression,
    pca,
    trimmed_mean,
)

#: Minimum order of Table 2, and minimum number of records and numerator of tau / eigengap in its last column.
PRINTED_ORDER, PRINTED_RECORDS, PRINTED_PCA = 11.0, 101, 12.2


def printed_rdp(m: PrivateMechanism, order: float) -> float:
    """RDP of Table 1 with misprints corrected; refuted for sgd-sampled with less than twice the paper's noise."""
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
    """Smooth RDP of Table 1 at distance ``tau``, with misprints corrected and gamma = 1."""
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
    """Largest order of Theorem 13: min(sqrt(T) / e, L^2 T / (e n)^2 ln(n^2 e / (L sqrt(T))))."""
    e, n, root = m.noise, m.records, math.sqrt(m.steps)
    scale = (m.lipschitz * root / (e * n)) ** 2
    return min(root / e, scale * math.log(n * n * e / (m.lipschitz * root)))


def table_2_divergence(m: PrivateMechanism, order: float, moved: float, changed: float) -> float:
    """Table 2 at x = ``moved``; NaN without an entry. Theorem 16 uses p = q = 2: it needs curves at twice the order."""
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
    """Theorem 2 with the paper's curves at the best p and q; the limit p = 1 if no curve depends on the order."""
    if m.kind in ("gaussian", "dp-gd"):
        slopes = printed_rdp(m, order) / order, printed_srdp(m, order, tau, changed) / order
        return order * composed_slope(*slopes)
    if m.kind in ("laplace", "exponential"):
        return printed_rdp(m, order) + printed_srdp(m, order, tau, changed)
    curves = (lambda a: printed_rdp(m, a)), (lambda a: printed_srdp(m, a, tau, changed))
    return (compose_lines if m.kind == "sgd-iterated" else compose)(*curves, order)


def published_divergence(pipeline: Pipeline, method: str, order: float) -> float:
    """Renyi divergence at ``order`` by ``theorem2`` or ``printed``; NaN if the method does not apply."""
    m, sensitivity = pipeline.private, published_sensitivity(pipeline, method)
    if sensitivity is None:
        return math.nan
    if method == "theorem2":
        return theorem_2_divergence(m, order, distance_of(m, sensitivity), changed_records(pipeline))
    if (m.kind, pipeline.step_name == "pca") in NOT_TABLED:
        return math.nan
    return table_2_divergence(m, order, sensitivity.tau, changed_records(pipeline))


#: Entries that Table 2 lacks: mechanism, and whether for a projection.
NOT_TABLED: Final = (("sgd-sampled", False), ("sgd-iterated", True))

#: Reason why a published sensitivity is refuted, by step or mechanism.
REFUTED: Final = {
    "deduplicate": "one record can destroy several clusters, up to 10 in the plane; Proposition 3 counts two",
    "quantise": "one record can destroy several clusters, and a record can move by 2 eta; Proposition 3 counts two "
    "clusters and eta",
    "impute-any": "a neighbour with other missing entries moves imputed values by up to sqrt(6) / N, not 2 / (n - p)",
    "sgd-sampled": "explicit gradients exceed Theorem 13 if the noise is below 2 L sqrt(T) / (noise n)",
}


def published_sensitivity(pipeline: Pipeline, method: str) -> Sensitivity | None:
    """Sensitivity by ``theorem2``, or by ``printed``, whose table has constants of 1."""
    if method == "theorem2":
        return theorem_2_sensitivity(pipeline)
    return table_2_sensitivity(pipeline) if pipeline.private.unit else None


def table_2_sensitivity(pipeline: Pipeline) -> Sensitivity | None:
    """Delta_inf and tau / Delta_inf of Table 2; None without a column or a required limit."""
    limits, records, step = pipeline.collection, pipeline.private.records, pipeline.step
    name = pipeline.step_name
    if step is None or not _is_covered(pipeline):
        return None
    if name == "mean" and "max_missing_rows" in limits:
        missing = int(limits["max_missing_rows"])
        return Sensitivity(missing, mean_same_mask(records - missing))  # Corollary 4
    if step.merges and "max_cluster" in limits:  # Proposition 3: twice the largest good cluster
        return Sensitivity(2.0 * int(limits["max_cluster"]), 1.0 if name == "deduplicate" else step.eta)
    if name == "pca" and "min_eigengap" in limits and records >= PRINTED_RECORDS:
        return Sensitivity(records, PRINTED_PCA / float(limits["min_eigengap"]) / records)
    return None


def theorem_2_sensitivity(pipeline: Pipeline) -> Sensitivity | None:
    """Sensitivity for Theorem 2: Table 2, Proposition 5 for a projection, Table 3 for other imputations."""
    limits, records, step = pipeline.collection, pipeline.private.records, pipeline.step
    name = pipeline.step_name
    if step is None or name == "scale" or not _is_covered(pipeline):
        return None
    if not all(key in limits for key in step.kind.required):
        return None
    missing = float(limits.get("max_missing_rows", 0))
    if name == "pca":
        return pca_printed(float(limits["min_eigengap"]), records)
    if name == "median":
        return Sensitivity(missing, median(float(limits["max_spread"])))
    if name == "trimmed":
        observed = records - int(missing)
        return Sensitivity(missing, trimmed_mean(float(limits["max_spread"]), observed, step.trim))
    if name == "regression":
        eigenvalues = float(limits["min_eigenvalue"]), float(limits["max_eigenvalue"])
        return Sensitivity(missing, one_record_of_regression(*eigenvalues))
    return table_2_sensitivity(pipeline)


def _is_covered(pipeline: Pipeline) -> bool:
    first = pipeline.steps[0]
    return math.isfinite(pipeline.private.smooth) and pipeline.radius == 1.0 and not (first.affine or first.mu)


def changed_records(pipeline: Pipeline) -> float:
    """Kappa: maximum number of differing processed records according to Table 2; 0 without a column."""
    tabled = table_2_sensitivity(pipeline)
    return min(tabled.changed, pipeline.private.records) if tabled is not None else 0.0


def refutation(pipeline: Pipeline) -> str | None:
    """The reason why the published sensitivity or curve is wrong, if it is."""
    if pipeline.private.kind == "sgd-sampled" and pipeline.private.factor < 4.0:
        return REFUTED["sgd-sampled"]
    if pipeline.step_name == "mean":
        return None if pipeline.same_mask else REFUTED["impute-any"]
    return REFUTED.get(str(pipeline.step_name))


def pca_printed(gap: float, records: int) -> Sensitivity:
    """Proposition 5 for the map x -> A A^T x: 4 (3 n + 2) / (n (n - 1) gap)."""
    return Sensitivity(records, 4.0 * (3.0 * records + 2.0) / (records * (records - 1.0) * gap))


#: A table. All are approximate: rows mix theorems, printed numbers and values that are not bounds.
_series = partial(kit.series, rigor="approximate")


def compare(
    spec: dps.Spec, facts: dps.Facts, bounds: Sequence[dps.Finding | dps.Series]
) -> Iterator[dps.Finding | dps.Series]:
    """Epsilon and divergence by each accounting method, and Table 2 of the paper if the spec requests it."""
    pipeline = Declaration.of(spec.mechanism.options).pipeline(facts.records, facts.features)
    yield accounting_series(spec, pipeline)
    yield divergence_series(spec, pipeline)
    if (stated := spec.mechanism.get("table")) is not None:
        yield from paper_tables(stated, pipeline.private.records, pipeline.private.noise)


def paper_tables(stated: dps.FrozenMap, records: int, noise: float) -> Iterator[dps.Series]:
    p, ball, steps = int(stated["changed"]), int(stated["ball"]), int(stated["steps"])
    eta, gap, order = float(stated["eta"]), float(stated["eigengap"]), float(stated["order"])
    mean_shift = mean_same_mask(records - p)
    repaired = {name: merging(Step(name=name, eta=eta), ball, records) for name in ("deduplicate", "quantise")}
    #: By pre-processing: x in the table, tau of Theorem 2, and the sensitivity of the repaired bound.
    columns: dict[str, tuple[float, float, Sensitivity]] = {
        "deduplicate": (p, p, repaired["deduplicate"]),
        "quantise": (p * eta, p * eta, repaired["quantise"]),
        "impute-mean": (p * mean_shift, p * mean_shift, Sensitivity(p, mean_shift)),
        "pca": (PRINTED_PCA / gap, pca_printed(gap, records).tau, pca(gap, records)),
    }
    for name, (tabled, tau, proved) in columns.items():
        changed = 0.0 if name == "pca" else float(p)
        rows: list[tuple[dps.Json, ...]] = []
        for kind in (*QUERIES, *GRADIENT):
            m = PrivateMechanism(kind=kind, noise=noise, records=records, steps=steps, factor=4.0)
            printed = (math.nan, math.nan)
            if (kind, name == "pca") not in NOT_TABLED:
                printed = table_2_divergence(m, order, tabled, changed), theorem_2_divergence(m, order, tau, changed)
            smooth = repaired_divergence(m, order, distance_of(m, proved), proved.changed)
            group = group_divergence(m, order, proved.changed)
            rows.append((kind, repaired_divergence(m, order, None, 0.0), *printed, smooth, group))
        status = "printed holds for neighbours with the same missing values"
        if name in REFUTED:
            status = f"printed and theorem2 are refuted: {REFUTED[name]}"
        elif name == "pca":
            status = "printed holds, and is loose"
        yield _series(
            f"table-2-{name}",
            f"Table 2, {name}: Renyi divergence at order {order:g}",
            kit.columns_of(("mechanism", "ignored", "printed", "theorem2", "repaired", "group"), rows),
            source=f"{PAPER}, Table 2 (Theorem 16); {status}",
            upper=["repaired", "group"],
        )


#: Titles of the accounting methods, in the order of tables.
METHOD_TITLES = {
    "ignored": "ignoring pre-processing",
    "repaired": "repaired",
    "theorem2": "Theorem 2",
    "printed": "Table 2",
    "group": "group privacy",
}
_PUBLISHED = ("theorem2", "printed")


def epsilon_by(pipeline: Pipeline, method: str, delta: float) -> float:
    """Epsilon by an accounting method; NaN if the method does not apply."""
    if method not in _PUBLISHED:
        changed = 0.0 if method == "ignored" else pipeline.changed
        private = replace(pipeline.private, released=0.0) if method == "ignored" else pipeline.private
        return repaired_epsilon(private, pipeline.tau if method == "repaired" else None, changed, delta)
    if published_sensitivity(pipeline, method) is None:
        return math.nan
    lowest = PRINTED_ORDER if method == "printed" else 1.0
    return convert_curve(partial(published_divergence, pipeline, method), delta, lowest=lowest, conversion="mironov")


def accounting_series(spec: dps.Spec, pipeline: Pipeline) -> dps.Series:
    test = Declaration.of(spec.mechanism.options).ptr
    rows: list[tuple[dps.Json, ...]] = []
    for delta in kit.claimed_deltas(spec):
        for method, title in METHOD_TITLES.items():
            if test is not None and method == "repaired":
                value = tested_epsilon(pipeline, test, delta)
            else:
                value = epsilon_by(pipeline, method, delta)
            if math.isfinite(value):
                rows.append((title, delta, value, _status(pipeline, method)))
    refuted = refutation(pipeline)
    return _series(
        "epsilon-by-accounting",
        "Epsilon with and without the cost of pre-processing",
        kit.columns_of(("accounting", "delta", "epsilon", "standing"), rows),
        source=PAPER if refuted is None else f"{PAPER}; Theorem 2 and Table 2 refuted: {refuted}",
        upper=["epsilon"],
    )


#: Orders of the table of divergences, in addition to the claimed ones.
_SHOWN_ORDERS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 16.0, 32.0, 64.0)


def divergence_series(spec: dps.Spec, pipeline: Pipeline) -> dps.Series:
    """By order and accounting method; a published method has rows only if it applies."""
    tested, m = Declaration.of(spec.mechanism.options).ptr is not None, pipeline.private
    rows: list[tuple[dps.Json, ...]] = []
    for method, title in METHOD_TITLES.items():
        published = method in _PUBLISHED
        if (published and published_sensitivity(pipeline, method) is None) or (method == "repaired" and tested):
            continue
        for order in sorted({*_SHOWN_ORDERS, *claimed_orders(spec)}):
            if method == "printed" and order < PRINTED_ORDER:
                continue
            by_method = replace(m, released=0.0) if method == "ignored" else m
            if published:
                value = published_divergence(pipeline, method, order)
            else:
                changed = 0.0 if method == "ignored" else pipeline.changed
                value = repaired_divergence(by_method, order, pipeline.tau if method == "repaired" else None, changed)
            if math.isfinite(value):
                rows.append((order, value, title, _status(pipeline, method)))
    return _series(
        "divergence-by-order",
        "Renyi divergence by order, with and without the cost of pre-processing",
        kit.columns_of(("alpha", "divergence", "accounting", "standing"), rows),
        source=PAPER,
        x="alpha",
        y=["divergence"],
        units={"divergence": "Renyi divergence", "alpha": "order of the divergence"},
        by="accounting",
        log=["x", "y"],
        upper=["divergence"],
    )


def _status(pipeline: Pipeline, method: str) -> str:
    if method in _PUBLISHED:
        return "as printed" if refutation(pipeline) is None else "refuted"
    return "no bound" if method == "ignored" else "theorem"
