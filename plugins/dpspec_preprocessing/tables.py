"""Findings of the published accounting methods, which prove nothing, and tables that compare all methods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.bounds import (
    ASSUMPTIONS,
    COLLECTION,
    PAPER,
    PUBLISHED,
    bounded_deltas,
    divergence_by,
    epsilon_by,
    tested_epsilon,
)
from dpspec_preprocessing.options import (
    SAME_MASK,
    Declaration,
    Pipeline,
    Sweep,
    bound_scope,
    claimed_orders,
    distance_of,
)
from dpspec_preprocessing.private import GRADIENT, QUERIES, PrivateMechanism, group_divergence, repaired_divergence
from dpspec_preprocessing.published import (
    NOT_TABLED,
    PRINTED_PCA,
    REFUTED,
    pca_printed,
    published_sensitivity,
    refutation,
    table_2_divergence,
    theorem_2_divergence,
)
from dpspec_preprocessing.sensitivity import STEPS, Sensitivity, Step, mean_same_mask, merging, pca

#: A table. All are approximate: rows mix theorems, printed numbers and values that are not bounds.
_series = partial(kit.series, rigor="approximate")


def printed_findings(spec: dps.Spec, pipeline: Pipeline) -> Iterator[dps.Finding]:
    method = Declaration.of(spec.mechanism.options).accounting
    why = refutation(pipeline, method)
    values: list[tuple[dict[str, float], float]] = [
        *(({"delta": delta}, epsilon_by(pipeline, method, delta)) for delta in bounded_deltas(spec)),
        *(({"alpha": order}, divergence_by(pipeline, method, order)) for order in claimed_orders(spec)),
    ]
    for at, value in values:
        yield dps.Finding(
            quantity="epsilon",
            value=math.inf if math.isnan(value) else value,
            bound="upper",
            rigor="approximate",
            at=dps.FrozenMap(at),
            scope=bound_scope(
                spec, pipeline.private, data="collection", neighbours=SAME_MASK if pipeline.same_mask else "all"
            ),
            method=method,
            source=PUBLISHED[method],
            assumptions=(*ASSUMPTIONS, COLLECTION),
            printed=dps.Printed(refuted=why is not None, reason=why or "as published, not corrected"),
        )


def paper_tables(stated: dps.FrozenMap, records: int, noise: float) -> Iterator[dps.Series]:
    p, ball, steps = int(stated["changed"]), int(stated["ball"]), int(stated["steps"])
    eta, gap, order = float(stated["eta"]), float(stated["eigengap"]), float(stated["order"])
    each = mean_same_mask(records - p)
    repaired = {name: merging(Step(name=name, eta=eta), ball, records) for name in ("deduplicate", "quantise")}
    #: By pre-processing: x in the table, tau of Theorem 2, and the sensitivity of the repaired bound.
    columns: dict[str, tuple[float, float, Sensitivity]] = {
        "deduplicate": (p, p, repaired["deduplicate"]),
        "quantise": (p * eta, p * eta, repaired["quantise"]),
        "impute-mean": (p * each, p * each, Sensitivity(p, each)),
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


def accounting_series(spec: dps.Spec, pipeline: Pipeline) -> dps.Series:
    declared = Declaration.of(spec.mechanism.options)

    def rows() -> Iterator[tuple[dps.Json, ...]]:
        for delta in kit.claimed_deltas(spec):
            alone = epsilon_by(pipeline, "ignored", delta)
            for method in _methods(spec):
                test = declared.ptr if method == "repaired" else None
                value = epsilon_by(pipeline, method, delta) if test is None else tested_epsilon(pipeline, test, delta)
                if math.isfinite(value):
                    factor = value / alone if alone else math.inf
                    yield METHOD_TITLES[method], delta, value, factor, value - alone, _status(pipeline, method)

    return _series(
        "epsilon-by-accounting",
        "Epsilon with and without the cost of pre-processing",
        kit.columns_of(("accounting", "delta", "epsilon", "factor", "added", "standing"), rows()),
        source=_source(spec, pipeline),
        upper=["epsilon"],
    )


def sweep_series(spec: dps.Spec, pipeline: Pipeline, sweep: Sweep) -> dps.Series:
    """Finite values of epsilon for each accounting method."""
    declared, over, delta = Declaration.of(spec.mechanism.options), sweep.over, kit.claimed_deltas(spec)[-1]
    swept = [(value, _with_value(declared, pipeline, over, value)) for value in sweep.values]
    rows = (
        (value, epsilon, METHOD_TITLES[method] + (" (refuted)" if _status(pipeline, method) == "refuted" else ""))
        for method in _methods(spec)
        for value, changed in swept
        if math.isfinite(epsilon := epsilon_by(changed, method, delta))
    )
    step, name = STEPS[pipeline.step_name].title if pipeline.step_name else "a chain", over.replace("_", " ")
    return _series(
        f"epsilon-against-{over.replace('_', '-')}",
        f"Epsilon at delta = {delta:g} against {name}, {step}",
        kit.columns_of((over, "epsilon", "accounting"), rows),
        source=_source(spec, pipeline),
        x=over,
        y=["epsilon"],
        by="accounting",
        log=["x", "y"],
        upper=["epsilon"],
    )


def constants_series(declared: Declaration, pipeline: Pipeline) -> dps.Series:
    m, private = pipeline.private, declared.private
    of_loss = f"{private.loss} loss, record norm {declared.processed_norm:g}" if private.known_loss else "default"
    rows: list[tuple[dps.Json, ...]] = []
    rows.append(("Lipschitz constant L", m.lipschitz, of_loss if private.lipschitz is None else "declared"))
    if private.takes_gradients:
        if math.isfinite(m.smooth):
            rows.append(("smoothness mu", m.smooth, of_loss if private.smooth is None else "declared"))
        steps = "one pass" if m.kind == "sgd-iterated" else f"{m.steps} steps"
        rows.append(("noise std sigma", m.sigma, f"L, eps_noise, {steps}"))
    else:
        rows.append(("sensitivity", m.sensitivity, "declared"))
        if m.kind != "exponential":
            noise = "noise std sigma" if m.kind == "gaussian" else "noise scale"
            rows.append((noise, m.sigma, "sensitivity, eps_noise"))
    return _series(
        "constants",
        "Noise and constants of the private mechanism",
        kit.columns_of(("constant", "value", "from"), rows),
        source=PAPER,
        x="constant",
        y=["value"],
        kind="constants",
    )


def sensitivity_series(pipeline: Pipeline) -> dps.Series:
    sensitivities = {"repaired": pipeline.repaired}
    sensitivities |= {method: published_sensitivity(pipeline, method) for method in PUBLISHED}
    rows = (
        (
            METHOD_TITLES[method],
            sensitivity.changed,
            sensitivity.moved,
            sensitivity.tau,
            pipeline.private.reach * distance_of(pipeline.private, sensitivity),
            _status(pipeline, method),
        )
        for method, sensitivity in sensitivities.items()
        if sensitivity is not None
    )
    return _series(
        "sensitivity",
        "Effect of one record on the processing of the others",
        kit.columns_of(("accounting", "changed", "moved", "tau", "relative", "standing"), rows),
        source=PAPER,
        units={"changed": "records"},
        upper=["changed", "moved", "tau", "relative"],
    )


def measured_series(pipeline: Pipeline, measured: Mapping[str, float]) -> dps.Series:
    rows = ((key, pipeline.collection.get(key), measured[key]) for key in sorted(measured))
    return _series(
        "measured",
        "Declared and measured limits of the collection",
        kit.columns_of(("limit", "declared", "measured"), rows),
        source="measured on the records",
        privacy="data-dependent",
    )


def _methods(spec: dps.Spec) -> list[str]:
    declared = Declaration.of(spec.mechanism.options)
    return [method for method in METHOD_TITLES if method in (declared.accounting, *declared.also)]


def _with_value(declared: Declaration, pipeline: Pipeline, over: str, value: float) -> Pipeline:
    records, steps = pipeline.private.records, declared.steps
    collection, private = dict(declared.collection), declared.private
    if over == "eps_noise":
        private = replace(private, eps_noise=value)
    elif over == "eta":
        steps = (replace(steps[0], eta=value), *steps[1:])
    elif over == "records":
        records = int(value)
    else:
        collection[over] = value if over == "min_eigengap" else int(value)
        if over == "max_missing_rows" and "min_observed" in collection:
            collection["min_observed"] = records - int(value)
        if over == "max_ball" and "max_cluster" in collection:
            collection["max_cluster"] = max(1, int(value) // 2)
    changed = replace(declared, steps=steps, private=private, collection=dps.FrozenMap(collection))
    return changed.pipeline(records, pipeline.features)


def _source(spec: dps.Spec, pipeline: Pipeline) -> str:
    refuted = [method for method in _methods(spec) if _status(pipeline, method) == "refuted"]
    if not refuted:
        return PAPER
    names = " and ".join(METHOD_TITLES[method] for method in refuted)
    return f"{PAPER}; {names} refuted: {refutation(pipeline, refuted[0])}"


def _status(pipeline: Pipeline, method: str) -> str:
    if method in PUBLISHED:
        return "as printed" if refutation(pipeline, method) is None else "refuted"
    return "no bound" if method == "ignored" else "theorem"
