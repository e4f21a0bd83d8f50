"""Tables that compare the accounting methods. The published ones prove nothing."""

import math
from collections.abc import Iterator, Mapping
from functools import partial

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.bounds import PAPER, convert_curve, repaired_epsilon, tested_epsilon
from dpspec_preprocessing.options import Declaration, Pipeline, distance_of
from dpspec_preprocessing.private import GRADIENT, QUERIES, PrivateMechanism, group_divergence, repaired_divergence
from dpspec_preprocessing.published import (
    NOT_TABLED,
    PRINTED_ORDER,
    PRINTED_PCA,
    REFUTED,
    pca_printed,
    published_divergence,
    published_sensitivity,
    refutation,
    table_2_divergence,
    theorem_2_divergence,
)
from dpspec_preprocessing.sensitivity import Sensitivity, Step, mean_same_mask, merging, pca

#: A table. All are approximate: rows mix theorems, printed numbers and values that are not bounds.
_series = partial(kit.series, rigor="approximate")


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
_PUBLISHED = ("theorem2", "printed")


def epsilon_by(pipeline: Pipeline, method: str, delta: float) -> float:
    """Epsilon by an accounting method; NaN if the method does not apply."""
    if method not in _PUBLISHED:
        changed = 0.0 if method == "ignored" else pipeline.changed
        return repaired_epsilon(pipeline.private, pipeline.tau if method == "repaired" else None, changed, delta)
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
    why = refutation(pipeline)
    return _series(
        "epsilon-by-accounting",
        "Epsilon with and without the cost of pre-processing",
        kit.columns_of(("accounting", "delta", "epsilon", "standing"), rows),
        source=PAPER if why is None else f"{PAPER}; Theorem 2 and Table 2 refuted: {why}",
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


def measured_series(pipeline: Pipeline, measured: Mapping[str, float]) -> dps.Series:
    rows = ((key, pipeline.collection.get(key), measured[key]) for key in sorted(measured))
    return _series(
        "measured",
        "Declared and measured limits of the collection",
        kit.columns_of(("limit", "declared", "measured"), rows),
        source="measured on the records",
        privacy="data-dependent",
    )


def _status(pipeline: Pipeline, method: str) -> str:
    if method in _PUBLISHED:
        return "as printed" if refutation(pipeline) is None else "refuted"
    return "no bound" if method == "ignored" else "theorem"
