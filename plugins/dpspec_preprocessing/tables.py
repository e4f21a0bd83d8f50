"""Tables and figures: every way of accounting side by side, and against one value."""

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

#: Of every table: its rows are theorems, printed numbers and no bounds. Findings carry what is proved.
RIGOR: Final = "approximate"

#: What each way of accounting is called in tables, in their order.
WAY_TITLES = {
    "ignored": "ignoring pre-processing",
    "repaired": "repaired",
    "theorem2": "Theorem 2",
    "printed": "Table 2",
    "group": "group privacy",
}

#: What each step is called in titles.
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
    """Epsilon by every way at every claimed delta, what pre-processing costs, and what is known of the number."""

    declared = Declaration.of(spec.mechanism.options)

    def rows() -> Iterator[tuple[dps.Json, ...]]:
        for delta in kit.claimed_deltas(spec):
            alone = epsilon_by(pipeline, "ignored", delta)
            for way in _ways(declared):
                test = declared.test if way == "repaired" else None
                value = epsilon_by(pipeline, way, delta) if test is None else tested_epsilon(pipeline, test, delta)
                if math.isfinite(value):
                    factor = value / alone if alone else math.inf
                    yield WAY_TITLES[way], delta, value, factor, value - alone, _status(pipeline, way)

    return kit.series(
        "epsilon-by-accounting",
        "Epsilon with and without counting pre-processing",
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
    """Renyi divergences by every way against the order."""
    declared = Declaration.of(spec.mechanism.options)
    rows = (
        (order, value, _label(pipeline, way))
        for way in _ways(declared)
        for order in declared.orders
        if math.isfinite(value := divergence_by(pipeline, way, order))
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
    """The noise and the constants of the private mechanism, and what each follows from."""
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
    """How many records change, how far each moves, tau, and tau in units of one replaced record."""
    sensitivities = {
        "repaired": pipeline.repaired,
        "theorem2": theorem_2_sensitivity(pipeline),
        "printed": table_2_sensitivity(pipeline) if pipeline.private.unit else None,
    }
    rows = (
        (
            WAY_TITLES[way],
            sensitivity.changed,
            sensitivity.moved,
            sensitivity.tau,
            pipeline.private.reach * distance_of(pipeline.private, sensitivity),
            _status(pipeline, way),
        )
        for way, sensitivity in sensitivities.items()
        if sensitivity is not None
    )
    return kit.series(
        "sensitivity",
        "How far one record moves what the others become",
        kit.columns_of(("accounting", "changed", "moved", "tau", "relative", "standing"), rows),
        rigor=RIGOR,
        source=PAPER,
        units={"changed": "records"},
        upper=["changed", "moved", "tau", "relative"],
    )


def sweep_series(spec: dps.Spec, pipeline: Pipeline, sweep: Sweep) -> dps.Series:
    """Epsilon by every way with one value replaced."""
    declared, over, delta = Declaration.of(spec.mechanism.options), sweep.over, kit.claimed_deltas(spec)[-1]
    step = STEP_TITLES.get(str(pipeline.step_name), "a chain")
    swept = [(value, _with_value(declared, pipeline, over, value)) for value in sweep.values]
    rows = (
        (value, epsilon, _label(pipeline, way))
        for way in _ways(declared)
        for value, changed in swept
        if math.isfinite(epsilon := epsilon_by(changed, way, delta))
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
    """Declared limits beside what the rows at hand have: for the owner of the data alone."""
    rows = ((key, pipeline.collection.get(key), measured[key]) for key in sorted(measured))
    return kit.series(
        "measured",
        "The declared collection beside these records",
        kit.columns_of(("limit", "declared", "measured"), rows),
        rigor=RIGOR,
        source="measured on the records",
        privacy="data-dependent",
    )


def epsilon_by(pipeline: Pipeline, way: str, delta: float) -> float:
    """Epsilon at ``delta`` by one way of accounting; NaN where that way has none."""
    return (modes.printed_epsilon if way in modes.SOURCES else proved_epsilon)(pipeline, way, delta)


def divergence_by(pipeline: Pipeline, way: str, order: float) -> float:
    """The Renyi divergence at ``order`` by one way of accounting; NaN where that way has none."""
    return (modes.printed_divergence if way in modes.SOURCES else proved_divergence)(pipeline, way, order)


def _ways(declared: Declaration) -> list[str]:
    """The chosen way of accounting among those beside it, in a fixed order."""
    chosen = {declared.accounting, *declared.also}
    return [way for way in WAY_TITLES if way in chosen]


def _with_value(declared: Declaration, pipeline: Pipeline, over: str, value: float) -> Pipeline:
    """The pipeline with one value replaced, and with what follows from it."""
    records, steps = pipeline.private.records, declared.steps
    collection, private = dict(declared.collection), declared.private
    if over == "eps_noise":
        private = replace(private, noise=value)
    elif over == "eta":
        if isinstance(steps[0], Merging):  # of others it is refused
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


def _label(pipeline: Pipeline, way: str) -> str:
    """What a line of a figure is called; a number that explicit data exceed says so."""
    return WAY_TITLES[way] + (" (refuted)" if _status(pipeline, way) == "refuted" else "")


def _source(spec: dps.Spec, pipeline: Pipeline) -> str:
    """The paper, and why what it prints is refuted."""
    refuted = [way for way in _ways(Declaration.of(spec.mechanism.options)) if _status(pipeline, way) == "refuted"]
    if not refuted:
        return PAPER
    names = " and ".join(WAY_TITLES[way] for way in refuted)
    return f"{PAPER}; {names} refuted: {refutation(pipeline, refuted[0])}"


def _status(pipeline: Pipeline, way: str) -> str:
    """What is known of a way's number: a theorem, as printed, refuted, or no bound at all."""
    if way in modes.SOURCES:
        return "as printed" if refutation(pipeline, way) is None else "refuted"
    return "no bound" if way == "ignored" else "theorem"
