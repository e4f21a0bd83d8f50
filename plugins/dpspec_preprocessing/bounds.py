"""Upper bounds that are proved, as findings: over the declared collection, for all data sets, behind a test.

Repaired bounds for the declared collection have scope ``data: collection``; group privacy for all records and bounds
with a test in front (propose, test, release) hold for all data sets.

*Lower bounds* are certified: two explicit data sets whose outputs are as far apart as can be said exactly.
Both queries with additive noise release w times the sum of processed rows, w = min(L, sensitivity / (2 r)), r their
radius. Where two data sets in scope have sums that differ by s along the first feature, what is released is
Gaussian or Laplace with centres w s apart, and their divergence is exact. All pairs differ in record 0, which is R e_1
or -R e_1, and miss the same entries.

opposite    All other records are 0, s = 2 R. Every step but scaling leaves such data sets as they are: no value is
            missing; the zeros are copies of one another and, where 3 eta < R, record 0 is near none of them; the
            covariance is a multiple of e_1 e_1^T, so that e_1 is the first principal direction, and all rows and their
            mean lie on it.
imputed     One step, by mean or median: all other records miss the first feature and are 0 elsewhere. The one observed
            value is everyone's, s = 2 n R. With w = sensitivity / (2 R) that is n sensitivities: group privacy for all
            records is attained.
collection  One step, by mean, p records that miss the first feature, all others 0: the mean is +-R / (n - p), and
            s = 2 R + 2 R p / (n - p). For neighbours that miss the same entries that is the smooth bound, attained
            where min_observed = n - p and w = L = sensitivity / (2 R). Nearly all rows are 0, so that
            a collection with limits on anything else (spread, deviation, eigenvalues) may not hold them.

Of the exponential mechanism no pair is known that attains its bound. Gradients of the known losses have norm L at the
end of the parameters' ball alone, where noise keeps no iterate; and a test in front refuses such pairs. They have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import gaussian, laplace_rdp
from dpspec_preprocessing.options import SAME_MASK, Declaration, Pipeline, Test, bound_scope, claimed_orders
from dpspec_preprocessing.theory import sensitivity
from dpspec_preprocessing.theory.conversion import pure_epsilon, repaired_epsilon, repaired_mu
from dpspec_preprocessing.theory.declared_steps import Merging, Scaling, Step
from dpspec_preprocessing.theory.divergence import least_divergence
from dpspec_preprocessing.theory.sensitivity import REQUIRED_LIMITS

PAPER = "Hu, Sanyal & Schoelkopf 2024"
REPAIRED = f"{PAPER}, Theorem 2 with corrected sensitivities and curves"
GROUP = "group privacy of the private mechanism"
TESTED = f"{PAPER}, Algorithm 1 with a corrected privacy argument"

#: Why group privacy is all that is proved over a collection.
NOT_SMOOTH = "nothing is known of how this model's gradients move with records"

#: Deltas of the curve that attacks are held against.
CURVE_DELTAS = (1e-3, 1e-6, 1e-8)

ASSUMPTIONS = (
    dps.Assumption(name="radius", status="by-construction", text="records lie in the declared ball; others are errors"),
    dps.Assumption(name="constants", status="declared", text="Lipschitz constant, smoothness and sensitivity"),
    dps.Assumption(name="noise-scale", status="declared", text="noise of the declared scale in every step"),
    dps.Assumption(name="fresh-noise", status="declared", text="noise is independent across steps"),
    dps.Assumption(name="released", status="declared", text="only the private mechanism's output is released"),
    dps.Assumption(
        name="public-count",
        status="declared",
        text="data sets hold the declared number of records, which is public; others are refused",
    ),
)
COLLECTION = dps.Assumption(
    name="collection",
    status="declared",
    text="both neighbours lie in the declared collection: of the declared number of records, within its limits",
)


def upper_bounds(spec: dps.Spec, pipeline: Pipeline) -> Iterator[dps.Finding]:
    """Findings at the deltas and orders of claims, and along a curve of deltas."""
    test = Declaration.of(spec.mechanism.options).test
    if test is not None:  # it is part of what is released, so that nothing holds without its cost
        yield from _tested(spec, pipeline, test)
        return
    if pipeline.repaired is not None:
        yield from _repaired(spec, pipeline, pipeline.tau, pipeline.changed, "collection")
    yield from _repaired(spec, pipeline, None, pipeline.private.records, "all")


def bounded_deltas(spec: dps.Spec) -> list[float]:
    """The claimed deltas and those of the curve, smallest first."""
    return sorted({*kit.claimed_deltas(spec), *CURVE_DELTAS})


def proved_epsilon(pipeline: Pipeline, way: str, delta: float) -> float:
    """Epsilon at ``delta``: ``repaired``, by ``group`` privacy alone, or of the private mechanism alone (``ignored``).

    ``ignored`` takes no account of the pre-processing, and is no bound on the pipeline.
    """
    return repaired_epsilon(pipeline.private, *_inputs(pipeline, way), delta)


def proved_divergence(pipeline: Pipeline, way: str, order: float) -> float:
    """The Renyi divergence at ``order`` by the same ways."""
    return least_divergence(pipeline.private, order, *_inputs(pipeline, way))


def _inputs(pipeline: Pipeline, way: str) -> tuple[float | None, float]:
    """The distance tau and the number of changed records that a way of accounting takes."""
    return {
        "repaired": (pipeline.tau, pipeline.changed),
        "group": (None, pipeline.changed),
        "ignored": (None, 0.0),
    }[way]


def _repaired(
    spec: dps.Spec, pipeline: Pipeline, tau: float | None, changed: float, data: str
) -> Iterator[dps.Finding]:
    m = pipeline.private
    grouped = tau is None or math.isinf(tau)
    over_collection = data == "collection"
    why = f": {NOT_SMOOTH}" if grouped and over_collection and not pipeline.is_smooth else ""
    scope = bound_scope(spec, m, data=data, neighbours=SAME_MASK if pipeline.same_mask and not grouped else "all")
    mu, pure = repaired_mu(m, tau, changed), pure_epsilon(m, tau, changed)
    values: list[tuple[str, float, dict[str, float]]] = [
        *(("epsilon", repaired_epsilon(m, tau, changed, delta), {"delta": delta}) for delta in bounded_deltas(spec)),
        *(("epsilon", least_divergence(m, order, tau, changed), {"alpha": order}) for order in claimed_orders(spec)),
    ]
    if mu is not None and any(claim.kind == "gdp" for claim in spec.claims):
        values.append(("mu", mu, {}))
    if pure is not None:
        values.append(("epsilon", pure, {"delta": 0.0}))
    for quantity, value, at in values:
        yield kit.theorem_upper(
            quantity,
            round_up(value),
            at=at,
            scope=scope,
            method=f"group of {min(m.records, math.floor(changed) + 1)}" if grouped else "smooth Renyi",
            source=(GROUP if grouped else REPAIRED) + why,
            assumptions=(*ASSUMPTIONS, COLLECTION) if over_collection else ASSUMPTIONS,
        )


def _tested(spec: dps.Spec, pipeline: Pipeline, test: Test) -> Iterator[dps.Finding]:
    """With a test in front: bounds for all data sets of so many records at deltas no smaller than the test's."""
    scope = bound_scope(
        spec,
        pipeline.private,
        data="all",
        neighbours=SAME_MASK if pipeline.same_mask else "all",
        min_records=pipeline.private.records,
    )
    for delta in bounded_deltas(spec):
        value = tested_epsilon(pipeline, test, delta)
        if math.isfinite(value):
            yield kit.theorem_upper(
                "epsilon",
                round_up(value),
                at={"delta": delta},
                scope=scope,
                method="propose-test-release",
                source=TESTED,
                assumptions=ASSUMPTIONS,
            )


