"""Tables and figures: every way of accounting side by side, and against one value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import dpspec.contract as dps
from dpspec_preprocessing import bounds
from dpspec_preprocessing.options import Pipeline, build, claimed_deltas, distance, kind_of
from dpspec_preprocessing.series import series

#: What each way of accounting is called in tables.
WORDS = {
    "ignored": "ignoring pre-processing",
    "certified": "certified",
    "theorem2": "Theorem 2",
    "printed": "Table 2",
    "group": "group privacy",
}


#: What each step is called in titles.
PLAIN = {
    "mean": "imputation by the mean",
    "median": "imputation by the median",
    "trimmed": "imputation by the trimmed mean",
    "regression": "imputation by regression",
    "deduplicate": "deduplication",
    "quantise": "quantisation",
    "pca": "projection",
    "scale": "standard scaling",
}


def ways(mechanism: Mapping[str, Any]) -> list[str]:
    """The chosen way of accounting among those beside it, in a fixed order."""
    chosen = {str(mechanism["accounting"]), *mechanism["also"]}
    return [way for way in WORDS if way in chosen]


def accounting_series(spec: dps.Spec, found: Pipeline) -> dps.Series:
    """Epsilon by every way at every claimed delta, what pre-processing costs, and what is known of the number."""

    def rows() -> Iterator[tuple[dps.Json, ...]]:
        for delta in claimed_deltas(spec):
            alone = bounds.epsilon(found, "ignored", delta)
            for way in ways(spec.mechanism.options):
                by_test = way == "certified" and spec.mechanism.get("ptr") is not None
                value = bounds.tested_epsilon(spec, found, delta) if by_test else bounds.epsilon(found, way, delta)
                if math.isfinite(value):
                    factor = value / alone if alone else math.inf
                    yield WORDS[way], delta, value, factor, value - alone, standing(found, way)

    return series(
        "epsilon-by-accounting",
        "Epsilon with and without counting pre-processing",
        ("accounting", "delta", "epsilon", "factor", "added", "standing"),
        rows(),
        source=_source(spec, found),
        plot={"kind": "dots", "x": "accounting", "y": ["epsilon"], "by": "delta", "log": ["y"]},
    )


def order_series(spec: dps.Spec, found: Pipeline) -> dps.Series:
    """Renyi divergences by every way against the order."""
    orders = sorted(float(a) for a in spec.mechanism["orders"])
    return series(
        "divergence-by-order",
        "Renyi divergence against the order",
        ("alpha", "divergence", "accounting"),
        (
            (order, value, label(found, way))
            for way in ways(spec.mechanism.options)
            for order in orders
            if math.isfinite(value := bounds.divergence(found, way, order))
        ),
        source=_source(spec, found),
        plot={"x": "alpha", "y": ["divergence"], "by": "accounting", "log": ["x", "y"]},
    )


def sensitivity_series(found: Pipeline) -> dps.Series:
    """How many records change, how far each moves, tau, and tau in units of one replaced record."""
    known = (("certified", found.certified), ("theorem2", found.theorem), ("printed", found.printed))
    return series(
        "sensitivity",
        "How far one record moves what the others become",
        ("accounting", "changed", "moved", "tau", "relative", "standing"),
        (
            (
                WORDS[way],
                s.changed,
                s.moved,
                s.tau,
                found.private.reach * distance(found.private, s),
                standing(found, way),
            )
            for way, s in known
            if s is not None and (way != "printed" or found.private.unit)
        ),
        source=bounds.PAPER,
        units={"changed": "records"},
    )


def sweep_series(spec: dps.Spec, found: Pipeline) -> dps.Series:
    """Epsilon by every way with one value replaced."""
    sweep, delta = spec.mechanism["sweep"], claimed_deltas(spec)[-1]
    over = str(sweep["over"])
    step = "a chain" if found.step is None else PLAIN[kind_of(found.step)]

    places = [(float(value), _replaced(spec.mechanism.options, found, over, float(value))) for value in sweep["values"]]

    return series(
        f"epsilon-against-{over.replace('_', '-')}",
        f"Epsilon at delta = {delta:g} against {over.replace('_', ' ')}, {step}",
        (over, "epsilon", "accounting"),
        (
            (value, epsilon, label(found, way))
            for way in ways(spec.mechanism.options)
            for value, at in places
            if math.isfinite(epsilon := bounds.epsilon(at, way, delta))
        ),
        source=_source(spec, found),
        plot={"x": over, "y": ["epsilon"], "by": "accounting", "log": ["x", "y"]},
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


def measured_series(found: Pipeline, measured: Mapping[str, float]) -> dps.Series:
    """Declared limits beside what the rows at hand have: for the owner of the data alone."""
    return series(
        "measured",
        "The declared collection beside these records",
        ("limit", "declared", "measured"),
        ((key, found.collection.get(key), measured[key]) for key in sorted(measured)),
        source="measured on the records",
        privacy="data-dependent",
    )


def label(found: Pipeline, way: str) -> str:
    """What a line of a figure is called; a number that explicit data exceed says so."""
    return WORDS[way] + (" (refuted)" if standing(found, way) == "refuted" else "")


def _source(spec: dps.Spec, found: Pipeline) -> str:
    """The paper, and why what it prints is refuted."""
    shown = [way for way in ways(spec.mechanism.options) if standing(found, way) == "refuted"]
    if not shown:
        return bounds.PAPER
    return f"{bounds.PAPER}; {' and '.join(WORDS[way] for way in shown)} refuted: {bounds.refuted(found, shown[0])}"


def standing(found: Pipeline, way: str) -> str:
    """What is known of a way's number: a theorem, as printed, refuted, or no bound at all."""
    if bounds.refuted(found, way) is not None:
        return "no bound" if way == "ignored" else "refuted"
    return {"certified": "theorem", "group": "theorem"}.get(way, "as printed")
