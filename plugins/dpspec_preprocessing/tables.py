"""Tables and figures that compare accounting methods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.bounds import PAPER, proved_divergence, proved_epsilon, tested_epsilon
from dpspec_preprocessing.options import Declaration, Pipeline, Sweep, distance_of
from dpspec_preprocessing.printed import modes
from dpspec_preprocessing.printed.formulas import refutation, table_2_sensitivity, theorem_2_sensitivity
from dpspec_preprocessing.theory.declared_steps import Merging

#: Rigor of every table: rows mix theorems, printed numbers and values that are not bounds.
RIGOR: Final = "approximate"

#: Titles of the accounting methods, in the order of tables.
METHOD_TITLES = {
    "ignored": "ignoring pre-processing",
    "repaired": "repaired",
    "theorem2": "Theorem 2",
    "printed": "Table 2",
    "group": "group privacy",
}

#: Titles of the steps.
STEP_TITLES = {
    "mean": "imputation by the mean",
    "median": "imputation by the median",
    "trimmed": "imputation by the trimmed mean",
    "regression": "imputation by regression",
    "deduplicate": "deduplication",
    "quantise": "quantisation",
    "pca": "projection",
    "scale": "standard scaling",
}


def accounting_series(spec: dps.Spec, pipeline: Pipeline) -> dps.Series:
    """Epsilon by every method at every claimed delta, the cost of pre-processing, and the status of the method."""
    declared = Declaration.of(spec.mechanism.options)

    def rows() -> Iterator[tuple[dps.Json, ...]]:
        for delta in kit.claimed_deltas(spec):
            alone = epsilon_by(pipeline, "ignored", delta)
            for method in _methods(declared):
                test = declared.test if method == "repaired" else None
                value = epsilon_by(pipeline, method, delta) if test is None else tested_epsilon(pipeline, test, delta)
                if math.isfinite(value):
                    factor = value / alone if alone else math.inf
                    yield METHOD_TITLES[method], delta, value, factor, value - alone, _status(pipeline, method)

    return kit.series(
        "epsilon-by-accounting",
        "Epsilon with and without the cost of pre-processing",
        kit.columns_of(("accounting", "delta", "epsilon", "factor", "added", "standing"), rows()),
        rigor=RIGOR,
        source=_source(spec, pipeline),
        kind="dots",
        x="accounting",
        y=["epsilon"],
        by="delta",
        log=["y"],
        upper=["epsilon"],
    )


def order_series(spec: dps.Spec, pipeline: Pipeline) -> dps.Series:
    """Renyi divergence by every method against the order."""
    declared = Declaration.of(spec.mechanism.options)
    rows = (
        (order, value, _label(pipeline, method))
        for method in _methods(declared)
        for order in declared.orders
        if math.isfinite(value := divergence_by(pipeline, method, order))
    )
    return kit.series(
        "divergence-by-order",
        "Renyi divergence against the order",
        kit.columns_of(("alpha", "divergence", "accounting"), rows),
        rigor=RIGOR,
        source=_source(spec, pipeline),
        x="alpha",
        y=["divergence"],
        by="accounting",
        log=["x", "y"],
        upper=["divergence"],
    )


def constants_series(declared: Declaration, pipeline: Pipeline) -> dps.Series:
    """The noise and the constants of the private mechanism, and their origin."""
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
    return kit.series(
        "constants",
        "Noise and constants of the private mechanism",
        kit.columns_of(("constant", "value", "from"), rows),
        rigor=RIGOR,
        source=PAPER,
    )


def sensitivity_series(pipeline: Pipeline) -> dps.Series:
    """Number of changed records, displacement of each, tau, and tau in units of one replaced record."""
    sensitivities = {
        "repaired": pipeline.repaired,
        "theorem2": theorem_2_sensitivity(pipeline),
        "printed": table_2_sensitivity(pipeline) if pipeline.private.unit else None,
    }
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
    return kit.series(
        "sensitivity",
        "Effect of one record on the processing of the others",
        kit.columns_of(("accounting", "changed", "moved", "tau", "relative", "standing"), rows),
        rigor=RIGOR,
        source=PAPER,
        units={"changed": "records"},
        upper=["changed", "moved", "tau", "relative"],
    )


def sweep_series(spec: dps.Spec, pipeline: Pipeline, sweep: Sweep) -> dps.Series:
    """Epsilon by every method for each value of the sweep."""
    declared, over, delta = Declaration.of(spec.mechanism.options), sweep.over, kit.claimed_deltas(spec)[-1]
    step = STEP_TITLES.get(str(pipeline.step_name), "a chain")
    swept = [(value, _with_value(declared, pipeline, over, value)) for value in sweep.values]
    rows = (
        (value, epsilon, _label(pipeline, method))
        for method in _methods(declared)
        for value, changed in swept
        if math.isfinite(epsilon := epsilon_by(changed, method, delta))
    )
    return kit.series(
        f"epsilon-against-{over.replace('_', '-')}",
        f"Epsilon at delta = {delta:g} against {over.replace('_', ' ')}, {step}",
        kit.columns_of((over, "epsilon", "accounting"), rows),
        rigor=RIGOR,
        source=_source(spec, pipeline),
        x=over,
        y=["epsilon"],
        by="accounting",
        log=["x", "y"],
        upper=["epsilon"],
    )


def measured_series(pipeline: Pipeline, measured: Mapping[str, float]) -> dps.Series:
    """Declared limits and the values measured on the data, for the owner of the data."""
    rows = ((key, pipeline.collection.get(key), measured[key]) for key in sorted(measured))
    return kit.series(
        "measured",
        "Declared and measured limits of the collection",
        kit.columns_of(("limit", "declared", "measured"), rows),
        rigor=RIGOR,
        source="measured on the records",
        privacy="data-dependent",
    )


def epsilon_by(pipeline: Pipeline, method: str, delta: float) -> float:
    """Epsilon at ``delta`` by one accounting method; NaN if the method does not apply."""
    return (modes.printed_epsilon if method in modes.SOURCES else proved_epsilon)(pipeline, method, delta)


def divergence_by(pipeline: Pipeline, method: str, order: float) -> float:
    """Renyi divergence at ``order`` by one accounting method; NaN if the method does not apply."""
    return (modes.printed_divergence if method in modes.SOURCES else proved_divergence)(pipeline, method, order)


def _methods(declared: Declaration) -> list[str]:
    """The chosen accounting method and those shown for comparison, in a fixed order."""
    chosen = {declared.accounting, *declared.also}
    return [method for method in METHOD_TITLES if method in chosen]


def _with_value(declared: Declaration, pipeline: Pipeline, over: str, value: float) -> Pipeline:
    """The pipeline with one declared value replaced."""
    records, steps = pipeline.private.records, declared.steps
    collection, private = dict(declared.collection), declared.private
    if over == "eps_noise":
        private = replace(private, noise=value)
    elif over == "eta":
        if isinstance(steps[0], Merging):  # other steps are refused
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


def _label(pipeline: Pipeline, method: str) -> str:
    """Label of a line; refuted methods are marked."""
    return METHOD_TITLES[method] + (" (refuted)" if _status(pipeline, method) == "refuted" else "")


def _source(spec: dps.Spec, pipeline: Pipeline) -> str:
    """The paper, and the reason if its printed values are refuted."""
    refuted = [
        method for method in _methods(Declaration.of(spec.mechanism.options)) if _status(pipeline, method) == "refuted"
    ]
    if not refuted:
        return PAPER
    names = " and ".join(METHOD_TITLES[method] for method in refuted)
    return f"{PAPER}; {names} refuted: {refutation(pipeline, refuted[0])}"


def _status(pipeline: Pipeline, method: str) -> str:
    """Status of a method: theorem, as printed, refuted, or no bound."""
    if method in modes.SOURCES:
        return "as printed" if refutation(pipeline, method) is None else "refuted"
    return "no bound" if method == "ignored" else "theorem"
