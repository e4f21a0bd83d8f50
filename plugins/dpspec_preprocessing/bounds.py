"""Upper bounds over the declared collection, for all datasets, or with a test; lower bounds from explicit pairs.

The pipelines of the Gaussian mechanism and of noisy full gradients are mu-GDP, with mu the sum of the mechanism's own
mu and the mu of the smooth bound: in every step the released mean moves at most by the sensitivity plus the smooth
share. Other mechanisms are converted from their Renyi curves.
Explicit pairs: ``docs/explanation/proofs/preprocessing.md``.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import BestEpsilon, Conversion, Floats, best_epsilon, gaussian, laplace_rdp
from dpspec_preprocessing.options import (
    SAME_MASK,
    Declaration,
    Pipeline,
    Test,
    bound_scope,
    claimed_orders,
    distance_of,
)
from dpspec_preprocessing.private import PrivateMechanism, rdp_slope, repaired_divergence, srdp_slope
from dpspec_preprocessing.sensitivity import STEPS, tested_sensitivity

PAPER = "Hu, Sanyal & Schoelkopf 2024"
REPAIRED = f"{PAPER}, Theorem 2 with corrected sensitivities and curves"
GROUP = "group privacy of the private mechanism"
ALONE = f"{PAPER}, Theorem 1 with corrected curves"
COMPOSED = "Gaussian mechanism on the second-moment matrix (Dwork et al. 2014), adaptive composition"
TESTED = f"{PAPER}, Algorithm 1 with a corrected privacy argument"

#: Reason for the group bound over a collection.
NOT_SMOOTH = "the smoothness of this model's gradients in the records is unknown"

#: Deltas of the curve that attacks are compared with, and from which reports compute rates.
CURVE_DELTAS = (*kit.PROFILE_DELTAS, 1e-8)

ASSUMPTIONS: tuple[dps.Assumption, ...] = (
    dps.Assumption(
        name="radius", status="by-construction", text="records are in the declared ball; records outside are errors"
    ),
    dps.Assumption(name="constants", status="declared", text="Lipschitz constant, smoothness and sensitivity"),
    dps.Assumption(name="noise-scale", status="declared", text="noise of the declared scale in every step"),
    dps.Assumption(name="independent-noise", status="declared", text="noise is independent across steps"),
    dps.Assumption(name="released", status="declared", text="only the private mechanism's output is released"),
    dps.Assumption(
        name="public-count",
        status="declared",
        text="datasets have the declared number of records, which is public; others are refused",
    ),
)
RELEASED_MOMENTS = dps.Assumption(
    name="released",
    status="declared",
    text="only the noisy second moments and the private mechanism's output are released",
)
COLLECTION = dps.Assumption(
    name="collection",
    status="declared",
    text="both neighbours are in the declared collection: the declared number of records, within its limits",
)


def upper_bounds(spec: dps.Spec, pipeline: Pipeline) -> Iterator[dps.Finding]:
    test = Declaration.of(spec.mechanism.options).ptr
    if test is not None:  # the result of the test is released, so every bound includes its cost
        neighbours, fewest = SAME_MASK if pipeline.same_mask else "all", pipeline.private.records
        scope = bound_scope(spec, pipeline.private, data="all", neighbours=neighbours, min_records=fewest)
        for delta in bounded_deltas(spec):
            value = tested_epsilon(pipeline, test, delta)
            if math.isfinite(value):
                yield kit.theorem_upper(
                    "epsilon",
                    value * (1.0 + 1e-12),
                    at={"delta": delta},
                    scope=scope,
                    method="propose-test-release",
                    source=TESTED,
                    assumptions=ASSUMPTIONS,
                )
        return
    if pipeline.for_all_data:
        yield from _repaired(spec, pipeline, pipeline.tau, pipeline.changed, "all")
        return
    if pipeline.repaired is not None:
        yield from _repaired(spec, pipeline, pipeline.tau, pipeline.changed, "collection")
    yield from _repaired(spec, pipeline, None, pipeline.private.records, "all")


def bounded_deltas(spec: dps.Spec) -> list[float]:
    return sorted({*kit.claimed_deltas(spec), *CURVE_DELTAS})


def _repaired(
    spec: dps.Spec, pipeline: Pipeline, tau: float | None, changed: float, data: str
) -> Iterator[dps.Finding]:
    m = pipeline.private
    grouped = tau is None or math.isinf(tau)
    over_collection = data == "collection"
    remark = f": {NOT_SMOOTH}" if grouped and over_collection and not math.isfinite(m.smooth) else ""
    scope = bound_scope(spec, m, data=data, neighbours=SAME_MASK if pipeline.same_mask and not grouped else "all")
    method, source, assumptions = "smooth Renyi", REPAIRED, ASSUMPTIONS
    if pipeline.private_step is not None:
        method, source = "composition with a private projection", COMPOSED
        assumptions = tuple(RELEASED_MOMENTS if a.name == RELEASED_MOMENTS.name else a for a in ASSUMPTIONS)
    elif not pipeline.steps:
        method, source = "private mechanism alone", ALONE
    elif grouped:
        method, source = f"group of {min(m.records, math.floor(changed) + 1)}", GROUP
    mu, pure = repaired_mu(m, tau, changed), pure_epsilon(m, tau, changed)
    values: list[tuple[str, float, dict[str, float]]] = [
        *(("epsilon", repaired_epsilon(m, tau, changed, delta), {"delta": delta}) for delta in bounded_deltas(spec)),
        *(("epsilon", repaired_divergence(m, order, tau, changed), {"alpha": order}) for order in claimed_orders(spec)),
    ]
    if mu is not None and any(claim.kind == "gdp" for claim in spec.claims):
        values.append(("mu", mu, {}))
    if pure is not None:
        values.append(("epsilon", pure, {"delta": 0.0}))
    for quantity, value, position in values:
        yield kit.theorem_upper(
            quantity,
            value * (1.0 + 1e-12),
            at=position,
            scope=scope,
            method=method,
            source=source + remark,
            assumptions=(*assumptions, COLLECTION) if over_collection else assumptions,
        )


def tested_epsilon(pipeline: Pipeline, test: Test, delta: float) -> float:
    """For pairs with one dataset inside the collection; NaN below the test's delta."""
    if delta < test.delta:
        return math.nan
    assert pipeline.step is not None
    inside = tested_sensitivity(
        pipeline.step, pipeline.collection, pipeline.private.records, pipeline.features, pipeline.radius
    )
    assert inside is not None
    epsilon = repaired_epsilon(pipeline.private, distance_of(pipeline.private, inside), inside.changed, delta)
    return epsilon + test.epsilon


