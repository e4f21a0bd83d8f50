"""Tables and figures: every way of accounting side by side, against one value, and Table 2 of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps
from dpspec_preprocessing import bounds, sensitivity, totals
from dpspec_preprocessing.options import Pipeline, build, claimed_deltas, distance
from dpspec_preprocessing.private import KINDS, Private
from dpspec_preprocessing.sensitivity import Sensitivity

#: What each way of accounting is called in tables.
WORDS = {
    "ignored": "ignoring pre-processing",
    "certified": "certified",
    "theorem2": "Theorem 2",
    "printed": "Table 2",
    "group": "group privacy",
}


def ways(mechanism: Mapping[str, Any]) -> list[str]:
    """The chosen way of accounting among those beside it, in a fixed order."""
    chosen = {str(mechanism["accounting"]), *mechanism["also"]}
    return [way for way in WORDS if way in chosen]


def accounting_series(spec: dps.Spec, found: Pipeline) -> dps.Series:
    """Epsilon by every way at every claimed delta, what pre-processing costs, and what is known of the number."""
    names = ("accounting", "delta", "epsilon", "factor", "added", "standing")
    columns: dict[str, list[dps.Json]] = {name: [] for name in names}
    for delta in claimed_deltas(spec):
        alone = bounds.epsilon(found, "ignored", delta)
        for way in ways(spec.mechanism.options):
            by_test = way == "certified" and spec.mechanism.get("ptr") is not None
            value = bounds.tested_epsilon(spec, found, delta) if by_test else bounds.epsilon(found, way, delta)
            if not math.isfinite(value):
                continue
            row = (WORDS[way], delta, value, value / alone if alone else math.inf, value - alone, _standing(found, way))
            for name, entry in zip(names, row, strict=True):
                columns[name].append(entry)
    return dps.Series(
        name="epsilon-by-accounting",
        title="Epsilon with and without counting pre-processing",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(names, "")),
        rigor="approximate",
        source=bounds.PAPER,
    )


def order_series(spec: dps.Spec, found: Pipeline) -> dps.Series:
    """Renyi divergences by every way against the order."""
    columns: dict[str, list[dps.Json]] = {"alpha": [], "divergence": [], "accounting": []}
    for order in sorted(float(a) for a in spec.mechanism["orders"]):
        for way in ways(spec.mechanism.options):
            value = bounds.divergence(found, way, order)
            if math.isfinite(value):
                for name, entry in zip(columns, (order, value, WORDS[way]), strict=True):
                    columns[name].append(entry)
    return dps.Series(
        name="divergence-by-order",
        title="Renyi divergence against the order",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor="approximate",
        source=bounds.PAPER,
        plot=dps.FrozenMap({"x": "alpha", "y": ["divergence"], "by": "accounting", "log": ["x", "y"]}),
    )


def sensitivity_series(found: Pipeline) -> dps.Series:
    """How many records change, how far each moves, tau, and tau in units of one replaced record."""
    columns: dict[str, list[dps.Json]] = {
        name: [] for name in ("accounting", "changed", "moved", "tau", "relative", "standing")
    }
    for way, own in (("certified", found.certified), ("theorem2", found.theorem), ("printed", found.printed)):
        if own is not None and math.isfinite(own.tau) and (way != "printed" or found.private.unit):
            relative = found.private.reach * distance(found.private, own)
            row = (WORDS[way], own.changed, own.moved, own.tau, relative, _standing(found, way))
            for name, entry in zip(columns, row, strict=True):
                columns[name].append(entry)
    return dps.Series(
        name="sensitivity",
        title="How far one record moves what the others become",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap({name: "records" if name == "changed" else "" for name in columns}),
        rigor="theorem",
        source=bounds.PAPER,
    )


def sweep_series(spec: dps.Spec, found: Pipeline) -> dps.Series:
    """Epsilon by every way with one value replaced."""
    sweep, delta = spec.mechanism["sweep"], claimed_deltas(spec)[-1]
    over = str(sweep["over"])
    columns: dict[str, list[dps.Json]] = {over: [], "epsilon": [], "accounting": []}
    for value in sweep["values"]:
        at = _replaced(spec.mechanism.options, found, over, float(value))
        for way in ways(spec.mechanism.options):
            epsilon = bounds.epsilon(at, way, delta)
            if math.isfinite(epsilon):
                for name, entry in zip(columns, (float(value), epsilon, WORDS[way]), strict=True):
                    columns[name].append(entry)
    words = over.replace("_", " ")
    return dps.Series(
        name=f"epsilon-against-{over.replace('_', '-')}",
        title=f"Epsilon at delta = {delta:g} against {words}",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor="approximate",
        source=bounds.PAPER,
        plot=dps.FrozenMap({"x": over, "y": ["epsilon"], "by": "accounting", "log": ["x", "y"]}),
    )


def _replaced(mechanism: Mapping[str, Any], found: Pipeline, over: str, value: float) -> Pipeline:
    """The pipeline with one value replaced, and with what follows from it."""
    records, step = found.private.records, dict(mechanism["pipeline"][0])
    collection = dict(mechanism.get("collection") or {})
    block = dict(mechanism["private"])
    if over == "eps_noise":
        block[over] = value
    elif over == "eta":
        step["quantise" if "quantise" in step else "deduplicate"] = value
    elif over == "records":
        records = int(value)
    else:
        collection[over] = value if over == "min_eigengap" else int(value)
        if over == "max_missing_rows" and "min_observed" in collection:
            collection["min_observed"] = records - int(value)
        if over == "max_ball" and "max_cluster" in collection:
            collection["max_cluster"] = max(1, int(value) // 2)
    changed = {**mechanism, "pipeline": (step, *mechanism["pipeline"][1:]), "private": block, "collection": collection}
    return build(changed, records, found.features)


def paper_tables(spec: dps.Spec, found: Pipeline) -> Iterator[dps.Series]:
    """Table 2, a table for each of its columns: every mechanism at one order, constants of 1, in all modes."""
    stated, n = spec.mechanism["table"], found.private.records
    p, eta, gap = int(stated["changed"]), float(stated["eta"]), float(stated["eigengap"])
    ball = min(float(n), sensitivity.clusters(int(stated["ball"])))
    pca = sensitivity.pca_printed(gap, n)
    columns = (
        _Column("deduplicate", p, 1.0, p, Sensitivity(ball, 1.0)),
        _Column("quantise", p, eta, p * eta, Sensitivity(ball, 2.0 * eta)),
        _Column("impute-mean", p, 2.0 / (n - p), 2.0 * p / (n - p), Sensitivity(p, sensitivity.mean_same_mask(n - p))),
        _Column("pca", n, totals.PRINTED_PCA / gap / n, pca.tau, sensitivity.pca(gap, n)),
    )
    for column in columns:
        yield _paper_column(column, float(stated["order"]), found.private.noise, n, int(stated["steps"]))


@dataclass(frozen=True)
class _Column:
    """One pre-processing of Table 2: Delta_inf, its x divided by that, tau of Theorem 2, and what is certified."""

    name: str
    changed: int
    moved: float
    tau: float
    proved: Sensitivity


def _paper_column(column: _Column, order: float, noise: float, n: int, steps: int) -> dps.Series:
    names = ("mechanism", "ignored", "printed", "theorem2", "certified", "group")
    columns: dict[str, list[dps.Json]] = {name: [] for name in names}
    projected = column.name == "pca"
    for kind in KINDS:
        m = Private(
            kind=kind, noise=noise, records=n, steps=steps, factor=4.0, changed=0.0 if projected else column.changed
        )
        printed = (kind, projected) not in (("sgd-sampled", False), ("sgd-iterated", True))
        row = (
            kind,
            totals.least(m, order, None, 0.0),
            totals.printed(m, order, column.changed * column.moved) if printed else math.nan,
            totals.optimised(m, order, column.tau) if printed else math.nan,
            totals.least(m, order, distance(m, column.proved), column.proved.changed),
            totals.group(m, order, column.proved.changed),
        )
        for name, value in zip(names, row, strict=True):
            columns[name].append(None if isinstance(value, float) and not math.isfinite(value) else value)
    why = sensitivity.REFUTED.get(column.name)
    standing = f"printed and theorem2 are refuted: {why}" if why else "printed holds where both miss the same values"
    return dps.Series(
        name=f"table-2-{column.name}",
        title=f"Table 2, {column.name}: Renyi divergence at order {order:g}",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(names, "")),
        rigor="approximate",
        source=f"{bounds.PAPER}, Table 2 (Theorem 16); {'printed holds, and is loose' if projected else standing}",
    )


def measured_series(found: Pipeline, measured: Mapping[str, float]) -> dps.Series:
    """Declared limits beside what the rows at hand have: for the owner of the data alone."""
    keys = sorted(measured)
    return dps.Series(
        name="measured",
        title="The declared collection beside these records",
        columns=dps.FrozenMap(
            {
                "limit": keys,
                "declared": [found.collection.get(key) for key in keys],
                "measured": [measured[key] for key in keys],
            }
        ),
        units=dps.FrozenMap({"limit": "", "declared": "", "measured": ""}),
        rigor="approximate",
        source="measured on the records",
        privacy="data-dependent",
    )


def _standing(found: Pipeline, way: str) -> str:
    if bounds.refuted(found, way) is not None:
        return "no bound" if way == "ignored" else "refuted"
    return {"certified": "theorem", "group": "theorem"}.get(way, "as printed")
