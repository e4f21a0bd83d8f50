"""Upper bounds of the plugin as findings: what can be proved, and beside it what must not be relied on.

Certified bounds for the declared collection have scope ``data: collection``; group privacy for all records and bounds
with a test in front (propose, test, release) hold for all data sets. Printed and Theorem 2 numbers are approximate,
and refuted where explicit data exceed them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_preprocessing import convert, ptr, totals
from dpspec_preprocessing.options import Pipeline, claimed_deltas, distance, kind_of, scope
from dpspec_preprocessing.private import Private
from dpspec_preprocessing.sensitivity import REFUTED, Sensitivity, clusters, mean_any_mask, mean_same_mask

PAPER = "Hu, Sanyal & Schoelkopf 2024"
SOURCES = {
    "certified": f"{PAPER}, Theorem 2 with corrected sensitivities and curves",
    "group": "group privacy of the private mechanism",
    "theorem2": f"{PAPER}, Theorem 2 with the paper's sensitivities",
    "printed": f"{PAPER}, Theorem 16 and Table 2",
    "ignored": "the private mechanism alone",
    "ptr": f"{PAPER}, Algorithm 1 with a corrected privacy argument",
}

#: Why group privacy is all that is proved over a collection.
UNKNOWN = "nothing is known of how this model's gradients move with records"

#: Why what ignores pre-processing backs no verdict.
IGNORES = "ignores that one record changes how others are processed"

#: Deltas of the curve that attacks are held against.
CURVE_DELTAS = (1e-3, 1e-6, 1e-8)

_ASSUMPTIONS = (
    dps.Assumption(name="radius", status="by-construction", text="records lie in the declared ball; others are errors"),
    dps.Assumption(name="constants", status="declared", text="Lipschitz constant, smoothness and sensitivity"),
    dps.Assumption(name="noise-scale", status="declared", text="noise of the declared scale in every step"),
    dps.Assumption(name="fresh-noise", status="declared", text="noise is independent across steps"),
    dps.Assumption(name="released", status="declared", text="only the private mechanism's output is released"),
    dps.Assumption(name="public-count", status="declared", text="the number of records is public"),
)
_COLLECTION = dps.Assumption(
    name="collection", status="declared", text="both neighbours lie in the declared collection of data sets"
)


def upper_bounds(spec: dps.Spec, found: Pipeline) -> Iterator[dps.Finding]:
    """Findings of the chosen accounting at the deltas and orders of claims, and along the curve."""
    mode = str(spec.mechanism["accounting"])
    deltas = sorted({*claimed_deltas(spec), *CURVE_DELTAS})
    orders = sorted({float(c["alpha"]) for c in spec.claims if c.kind == "renyi-dp"})
    if mode == "certified":
        if spec.mechanism.get("ptr"):  # the test is part of what is released, so that nothing holds without its cost
            yield from _tested(spec, found, deltas)
            return
        if found.certified is not None:
            yield from _certified(spec, found, found.tau, found.changed, deltas, orders, "collection")
        yield from _certified(spec, found, None, found.private.records, deltas, orders, "all")
        return
    for delta in deltas:
        yield _printed(spec, found, mode, "epsilon", epsilon(found, mode, delta), {"delta": delta})
    for order in orders:
        yield _printed(spec, found, mode, "epsilon", divergence(found, mode, order), {"alpha": order})


def epsilon(found: Pipeline, mode: str, delta: float) -> float:
    """Epsilon at ``delta`` by one way of accounting; NaN where that way has none."""
    m = found.private
    if mode == "certified":
        return convert.certified(m, found.tau, found.changed, delta)
    if mode == "group":
        return convert.certified(m, None, found.changed, delta)
    if mode == "ignored":
        return convert.certified(m, None, 0.0, delta)
    if (found.printed if mode == "printed" else found.theorem) is None:
        return math.nan
    lowest = totals.PRINTED_ORDER if mode == "printed" else 1.0
    value = convert.from_curve(lambda a: divergence(found, mode, a), delta, lowest=lowest, conversion="mironov")
    return value if math.isfinite(value) else math.nan


def divergence(found: Pipeline, mode: str, order: float) -> float:
    """The Renyi divergence at ``order`` by one way of accounting; NaN where that way has none."""
    m = found.private
    if mode == "certified":
        return totals.least(m, order, found.tau, found.changed)
    if mode == "group":
        return totals.group(m, order, found.changed)
    if mode == "ignored":
        return totals.least(m, order, None, 0.0)
    own = found.printed if mode == "printed" else found.theorem
    if own is None or (mode == "printed" and not m.unit):
        return math.nan
    if mode == "theorem2":
        return totals.optimised(m, order, distance(m, own))
    if m.kind == "sgd-sampled" and not (found.step is not None and "pca" in found.step):
        return math.nan
    if m.kind == "sgd-iterated" and found.step is not None and "pca" in found.step:
        return math.nan
    return totals.printed(m, order, own.tau)


def refuted(found: Pipeline, mode: str) -> str | None:
    """Why a way of accounting backs no verdict, if explicit data exceed it or it counts too little."""
    if mode == "ignored":
        return IGNORES
    if mode not in ("printed", "theorem2"):
        return None
    if found.private.kind == "sgd-sampled" and found.private.factor < 4.0:
        return REFUTED["sgd-sampled"]
    return found.refuted


def _certified(
    spec: dps.Spec,
    found: Pipeline,
    tau: float | None,
    changed: float,
    deltas: list[float],
    orders: list[float],
    data: str,
) -> Iterator[dps.Finding]:
    m = found.private
    grouped = tau is None or math.isinf(tau)
    why = f": {UNKNOWN}" if grouped and data == "collection" and math.isinf(m.smooth) else ""
    source = SOURCES["group" if grouped else "certified"] + why
    method = f"group of {min(m.records, math.floor(changed) + 1)}" if grouped else "smooth Renyi"
    effect, limit = convert.least_mu(m, tau, changed), convert.pure(m, tau, changed)
    values: list[tuple[str, float, dict[str, float]]] = []
    values += [("epsilon", convert.certified(m, tau, changed, delta), {"delta": delta}) for delta in deltas]
    values += [("epsilon", totals.least(m, order, tau, changed), {"alpha": order}) for order in orders]
    asked = any(c.kind == "gdp" for c in spec.claims)
    values += [("mu", effect, {})] if effect is not None and asked else []
    values += [("epsilon", limit, {"delta": 0.0})] if limit is not None else []
    for quantity, value, at in values:
        yield dps.Finding(
            quantity=quantity,
            value=_up(value),
            bound="upper",
            rigor="theorem",
            at=dps.FrozenMap(at),
            scope=scope(spec, m, data=data),
            method=method,
            source=source,
            assumptions=(*_ASSUMPTIONS, _COLLECTION) if data == "collection" else _ASSUMPTIONS,
        )


def _tested(spec: dps.Spec, found: Pipeline, deltas: list[float]) -> Iterator[dps.Finding]:
    """With a test in front: bounds for all data sets at deltas that are no smaller than the test's."""
    for delta in deltas:
        value = tested_epsilon(spec, found, delta)
        if math.isfinite(value):
            yield dps.Finding(
                quantity="epsilon",
                value=_up(value),
                bound="upper",
                rigor="theorem",
                at=dps.FrozenMap({"delta": delta}),
                scope=scope(spec, found.private, data="all"),
                method="propose-test-release",
                source=SOURCES["ptr"],
                assumptions=_ASSUMPTIONS,
            )


