"""Which numbers may decide a claim, told another way than the judge does: by the situations that both speak of.

A scope is a set of situations, one choice for each of its parts. What holds throughout a set holds throughout every
part of it, so that an upper bound speaks of a claim whose situations are all among its own, and a counterexample tells
against a claim that all of its own situations are among. No order of values stands here, only sets of them.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from dpspec.contract import Claim, Evidence, Finding, Scope, Spec

#: So many records have data sets that are looked at.
SIZES = (0, 1, 63, 64, 568, 569, 570, 1000, 10**9)

#: What an adversary is who may do more, and what is seen of whom more is seen.
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

#: Names under which privacy is spoken of.
PRIVATE = ("epsilon", "delta", "mu", "gamma", "tpr", "fpr", "advantage", "alpha", "kappa")


def situations(scope: Scope) -> dict[str, frozenset[Any]]:
    """For each part of a scope the situations that it speaks of; which pipeline is the conformance's business."""
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
    """Whether all situations of one scope are situations of the other, ``but`` for one part."""
    ours, theirs = situations(inner), situations(outer)
    return all(ours[part] <= theirs[part] for part in ours if part != but)


def spoken_of(spec: Spec, claim: Claim) -> Scope:
    """The scope of a claim, from its keys and the threat model's."""
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
class Said:
    """A claim in short: quantity, value, whether it is at most that, and under which conditions."""

    quantity: str
    value: float
    at_most: bool = True
    at: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def said(claim: Claim) -> Said:
    """What a claim of each kind says; of one point for ``tradeoff``."""
    o, at = claim.options, {"group_size": claim.group_size}
    match claim.kind:
        case "approx-dp":
            return Said("epsilon", o["epsilon"], at={"delta": o["delta"], **at})
        case "per-instance-dp":
            of = {key: o[key] for key in ("fraction", "population") if key in o}
            return Said("epsilon", o["epsilon"], at={"delta": o["delta"], **of, **at})
        case "pure-dp":
            return Said("epsilon", o["epsilon"], at={"delta": 0.0, **at})
        case "renyi-dp":
            return Said("epsilon", o["epsilon"], at={"alpha": o["alpha"], **at})
        case "gdp":
            return Said("mu", o["mu"], at=at)
        case "tradeoff":
            (point,) = o["points"]
            return Said("tpr", point["tpr"], at={"fpr": point["fpr"], **at})
        case "rero":
            return Said("gamma", o["gamma"], at={"kappa": o["kappa"], **at})
        case "membership" if "advantage" in o:
            return Said("advantage", o["advantage"], at=at)
        case "membership":
            return Said("tpr", o["tpr"], at={"fpr": o["fpr"], **at})
        case "metric":
            at_most = "at_most" in o
            where = {"split": "test", "about": o.get("about", "pipeline")}
            return Said(o["name"], o["at_most" if at_most else "at_least"], at_most, where)
    raise ValueError(claim.kind)


def stronger(one: Mapping[str, Any], other: Mapping[str, Any], *, upper: bool) -> bool:
    """Whether a number under the conditions ``one`` says at least as much under ``other``.

    Losses rise with the number of records that change, with the order, with the rates that are guessed with, and with
    the share of a population; they fall with delta.
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
    """Whether something was measured of what was trained, while nobody attacked it."""
    scope = thing.scope
    private = any(thing.quantity.lower().startswith(name) for name in PRIVATE)
    return (scope.pipeline, scope.adversary, scope.record) == ("executed", "none", "all") and not private


def decided(spec: Spec, claim: Claim, findings: Iterable[Finding]) -> str:
    """The verdict that findings alone give a claim: refuted, proved, supported or open."""
    findings = list(findings)
    what, scope, metric = said(claim), spoken_of(spec, claim), claim.kind == "metric"
    same = [f for f in findings if f.quantity == what.quantity]
    if metric and not all(measured(f) for f in same):
        return "open"
    found = {_by(f, what, None if metric else scope) for f in same}
    return next((verdict for verdict in ("refuted", "proved", "supported") if verdict in found), "open")


def _by(finding: Finding, what: Said, scope: Scope | None) -> str:
    """What one finding of the right quantity makes of a claim; ``scope`` is None where none is claimed."""
    states = {assumption.status for assumption in finding.assumptions}
    if "false" in states or (finding.printed is not None and finding.printed.refuted):
        return "open"
    proves = finding.rigor in ("certified", "theorem") and "unchecked" not in states
    towards, against = ("upper", "lower") if what.at_most else ("lower", "upper")
    beyond = finding.value > what.value if what.at_most else finding.value < what.value
    within = not beyond and finding.value not in (float("inf"), float("-inf"))
    if finding.bound == against:
        tells = stronger(finding.at, what.at, upper=False) and (scope is None or among(finding.scope, scope))
        return "refuted" if tells and beyond and proves and finding.rigor == "certified" else "open"
    if not within or not stronger(finding.at, what.at, upper=True):
        return "open"
    whole = scope is None or among(scope, finding.scope)
    if finding.bound == "estimate":
        attacked = scope is not None and finding.scope.pipeline == "executed"
        return "supported" if whole and not attacked else "open"
    assert finding.bound == towards
    if whole and proves:
        return "proved"
    # The same number for fewer data sets is worth something, and so is a weaker number for them.
    return "supported" if whole or (scope is not None and among(scope, finding.scope, but="data")) else "open"


def tested(spec: Spec, claim: Claim, evidence: Evidence) -> bool:
    """Whether an attack, or a measurement, tells against a claim at all."""
    what = said(claim)
    if claim.kind == "metric":
        about = {"binomial": "model", "average": "pipeline"}.get(evidence.kind)
        at = {**evidence.at, "about": about}
        return evidence.quantity == what.quantity and measured(evidence) and stronger(at, what.at, upper=False)
    if not among(evidence.scope, spoken_of(spec, claim)):
        return False
    if evidence.kind == "binomial":
        return evidence.quantity == what.quantity and stronger(evidence.at, what.at, upper=False)
    curves = claim.kind in ("approx-dp", "pure-dp", "renyi-dp", "gdp", "tradeoff") or (
        claim.kind == "per-instance-dp" and "fraction" not in claim.options
    )
    return curves and evidence.quantity == "epsilon" and evidence.at.get("group_size", 1) <= claim.group_size
