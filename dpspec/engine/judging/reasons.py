"""Sentences that explain a verdict; numbers are rounded against the claim."""

from __future__ import annotations

from collections.abc import Sequence

from dpspec.contract import Assumption, Evidence, Finding
from dpspec.contract.findings import Channel
from dpspec.engine.judging.evidence_weight import WeighedFinding
from dpspec.engine.judging.inequalities import Part
from dpspec.engine.results.decimals import exact, lower, upper
from dpspec.text import several


def contradicted(attack: str, epsilon: float, delta: float, points: int, p_value: float, deviates: bool) -> str:
    """The attack rejects a proved upper bound, or a proved curve at its worst of ``points`` points."""
    what, more = ("bound", "") if points == 1 else ("curve", f", all {points} points")
    bound = f"the proved {what} epsilon <= {upper(epsilon)} at delta = {exact(delta)} itself{more}"
    return _contradicted(attack, bound, p_value, deviates)


def contradicted_count(attack: str, finding: Finding, p_value: float, deviates: bool) -> str:
    at = ", ".join(f"{key} = {exact(value)}" for key, value in finding.at.items())
    bound = f"the proved bound {finding.quantity} <= {upper(finding.value)}{' at ' + at if at else ''} itself"
    return _contradicted(attack, bound, p_value, deviates)


def _contradicted(attack: str, bound: str, p_value: float, deviates: bool) -> str:
    text = (
        f"The attack ({attack}) rejects {bound}, p = {upper(p_value)} over the invocation: theory, implementation or "
        "attack is wrong."
    )
    return text + (" The executed run deviates from its declaration, which can explain it." if deviates else "")


def refuted(method: str, p_value: float, confidence: float, clash: bool) -> str:
    text = f"{method} rejects the claim: p = {upper(p_value)}, family-wise at confidence {exact(confidence)}."
    return text + (" A proved bound is within the claim: one of the two is wrong." if clash else "")


def refuted_by_bound(part: Part, weighed: WeighedFinding, unrejected: tuple[str, float] | None = None) -> str:
    text = f"{_opposing_bound(part, weighed)}."
    return text if unrejected is None else f"{text} {unrejected[0]} does not reject it: p = {upper(unrejected[1])}."


def only_attack_may_refute(part: Part, weighed: WeighedFinding) -> str:
    return f" {_opposing_bound(part, weighed)}, but only an attack may refute this claim (refuted_by: attack)."


def _opposing_bound(part: Part, weighed: WeighedFinding) -> str:
    if part.side == "at-most":
        value, beyond = lower(weighed.value, against=part.claimed), "exceeds"
    else:
        value, beyond = upper(weighed.value, against=part.claimed), "is below"
    side = "lower" if part.side == "at-most" else "upper"
    return f"The certified {side} bound {value} ({weighed.finding.method}) {beyond} the claimed {exact(part.claimed)}"


def proved(part: Part, weighed: WeighedFinding, *, deviates: bool = False, assumes: Sequence[str] = ()) -> str:
    side, value = _proving(part, weighed.value)
    text = f"The {_rigor(weighed)} {side} bound of {value} ({weighed.finding.method}) is within the claim."
    warning = " Proved as declared, run deviates: the bound does not apply to the executed run."
    given = f" It assumes {', '.join(assumes)}." if assumes else ""
    return text + given + (warning if deviates else "")


def deviating_recording(why: str, unbounded: str) -> str:
    text = f"Nothing is proved of a run that deviates. {why}"
    return f"{text} No finite bound is proved either: {unbounded}." if unbounded else text


def open_assumption(doubted: Assumption, channels: Sequence[Channel]) -> str:
    name = doubted.name.removesuffix("-unknown")
    of = next((one.name for one in channels if name in one.sources), "")
    how = "violated" if doubted.status == "false" else "open"
    what = f"The channel {of} is {how}" if of else f"An assumption is {how}"
    return f"{what}: {name}: {doubted.text}."


def supported(part: Part, weighed: WeighedFinding, enough: int | None = None) -> str:
    finding, (side, value) = weighed.finding, _proving(part, weighed.value)
    if weighed.strength == "approximate":
        return f"Only the approximate value {value} ({finding.method}) is within the claim; it carries no guarantee."
    if weighed.strength == "statistical":
        at = f"confidence {exact(finding.confidence)}" if finding.confidence is not None else "an unstated confidence"
        return f"The {side} bound of {value} ({finding.method}) within the claim is statistical, at {at}."
    unchecked = [a.name for a in finding.assumptions if a.status == "unchecked"]
    given = f"under unchecked assumptions ({', '.join(unchecked)})" if unchecked else _where(finding.scope.data)
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
        text = f"no finite {side} bound is proved" if unbounded else f"no proved {side} bound is in scope"
        text += f" ({shortfall})" if shortfall else ""
    return f"Not proved: {text}. Not refuted: {_refutable(part, refutable, attacked)}."


def _refutable(part: Part, value: float | None, attacked: bool) -> str:
    if value is None:
        return "the evidence in scope cannot refute this claim" if attacked else "no evidence against it is in scope"
    limit = f"up to {lower(value)}" if part.side == "at-most" else f"down to {upper(value)}"
    return f"with perfect results, the evidence could refute claims {limit}"


def missing(available: int, needed: int, waiting: bool) -> str:
    tests = "the tests of a fixed number of trials, for which there is evidence, are" if waiting else "their tests are"
    return f" {available} of {needed} trials are available; {tests} judged once all are."


def attack_name(evidence: Evidence) -> str:
    groups = evidence.at.get("group_size", 1)
    if evidence.scope.unit != "record":
        return f"{evidence.method}, {several(groups, evidence.scope.unit)}"
    return evidence.method if groups == 1 else f"{evidence.method}, groups of {groups}"


def _where(data: str) -> str:
    return "for the declared collection of datasets" if data == "collection" else "for this dataset"


def _proving(part: Part, value: float) -> tuple[str, str]:
    return ("upper", upper(value)) if part.side == "at-most" else ("lower", lower(value))


def _rigor(weighed: WeighedFinding) -> str:
    return "certified" if weighed.finding.rigor == "certified" else "proved"
