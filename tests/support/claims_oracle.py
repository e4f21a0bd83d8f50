"""An oracle for the judge: which numbers may decide a claim, by sets of situations in place of the judge's orders.

A scope is a set of situations, a product over its fields. An upper bound applies to a claim if it covers all
situations of the claim. A counterexample applies if the claim covers all situations of the counterexample.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from dpspec.contract import Claim, Evidence, Finding, Scope, Spec

#: Numbers of records in datasets.
SIZES = (0, 1, 63, 64, 568, 569, 570, 1000, 10**9)

#: The capabilities of each adversary and the observations of each access, including all weaker ones.
_MAY = {"gradient": {"gradients", "records", "nothing"}, "record": {"records", "nothing"}, "none": {"nothing"}}
_SEES = {"all-iterates": {"every model", "the last model"}, "final-model": {"the last model"}}
_PLANTED, _THIS = {"with planted records"}, {"this one and one of the collection", "this one and one outside"}
_COLLECTION = {"this one and one of the collection", "two others of the collection"}
_DATA = {
    "all": _THIS | _COLLECTION | _PLANTED | {"two others"},
    "collection": _COLLECTION,
    "this": _THIS,
    "planted": _PLANTED,
}
_RECORDS = frozenset(range(5))

#: Names of privacy quantities.
PRIVATE = ("epsilon", "delta", "mu", "gamma", "tpr", "fpr", "advantage", "alpha", "kappa")


def situations(scope: Scope) -> dict[str, frozenset[Any]]:
    """Return the situations of each field of a scope, except the pipeline, which conformance tests."""
    least, pairs = getattr(scope, "min_records", 0), getattr(scope, "neighbours", "all")
    return {
        "adjacency": frozenset({scope.adjacency}),
        "unit": frozenset({scope.unit}),
        "direction": frozenset({"add", "remove"} if scope.direction == "both" else {scope.direction}),
        "access": frozenset(_SEES[scope.access]),
        "adversary": frozenset(_MAY[scope.adversary]),
        "data": frozenset(_DATA.get(scope.data, {"two others"})),
        "record": _RECORDS if scope.record == "all" else frozenset({scope.record}),
        "records": frozenset(size for size in SIZES if size >= least),
        "neighbours": frozenset({"alike", "others"} if pairs == "all" else {"alike"}),
    }


def among(inner: Scope, outer: Scope, *, but: str = "") -> bool:
    """Whether all situations of one scope are situations of the other, ignoring the field ``but``."""
    ours, theirs = situations(inner), situations(outer)
    return all(ours[part] <= theirs[part] for part in ours if part != but)


def scope_of(spec: Spec, claim: Claim) -> Scope:
    data = claim.over or ("this" if claim.kind == "per-instance-dp" else "all")
    more = {key: getattr(claim, key) for key in ("min_records", "neighbours") if hasattr(claim, key)}
    return Scope(
        adjacency=claim.adjacency,
        unit=spec.threat_model.unit,
        direction=claim.direction,
        access=claim.access,
        adversary=str(spec.threat_model.options.get("adversary", "gradient")),
        data=data,
        record="all" if claim.record is None else claim.record,
        **more,
    )


@dataclasses.dataclass(frozen=True)
class Statement:
    """The statement of a claim: quantity, value, side and conditions."""

    quantity: str
    value: float
    at_most: bool = True
    at: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def statement_of(claim: Claim) -> Statement:
    """Return the statement of a claim of any kind; ``tradeoff`` needs exactly one point."""
    o, at = claim.options, {"group_size": claim.group_size}
    match claim.kind:
        case "approx-dp":
            return Statement("epsilon", o["epsilon"], at={"delta": o["delta"], **at})
        case "per-instance-dp":
            of = {key: o[key] for key in ("fraction", "population") if key in o}
            return Statement("epsilon", o["epsilon"], at={"delta": o["delta"], **of, **at})
        case "pure-dp":
            return Statement("epsilon", o["epsilon"], at={"delta": 0.0, **at})
        case "renyi-dp":
            return Statement("epsilon", o["epsilon"], at={"alpha": o["alpha"], **at})
        case "zcdp":
            return Statement("rho", o["rho"], at=at)
        case "gdp":
            return Statement("mu", o["mu"], at=at)
        case "tradeoff":
            (point,) = o["points"]
            return Statement("tpr", point["tpr"], at={"fpr": point["fpr"], **at})
        case "rero":
            return Statement("gamma", o["gamma"], at={"kappa": o["kappa"], **at})
        case "membership" if "advantage" in o:
            return Statement("advantage", o["advantage"], at=at)
        case "membership":
            return Statement("tpr", o["tpr"], at={"fpr": o["fpr"], **at})
        case "metric":
            at_most = "at_most" in o
            where = {"split": "test", "about": o.get("about", "pipeline")}
            return Statement(o["name"], o["at_most" if at_most else "at_least"], at_most, where)
    raise ValueError(claim.kind)


def stronger(one: Mapping[str, Any], other: Mapping[str, Any], *, upper: bool) -> bool:
    """Whether a bound under the conditions ``one`` implies the bound under ``other``.

    Losses rise with the group size, the order, the baseline rates and the fraction of a population; they fall with
    delta.
    """
    rising, falling = {"group_size", "alpha", "kappa", "fpr", "fraction"}, {"delta"}
    meant = {"group_size": 1, "delta": 0.0, "split": "test", "about": "pipeline"}
    for key in {*one, *other}:
        a, b = one.get(key, meant.get(key)), other.get(key, meant.get(key))
        if a == b:
            continue
        if a is None or b is None or key not in rising | falling or key not in other:
            return False
        if (a > b) != ((key in rising) == upper):
            return False
    return True


def measured(thing: Finding | Evidence) -> bool:
    """Whether a quantity of the trained model was measured without an attack."""
    scope = thing.scope
    private = any(thing.quantity.lower().startswith(name) for name in PRIVATE)
    return (scope.pipeline, scope.adversary, scope.record) == ("executed", "none", "all") and not private


def decided(spec: Spec, claim: Claim, findings: Iterable[Finding]) -> str:
    """Return the verdict of a claim from findings alone: refuted, proved, supported or open."""
    findings = list(findings)
    what, scope, metric = statement_of(claim), scope_of(spec, claim), claim.kind == "metric"
    same = [f for f in findings if f.quantity == what.quantity]
    if metric and not all(measured(f) for f in same):
        return "open"
    found = {_by(f, what, None if metric else scope) for f in same}
    return next((verdict for verdict in ("refuted", "proved", "supported") if verdict in found), "open")


def _by(finding: Finding, what: Statement, scope: Scope | None) -> str:
    """Return the verdict of a claim from one finding of its quantity; ``scope`` is None for a metric."""
    states = {assumption.status for assumption in finding.assumptions}
    if "false" in states or (finding.printed is not None and finding.printed.refuted):
        return "open"
    proves = finding.rigor in ("certified", "theorem") and "unchecked" not in states
    towards, against = ("upper", "lower") if what.at_most else ("lower", "upper")
    beyond = finding.value > what.value if what.at_most else finding.value < what.value
    within = not beyond and finding.value not in (float("inf"), float("-inf"))
    if finding.bound == against:
        applies = stronger(finding.at, what.at, upper=False) and (scope is None or among(finding.scope, scope))
        return "refuted" if applies and beyond and proves and finding.rigor == "certified" else "open"
    if not within or not stronger(finding.at, what.at, upper=True):
        return "open"
    whole = scope is None or among(scope, finding.scope)
    if finding.bound == "estimate":
        attacked = scope is not None and finding.scope.pipeline == "executed"
        return "supported" if whole and not attacked else "open"
    assert finding.bound == towards
    if whole and proves:
        return "proved"
    # The number supports the claim if it is a weaker proof, or if it applies to fewer datasets.
    return "supported" if whole or (scope is not None and among(scope, finding.scope, but="data")) else "open"


def tested(spec: Spec, claim: Claim, evidence: Evidence) -> bool:
    """Whether an attack or a measurement can refute a claim."""
    what = statement_of(claim)
    if claim.kind == "metric":
        subjects = {"binomial": "model", "bounded-mean": "model", "average": "pipeline", "bounded-average": "pipeline"}
        at = {**evidence.at, "about": subjects.get(evidence.kind)}
        return evidence.quantity == what.quantity and measured(evidence) and stronger(at, what.at, upper=False)
    if not among(evidence.scope, scope_of(spec, claim)):
        return False
    if evidence.kind == "binomial":
        return evidence.quantity == what.quantity and stronger(evidence.at, what.at, upper=False)
    curves = claim.kind in ("approx-dp", "pure-dp", "renyi-dp", "zcdp", "gdp", "tradeoff") or (
        claim.kind == "per-instance-dp" and "fraction" not in claim.options
    )
    return curves and evidence.quantity == "epsilon" and evidence.at.get("group_size", 1) <= claim.group_size