SOURCE = "the exact divergence of two explicit datasets"

#: Relative rounding error of a sum of rows and of a conversion.
_ROUNDING = 1e-9

#: Limits that the pair ``collection`` is known to satisfy.
_KEPT_LIMITS = frozenset({"max_missing_rows", "max_missing_in_row", "min_observed", "max_mean_norm"})


class ExplicitPair(NamedTuple):
    """Two datasets with ``missing`` records without the first feature, whose sums of rows are ``distance`` apart."""

    name: str
    data: str
    missing: int
    distance: float


def explicit_pairs(pipeline: Pipeline) -> list[ExplicitPair]:
    """Pairs with an exact divergence of the pipeline's outputs."""
    n, radius = pipeline.private.records, pipeline.radius
    if n < 2 or pipeline.private.kind not in ("gaussian", "laplace") or pipeline.private_step is not None:
        return []
    pairs = []
    if pipeline.step_name in ("mean", "median"):
        pairs.append(ExplicitPair("imputed", "all", n - 1, 2.0 * n * radius))
    elif not any(
        step.name == "scale" or (step.merges and 3.0 * step.eta * (1.0 + _ROUNDING) >= radius)
        for step in pipeline.steps
    ):
        pairs.append(ExplicitPair("opposite", "all", 0, 2.0 * radius))
    c = pipeline.collection
    if pipeline.step_name == "mean" and set(STEPS["mean"].required) <= set(c) <= _KEPT_LIMITS:
        # The maximum number of records without the first feature.
        missing = min(int(c["max_missing_rows"]), n - int(c["min_observed"]))
        if "max_mean_norm" in c:
            norm = float(c["max_mean_norm"]) * (1.0 - _ROUNDING)
            missing = min(missing, math.floor(n - radius / norm) if norm > 0.0 else -1)
        if missing >= 0:
            pairs.append(ExplicitPair("collection", "collection", missing, 2.0 * radius * n / (n - missing)))
    return pairs