def tested_epsilon(pipeline: Pipeline, test: Test, delta: float) -> float:
    """The mechanism's epsilon for pairs of which one lies inside, with the test's; NaN below the test's delta."""
    if delta < test.delta:
        return math.nan
    inside = pipeline.tested()
    epsilon = repaired_epsilon(pipeline.private, pipeline.distance(inside), inside.changed, delta)
    return epsilon + test.epsilon


def refusal_probability(spec: dps.Spec, pipeline: Pipeline, test: Test, distance: float) -> dps.Finding:
    """How likely the test refuses the records at hand, ``distance`` replacements inside; exact, and theirs alone."""
    return dps.Finding(
        quantity="refusal-probability",
        value=sensitivity.refusal_probability(distance, test.epsilon, test.delta),
        bound="estimate",
        rigor="approximate",
        scope=bound_scope(spec, pipeline.private, data="this"),
        method="propose-test-release on these records",
        source=TESTED,
        privacy="data-dependent",
    )


def round_up(value: float) -> float:
    """A few units in the last place more: what evaluating the formulas can lose."""
    return value * (1.0 + 1e-12)


SOURCE = "the exact divergence of two explicit data sets"

#: What rounding can take from a sum of rows, and from a conversion, relatively.
_ROUNDING = 1e-9

