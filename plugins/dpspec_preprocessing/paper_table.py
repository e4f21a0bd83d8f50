"""Table 2 of the paper for stated parameters, in all modes: a table per pre-processing, a row per mechanism."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import dpspec.contract as dps
from dpspec_preprocessing import bounds, sensitivity, totals
from dpspec_preprocessing.options import distance
from dpspec_preprocessing.private import KINDS, Private
from dpspec_preprocessing.sensitivity import Sensitivity
from dpspec_preprocessing.series import series


@dataclass(frozen=True)
class Column:
    """One pre-processing of Table 2.

    changed: Delta_inf. tabled: its x. tau: what Theorem 2 takes. proved: what is certified.
    """

    name: str
    changed: int
    tabled: float
    tau: float
    proved: Sensitivity

    @property
    def projection(self) -> bool:
        """Whether it is the last column, which has other mechanisms than the rest."""
        return self.name == "pca"

    @property
    def standing(self) -> str:
        """What is known of the printed column."""
        why = sensitivity.REFUTED.get(self.name)
        if why is not None:
            return f"printed and theorem2 are refuted: {why}"
        return "printed holds, and is loose" if self.projection else "printed holds where both miss the same values"


def paper_tables(spec: dps.Spec, records: int, noise: float) -> Iterator[dps.Series]:
    """All columns at one order, constants of 1."""
    stated = spec.mechanism["table"]
    p, eta, gap = int(stated["changed"]), float(stated["eta"]), float(stated["eigengap"])
    ball = min(float(records), sensitivity.clusters(int(stated["ball"])))
    each = 2.0 / (records - p)
    columns = (
        Column("deduplicate", p, p, p, Sensitivity(ball, 1.0)),
        Column("quantise", p, p * eta, p * eta, Sensitivity(ball, 2.0 * eta)),
        Column("impute-mean", p, p * each, p * each, Sensitivity(p, sensitivity.mean_same_mask(records - p))),
        Column(
            "pca",
            records,
            totals.PRINTED_PCA / gap,
            sensitivity.pca_printed(gap, records).tau,
            sensitivity.pca(gap, records),
        ),
    )
    order, steps = float(stated["order"]), int(stated["steps"])
    for column in columns:
        yield series(
            f"table-2-{column.name}",
            f"Table 2, {column.name}: Renyi divergence at order {order:g}",
            ("mechanism", "ignored", "printed", "theorem2", "certified", "group"),
            (_row(column, order, kind, noise, records, steps) for kind in KINDS),
            source=f"{bounds.PAPER}, Table 2 (Theorem 16); {column.standing}",
        )


def _row(column: Column, order: float, kind: str, noise: float, records: int, steps: int) -> tuple[dps.Json, ...]:
    changed = 0.0 if column.projection else float(column.changed)
    m = Private(kind=kind, noise=noise, records=records, steps=steps, factor=4.0, changed=changed)
    printed = (kind, column.projection) not in (("sgd-sampled", False), ("sgd-iterated", True))
    return (
        kind,
        totals.least(m, order, None, 0.0),
        totals.printed(m, order, column.tabled) if printed else math.nan,
        totals.optimised(m, order, column.tau) if printed else math.nan,
        totals.least(m, order, distance(m, column.proved), column.proved.changed),
        totals.group(m, order, column.proved.changed),
    )
