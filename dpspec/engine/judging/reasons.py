"""Sentences that explain a verdict; numbers are rounded against the claim."""

from __future__ import annotations

from dpspec.contract import Evidence
from dpspec.engine.judging.claim_tests import RejectedBound
from dpspec.engine.judging.evidence_weight import WeighedFinding
from dpspec.engine.judging.inequalities import Part
from dpspec.engine.results.decimals import exact, lower, upper
from dpspec.text import several


def contradicted(rejected: RejectedBound, deviates: bool) -> str:
    from dpspec.stats.attacks import evidence_tests

    evidence, points, finding = rejected.evidence, rejected.points, rejected.findings[0]
    if evidence.kind == "binomial":
        at = ", ".join(f"{key} = {exact(value)}" for key, value in finding.at.items())
        bound = f"the proved bound {finding.quantity} <= {upper(finding.value)}{' at ' + at if at else ''} itself"
    else:
        epsilon, delta = min(points, key=lambda point: evidence_tests.p_value(evidence, *point))
        what, more = ("bound", "") if len(points) == 1 else ("curve", f", all {len(points)} points")
        bound = f"the proved {what} epsilon <= {upper(epsilon)} at delta = {exact(delta)} itself{more}"
    text = (
        f"The attack ({attack_name(evidence)}) rejects {bound}, p = {upper(rejected.p_value)} over the invocation: "
        "theory, implementation or attack is wrong."
    )
    return text + (" The executed run deviates from its declaration, which can explain it." if deviates else "")


def refuted(method: str, p_value: float, confidence: float, clash: bool) -> str:
    text = f"{method} rejects the claim: p = {upper(p_value)}, family-wise at confidence {exact(confidence)}."
    return text + (" A proved bound is within the claim: one of the two is wrong." if clash else "")


def opposing_bound(part: Part, weighed: WeighedFinding) -> str:
    if part.side == "at-most":
        side, value, beyond = "lower", lower(weighed.value, against=part.claimed), "exceeds"
    else:
        side, value, beyond = "upper", upper(weighed.value, against=part.claimed), "is below"
    return f"The certified {side} bound {value} ({weighed.finding.method}) {beyond} the claimed {exact(part.claimed)}"


def proved(part: Part, weighed: WeighedFinding, *, deviates: bool) -> str:
    side, value = _proving(part, weighed.value)
    text = f"The {_rigor(weighed)} {side} bound of {value} ({weighed.finding.method}) is within the claim."
    warning = " Proved as declared, run deviates: the bound does not apply to the executed run."
    return text + (warning if deviates else "")


def supported(part: Part, weighed: WeighedFinding, enough: int | None) -> str:
    finding, (side, value) = weighed.finding, _proving(part, weighed.value)
    if weighed.strength == "approximate":
        return f"Only the approximate value {value} ({finding.method}) is within the claim; it carries no guarantee."
    if weighed.strength == "statistical":
        at = f"confidence {exact(finding.confidence)}" if finding.confidence is not None else "an unstated confidence"
        return f"The {side} bound of {value} ({finding.method}) within the claim is statistical, at {at}."
    whose = "for the declared collection of datasets" if finding.scope.data == "collection" else "for this dataset"
    unchecked = [a.name for a in finding.assumptions if a.status == "unchecked"]
    given = f"under unchecked assumptions ({', '.join(unchecked)})" if unchecked else whose
    text = f"The {side} bound of {value} ({finding.method}) is within the claim only {given}."
    if unchecked:
        return text
    if enough is None:
        return f"{text} Set over: this in the claim." if finding.scope.data == "this" else text
    return f"{text} It is proved for datasets of at least {enough} records: set min_records."


def undecided(
    part: Part | None,
    proof: WeighedFinding | None,
    refutable: float | None,
    *,
    attacked: bool,
    unbounded: bool = False,
    shortfall: str = "",
) -> str:
    if part is None:
        return "Not proved: this claim kind has no numeric bound to compare with."
    side = "upper" if part.side == "at-most" else "lower"
    if proof is not None:
        if part.side == "at-most":
            value, beyond = upper(proof.value, against=part.claimed), "exceeds"
        else:
            value, beyond = lower(proof.value, against=part.claimed), "is below"
        text = f"the {_rigor(proof)} bound {value} {beyond} the claimed {exact(part.claimed)}"
    else:
        text = f"no finite {side} bound is proved" if unbounded else f"no proved {side} bound applies to this claim"
        text += f" ({shortfall})" if shortfall else ""
    if refutable is not None:
        limit = f"up to {lower(refutable)}" if part.side == "at-most" else f"down to {upper(refutable)}"
        weak = f"with perfect results, the evidence could refute claims {limit}"
    elif attacked:
        weak = "the evidence cannot refute this claim"
    else:
        weak = "no attack tested it"
    return f"Not proved: {text}. Not refuted: {weak}."


def control(part: Part, weighed: WeighedFinding, *, attacked: bool) -> str:
    """The reason of an open claim that a certified bound refutes, if only an attack may."""
    attack = "the attack does not reject it" if attacked else "no attack tested it"
    return (
        f"Not decided: only an attack may refute this claim (refuted_by: attack), and {attack}. "
        f"{opposing_bound(part, weighed)}."
    )


def missing(available: int, needed: int, waiting: bool) -> str:
    tests = "the tests of a fixed number of trials, for which there is evidence, are" if waiting else "their tests are"
    return f" {available} of {needed} trials are available; {tests} judged once all are."


def attack_name(evidence: Evidence) -> str:
    groups = evidence.at.get("group_size", 1)
    if evidence.scope.unit != "record":
        return f"{evidence.method}, {several(groups, evidence.scope.unit)}"
    return evidence.method if groups == 1 else f"{evidence.method}, groups of {groups}"


def _proving(part: Part, value: float) -> tuple[str, str]:
    return ("upper", upper(value)) if part.side == "at-most" else ("lower", lower(value))


def _rigor(weighed: WeighedFinding) -> str:
    return "certified" if weighed.finding.rigor == "certified" else "proved"