def lower_bounds(spec: dps.Spec, pipeline: Pipeline) -> Iterator[dps.Finding]:
    """From two distributions at a distance, the shift. Laplace: delta = 1 - e^((epsilon - shift) / 2)."""
    if Declaration.of(spec.mechanism.options).ptr is not None:
        return
    m = pipeline.private
    weight = min(m.lipschitz, m.sensitivity / (2.0 * pipeline.out_radius))
    for pair in explicit_pairs(pipeline):
        shift = weight * pair.distance / m.sigma * (1.0 - _ROUNDING)
        values: list[tuple[str, float, dict[str, float]]] = []
        deltas, orders = kit.claimed_deltas(spec), claimed_orders(spec)
        if m.kind == "laplace":
            ends = [shift + 2.0 * math.log1p(-delta) * (1.0 + _ROUNDING) for delta in deltas]
            divergences = [float(laplace_rdp(order, shift)) * (1.0 - _ROUNDING) for order in orders]
            values.append(("epsilon", shift, {"delta": 0.0}))
        else:
            ends = [gaussian.epsilon_interval(math.log(delta), shift).lower for delta in deltas]
            divergences = [0.5 * order * shift**2 * (1.0 - _ROUNDING) for order in orders]
            if any(c.kind == "gdp" for c in spec.claims):
                values.append(("mu", shift, {}))
        values += [("epsilon", end, {"delta": delta}) for end, delta in zip(ends, deltas, strict=True)]
        values += [("epsilon", value, {"alpha": order}) for value, order in zip(divergences, orders, strict=True)]
        scope = bound_scope(spec, m, data=pair.data, neighbours=SAME_MASK, min_records=m.records)
        for quantity, value, position in values:
            if value > 0.0:
                yield dps.Finding(
                    quantity=quantity,
                    value=value,
                    bound="lower",
                    rigor="certified",
                    at=dps.FrozenMap(position),
                    scope=replace(scope, access="final-model"),
                    method=f"two datasets, {pair.name}",
                    source=SOURCE,
                )


#: Orders of the search for curves without a closed-form conversion.
_ORDERS = tuple(1.0 + 10.0 ** (k / 8.0) for k in range(-8, 24))


def pipeline_mu(m: PrivateMechanism, tau: float) -> float | None:
    """Mu of the pipeline at distance ``tau`` for Gaussian noise without sampling, else None."""
    if m.kind not in ("gaussian", "dp-gd"):
        return None
    shared = srdp_slope(m, tau) if tau > 0.0 else 0.0
    return math.sqrt(2.0 * rdp_slope(m)) + math.sqrt(2.0 * shared)


def repaired_mu(m: PrivateMechanism, tau: float | None, changed: float) -> float | None:
    """Minimum of :func:`pipeline_mu` and the mu of a group of ``changed`` + 1 records, composed with ``released``.

    None if the mechanism is not GDP.
    """
    alone = pipeline_mu(m, 0.0)
    if alone is None:
        return None
    by_group = alone * min(m.records, math.floor(changed) + 1)
    whole = pipeline_mu(m, tau) if tau is not None and math.isfinite(tau) else None
    return math.hypot(by_group if whole is None else min(whole, by_group), m.released)


def repaired_epsilon(m: PrivateMechanism, tau: float | None, changed: float, delta: float) -> float:
    mu = repaired_mu(m, tau, changed)
    if mu is not None:
        return 0.0 if mu == 0.0 else gaussian.epsilon_interval(math.log(delta), mu).upper
    converted = convert_curve(lambda order: repaired_divergence(m, order, tau, changed), delta)
    pure = pure_epsilon(m, tau, changed)
    return converted if pure is None else min(converted, pure)


def pure_epsilon(m: PrivateMechanism, tau: float | None, changed: float) -> float | None:
    """Epsilon of the pipeline at delta = 0, or None for mechanisms without pure DP."""
    if m.kind not in ("laplace", "exponential") or m.released:
        return None
    by_group = m.noise * min(m.records, math.floor(changed) + 1)
    return by_group if tau is None else min(by_group, m.noise * (1.0 + m.reach * tau))


def convert_curve(
    curve: Callable[[float], float], delta: float, *, lowest: float = 1.0, conversion: Conversion = "improved"
) -> float:
    """Minimum over a grid of orders, refined once. Every order gives a valid bound: a coarse grid only loosens it."""
    orders = np.array([order for order in _ORDERS if order >= lowest] or [max(lowest, _ORDERS[0])])
    if lowest > 1.0:
        orders = np.unique(np.append(orders, lowest))

    def best(orders: Floats) -> BestEpsilon:
        values = [math.inf if math.isnan(value := curve(order)) else value for order in orders]
        return best_epsilon(orders, values, delta, conversion)

    coarse = best(orders)
    best_index = int(np.argmin(np.abs(orders - coarse.order)))
    low, high = orders[max(0, best_index - 1)], orders[min(len(orders) - 1, best_index + 1)]
    finer = np.unique(np.clip(np.geomspace(low - 1.0, high - 1.0, 41) + 1.0, max(low, lowest), high))
    return min(coarse.epsilon, best(finer).epsilon)
