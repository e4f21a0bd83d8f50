"""Findings of the accounting modes ``printed`` (Table 2) and ``theorem2``, and copies of Table 2.

The findings are approximate and prove nothing. They are marked if a counterexample refutes them. The copy of Table 2
for given parameters has one table per pre-processing and one row per mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.bounds import ASSUMPTIONS, COLLECTION, PAPER, bounded_deltas
from dpspec_preprocessing.options import (
    SAME_MASK,
    Declaration,
    PaperTable,
    Pipeline,
    bound_scope,
    claimed_orders,
    distance_of,
)
from dpspec_preprocessing.printed.formulas import (
    PRINTED_ORDER,
    PRINTED_PCA,
    REFUTED,
    changed_records,
    pca_printed,
    refutation,
    table_2_divergence,
    table_2_sensitivity,
    theorem_2_divergence,
    theorem_2_sensitivity,
)
from dpspec_preprocessing.theory.conversion import convert_curve
from dpspec_preprocessing.theory.divergence import group_divergence, repaired_divergence
from dpspec_preprocessing.theory.private import KINDS, PrivateMechanism
from dpspec_preprocessing.theory.sensitivity import Sensitivity, clusters, mean_same_mask, pca

#: Accounting methods of this module with their source.
SOURCES = {
    "theorem2": f"{PAPER}, Theorem 2 with the paper's sensitivities",
    "printed": f"{PAPER}, Theorem 16 and Table 2",
}


def printed_findings(spec: dps.Spec, pipeline: Pipeline) -> Iterator[dps.Finding]:
    """Findings of the chosen mode at the deltas and orders of claims, and along a curve of deltas."""
    method = Declaration.of(spec.mechanism.options).accounting
    for delta in bounded_deltas(spec):
        yield _finding(spec, pipeline, method, printed_epsilon(pipeline, method, delta), {"delta": delta})
    for order in claimed_orders(spec):
        yield _finding(spec, pipeline, method, printed_divergence(pipeline, method, order), {"alpha": order})


def printed_epsilon(pipeline: Pipeline, method: str, delta: float) -> float:
    """Epsilon at ``delta`` by one method; NaN if the method does not apply."""
    if (table_2_sensitivity if method == "printed" else theorem_2_sensitivity)(pipeline) is None:
        return math.nan
    lowest = PRINTED_ORDER if method == "printed" else 1.0
    curve = lambda order: printed_divergence(pipeline, method, order)  # noqa: E731
    value = convert_curve(curve, delta, lowest=lowest, conversion="mironov")
    return value if math.isfinite(value) else math.nan


def printed_divergence(pipeline: Pipeline, method: str, order: float) -> float:
    """Renyi divergence at ``order`` by one method; NaN if the method does not apply."""
    m, changed = pipeline.private, changed_records(pipeline)
    if method == "theorem2":
        sensitivity = theorem_2_sensitivity(pipeline)
        if sensitivity is None:
            return math.nan
        return theorem_2_divergence(m, order, distance_of(m, sensitivity), changed)
    sensitivity = table_2_sensitivity(pipeline)
    projects = pipeline.step_name == "pca"
    if sensitivity is None or not m.unit or (m.kind, projects) in (("sgd-sampled", False), ("sgd-iterated", True)):
        return math.nan
    return table_2_divergence(m, order, sensitivity.tau, changed)


def _finding(spec: dps.Spec, pipeline: Pipeline, method: str, value: float, at: dict[str, float]) -> dps.Finding:
    why = refutation(pipeline, method)
    neighbours = SAME_MASK if pipeline.same_mask else "all"
    return dps.Finding(
        quantity="epsilon",
        value=math.inf if math.isnan(value) else value,
        bound="upper",
        rigor="approximate",
        at=dps.FrozenMap(at),
        scope=bound_scope(spec, pipeline.private, data="collection", neighbours=neighbours),
        method=method,
        source=SOURCES[method],
        assumptions=(*ASSUMPTIONS, COLLECTION),
        printed=dps.Printed(refuted=why is not None, reason=why or "as published, not corrected"),
    )


@dataclass(frozen=True)
class Column:
    """One column of Table 2.

    Attributes:
        name: The pre-processing.
        changed: Delta_inf.
        tabled: x in the table.
        tau: Distance for Theorem 2.
        proved: Sensitivity of the repaired bound.
    """

    name: str
    changed: int
    tabled: float
    tau: float
    proved: Sensitivity

    @property
    def is_projection(self) -> bool:
        """Whether this is the last column, which has other mechanisms."""
        return self.name == "pca"

    @property
    def status(self) -> str:
        """Status of the published column."""
        why = REFUTED.get(self.name)
        if why is not None:
            return f"printed and theorem2 are refuted: {why}"
        if self.is_projection:
            return "printed holds, and is loose"
        return "printed holds for neighbours with the same missing values"


def paper_tables(stated: PaperTable, records: int, noise: float) -> Iterator[dps.Series]:
    """Table 2 at one order with constants of 1, one series per column."""
    p, eta, gap = stated.changed, stated.eta, stated.eigengap
    ball = min(float(records), clusters(stated.ball))
    each = 2.0 / (records - p)
    columns = (
        Column("deduplicate", p, p, p, Sensitivity(ball, 1.0)),
        Column("quantise", p, p * eta, p * eta, Sensitivity(ball, 2.0 * eta)),
        Column("impute-mean", p, p * each, p * each, Sensitivity(p, mean_same_mask(records - p))),
        Column("pca", records, PRINTED_PCA / gap, pca_printed(gap, records).tau, pca(gap, records)),
    )
    order, steps = stated.order, stated.steps
    for column in columns:
        rows = (_row(column, order, kind, noise, records, steps) for kind in KINDS)
        yield kit.series(
            f"table-2-{column.name}",
            f"Table 2, {column.name}: Renyi divergence at order {order:g}",
            kit.columns_of(("mechanism", "ignored", "printed", "theorem2", "repaired", "group"), rows),
            rigor="approximate",
            source=f"{PAPER}, Table 2 (Theorem 16); {column.status}",
            upper=["repaired", "group"],
        )


def _row(column: Column, order: float, kind: str, noise: float, records: int, steps: int) -> tuple[dps.Json, ...]:
    changed = 0.0 if column.is_projection else float(column.changed)
    m = PrivateMechanism(kind=kind, noise=noise, records=records, steps=steps, factor=4.0)
    in_table = (kind, column.is_projection) not in (("sgd-sampled", False), ("sgd-iterated", True))
    return (
        kind,
        repaired_divergence(m, order, None, 0.0),
        table_2_divergence(m, order, column.tabled, changed) if in_table else math.nan,
        theorem_2_divergence(m, order, column.tau, changed) if in_table else math.nan,
        repaired_divergence(m, order, distance_of(m, column.proved), column.proved.changed),
        group_divergence(m, order, column.proved.changed),
    )