#: The limits of a collection that the pair ``collection`` is shown to keep; of any other nothing is said here.
_KEPT_LIMITS = frozenset({"max_missing_rows", "max_missing_in_row", "min_observed", "max_mean_norm"})


class ExplicitPair(NamedTuple):
    """Two data sets. missing: how many records miss the first feature. distance: s, between the sums of rows."""

    name: str
    data: str
    missing: int
    distance: float


def explicit_pairs(pipeline: Pipeline) -> list[ExplicitPair]:
    """The pairs that a pipeline allows, of all data sets and of the declared collection."""
    n, radius = pipeline.private.records, pipeline.radius
    if n < 2 or pipeline.private.kind not in ("gaussian", "laplace"):
        return []
    if pipeline.step_name in ("mean", "median"):
        pairs = [ExplicitPair("imputed", "all", n - 1, 2.0 * n * radius)]
    elif all(_unchanged(step, radius) for step in pipeline.steps):
        pairs = [ExplicitPair("opposite", "all", 0, 2.0 * radius)]
    else:
        pairs = []
    missing = _missing(pipeline)
    if missing is not None:
        pairs.append(ExplicitPair("collection", "collection", missing, 2.0 * radius * n / (n - missing)))
    return pairs


def lower_bounds(spec: dps.Spec, pipeline: Pipeline) -> Iterator[dps.Finding]:
    """What the pairs show at the deltas and orders of claims."""
    if Declaration.of(spec.mechanism.options).test is not None:
        return
    m = pipeline.private
    weight = min(m.lipschitz, m.sensitivity / (2.0 * pipeline.out_radius))
    for pair in explicit_pairs(pipeline):
        shift = weight * pair.distance / m.sigma * (1.0 - _ROUNDING)
        values: list[tuple[str, float, dict[str, float]]] = []
        values += [("epsilon", _epsilon(m.kind, shift, delta), {"delta": delta}) for delta in kit.claimed_deltas(spec)]
        values += [("epsilon", _divergence(m.kind, shift, order), {"alpha": order}) for order in claimed_orders(spec)]
        if m.kind == "laplace":
            values.append(("epsilon", shift, {"delta": 0.0}))
        elif any(c.kind == "gdp" for c in spec.claims):
            values.append(("mu", shift, {}))
        for quantity, value, at in values:
            if value > 0.0:
                yield dps.Finding(
                    quantity=quantity,
                    value=value,
                    bound="lower",
                    rigor="certified",
                    at=dps.FrozenMap(at),
                    scope=_scope(spec, pipeline, pair),
                    method=f"two data sets, {pair.name}",
                    source=SOURCE,
                )


def _unchanged(step: Step, radius: float) -> bool:
    if isinstance(step, Scaling):
        return False
    return not isinstance(step, Merging) or 3.0 * step.eta * (1.0 + _ROUNDING) < radius


def _missing(pipeline: Pipeline) -> int | None:
    """p: as many records as the collection lets miss the first feature; None where no such pair lies in it."""
    c, n = pipeline.collection, pipeline.private.records
    if pipeline.step_name != "mean" or not set(REQUIRED_LIMITS["mean"]) <= set(c) <= _KEPT_LIMITS:
        return None
    most = min(int(c["max_missing_rows"]), n - int(c["min_observed"]))
    if "max_mean_norm" in c:
        norm = float(c["max_mean_norm"]) * (1.0 - _ROUNDING)
        most = min(most, math.floor(n - pipeline.radius / norm) if norm > 0.0 else -1)
    return most if most >= 0 else None


def _scope(spec: dps.Spec, pipeline: Pipeline, pair: ExplicitPair) -> dps.Scope:
    scope = bound_scope(
        spec, pipeline.private, data=pair.data, neighbours=SAME_MASK, min_records=pipeline.private.records
    )
    return replace(scope, access="final-model")


def _epsilon(kind: str, shift: float, delta: float) -> float:
    """The lower end of epsilon at ``delta`` of two Gaussian or Laplace distributions ``shift`` scales apart.

    Laplace: delta = 1 - e^((epsilon - shift) / 2) up to epsilon = shift.
    """
    if kind == "laplace":
        return shift + 2.0 * math.log1p(-delta) * (1.0 + _ROUNDING)
    return gaussian.epsilon_interval(math.log(delta), shift).lower


def _divergence(kind: str, shift: float, order: float) -> float:
    if kind == "gaussian":
        return 0.5 * order * shift**2 * (1.0 - _ROUNDING)
    return float(laplace_rdp(order, shift)) * (1.0 - _ROUNDING)