def tested_epsilon(spec: dps.Spec, found: Pipeline, delta: float) -> float:
    """The mechanism's epsilon for pairs of which one lies inside, with the test's; NaN below the test's delta."""
    test = spec.mechanism["ptr"]
    if delta < float(test["delta"]):
        return math.nan
    inside = tested(found)
    tau = math.inf if math.isinf(found.private.smooth) else distance(found.private, inside)
    return convert.certified(found.private, tau, inside.changed, delta) + float(test["epsilon"])


def tested(found: Pipeline) -> Sensitivity:
    """The sensitivity for pairs of which one lies inside the proposed limit and the other one record beyond."""
    assert found.step is not None
    by, c, n = kind_of(found.step), found.collection, found.private.records
    if by == "pca":
        e = 4.0 * found.radius**2 / n
        gap = float(c["min_eigengap"])
        bound = found.radius * min(1.0, e / (gap - e))
        twice = 2.0 * bound + 2.0 * found.radius / n if found.step.get("affine") else bound
        return Sensitivity(n, twice)
    if by in ("deduplicate", "quantise"):
        moved = found.radius if by == "deduplicate" else 2.0 * float(found.step[by])
        return Sensitivity(min(float(n), clusters(int(c["max_ball"]) + 1)), moved)
    rows = int(c["max_missing_rows"])
    observed = n - rows - 1
    if observed < 2:
        return Sensitivity(rows + 1, 2.0 * found.radius)
    same = found.step.get("mask") == "same"
    moved = (
        mean_same_mask(observed, found.radius) if same else mean_any_mask(observed, found.features, None, found.radius)
    )
    return Sensitivity(rows + 1, min(2.0 * found.radius, moved))


def _printed(
    spec: dps.Spec, found: Pipeline, mode: str, quantity: str, value: float, at: dict[str, float]
) -> dps.Finding:
    why = refuted(found, mode)
    return dps.Finding(
        quantity=quantity,
        value=math.inf if math.isnan(value) else value,
        bound="upper",
        rigor="approximate",
        at=dps.FrozenMap(at),
        scope=scope(spec, found.private, data="collection"),
        method=mode,
        source=SOURCES[mode],
        assumptions=(*_ASSUMPTIONS, _COLLECTION),
        printed=dps.Printed(refuted=why is not None, reason=why or "as published, not corrected"),
    )


def _up(value: float) -> float:
    """A few units in the last place more: what evaluating the formulas can lose."""
    return value * (1.0 + 1e-12)


def refusal(spec: dps.Spec, m: Private, distance_inside: float) -> dps.Finding:
    """How likely the test refuses the records at hand, which are so many replacements inside; exact, and theirs."""
    test = spec.mechanism["ptr"]
    return dps.Finding(
        quantity="refusal-probability",
        value=ptr.refusal(distance_inside, float(test["epsilon"]), float(test["delta"])),
        bound="estimate",
        rigor="approximate",
        scope=scope(spec, m, data="this"),
        method="propose-test-release on these records",
        source=SOURCES["ptr"],
        privacy="data-dependent",
    )
