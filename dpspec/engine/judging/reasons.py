"""Why a claim got its verdict, in a sentence or two; numbers rounded against the claim."""

from __future__ import annotations

from collections.abc import Sequence

from dpspec.contract import Assumption, Evidence, Finding
from dpspec.engine.judging.evidence_weight import WeighedFinding
from dpspec.engine.judging.inequalities import Part
from dpspec.engine.results.decimals import exact, lower, upper
from dpspec.text import several


def contradicted(attack: str, epsilon: float, delta: float, points: int, p_value: float, deviates: bool) -> str:
    """The attack rejects a proved upper bound itself, or a curve of so many points of which this is the worst one."""
    what, more = ("bound", "") if points == 1 else ("curve", f", {points} points at once")
    bound = f"the proved {what} epsilon <= {upper(epsilon)} at delta = {exact(delta)} itself{more}"
    return _contradicted(attack, bound, p_value, deviates)


def contradicted_count(attack: str, finding: Finding, p_value: float, deviates: bool) -> str:
    """The attack succeeds more often than a proved upper bound on its success allows."""
    at = ", ".join(f"{key} = {exact(value)}" for key, value in finding.at.items())
    bound = f"the proved bound {finding.quantity} <= {upper(finding.value)}{' at ' + at if at else ''} itself"
    return _contradicted(attack, bound, p_value, deviates)


def _contradicted(attack: str, bound: str, p_value: float, deviates: bool) -> str:
    text = (
        f"The attack ({attack}) rejects {bound}, p = {upper(p_value)} over the invocation: theory, implementation or "
        "attack is wrong."
    )
    return text + (" What ran was not what was declared, which can explain it." if deviates else "")


def refuted(method: str, p_value: float, confidence: float, clash: bool) -> str:
    """The attack, or the measurement, rejects what the claim says."""
    text = f"{method} rejects the claim: p = {upper(p_value)}, family-wise at confidence {exact(confidence)}."
    return text + (" A proved bound is within the claim all the same: one of the two is wrong." if clash else "")


def refuted_by_bound(part: Part, weighed: WeighedFinding, unseen: tuple[str, float] | None = None) -> str:
    """A certified bound on the other side lies beyond the claim. ``unseen``: what tried to reject it and did not, and
    its p-value."""
    side, value = _opposing(part, weighed.value)
    text = f"A certified {side} bound of {value} ({weighed.finding.method}) lies beyond the claim."
    return text if unseen is None else f"{text} {unseen[0]} does not reject it: p = {upper(unseen[1])}."


def asks_for_an_attack(part: Part, weighed: WeighedFinding) -> str:
    """A sentence that follows where a certified bound lies beyond a claim that only an attack may refute."""
    side, value = _opposing(part, weighed.value)
    said = f"A certified {side} bound of {value} ({weighed.finding.method}) lies beyond the claim"
    return f" {said}, which asks for an attack that shows it (refuted_by: attack)."


def proved(part: Part, weighed: WeighedFinding, *, deviates: bool = False, assumes: Sequence[str] = ()) -> str:
    """A proved bound is within the claim.

    Args:
        part: The part of the claim.
        weighed: The bound.
        deviates: Whether the executed run deviates from the declared mechanism.
        assumes: Names of everything that a proof on a recording assumes.
    """
    side, value = _proving(part, weighed.value)
    how = "certified" if weighed.finding.rigor == "certified" else "proved"
    text = f"The {how} {side} bound of {value} ({weighed.finding.method}) is within the claim."
    warning = " Proved as declared, run deviates: the bound does not apply to the executed run."
    given = f" It assumes {', '.join(assumes)}." if assumes else ""
    return text + given + (warning if deviates else "")


def deviating_recording(why: str) -> str:
    """Nothing is proved of a recorded run that deviates. ``why``: the reason of its conformance."""
    return f"Nothing is proved of a run that deviates. {why}"


def open_assumption(doubted: Assumption) -> str:
    """An assumption of the bound on a recorded run is open."""
    name = doubted.name.removesuffix("-unknown")
    return f"The bound on the recorded run assumes {name}, which is open: {doubted.text}."


def supported(part: Part, weighed: WeighedFinding, enough: int | None = None) -> str:
    """Something weaker than a proof is within the claim: says what it lacks. ``enough``: the number of records from
    which on a proof is within the claim, None where there is none."""
    finding, (side, value) = weighed.finding, _proving(part, weighed.value)
    if weighed.strength == "approximate":
        return f"Only the approximate value {value} ({finding.method}) is within the claim; it carries no guarantee."
    if weighed.strength == "statistical":
        at = f"confidence {exact(finding.confidence)}" if finding.confidence is not None else "an unstated confidence"
        return f"The {side} bound of {value} ({finding.method}) within the claim is statistical, at {at}."
    unchecked = [a.name for a in finding.assumptions if a.status == "unchecked"]
    given = f"given {', '.join(unchecked)}, which nobody checked" if unchecked else _where(finding.scope.data)
    text = f"The {side} bound of {value} ({finding.method}) is within the claim only {given}."
    if unchecked or enough is None:
        return text
    return f"{text} It is proved of data sets of at least {enough} records: set min_records."


def undecided(
    part: Part | None,
    provable: float | None,
    refutable: float | None,
    *,
    attacked: bool,
    unbounded: bool = False,
    beside: str = "",
) -> str:
    """An open claim: what could have been proved, and what refuted.

    unbounded: whether a proof is in scope that bounds nothing, since its value is infinite.
    beside: in what a proof falls short of the scope, or why it is infinite.
    """
    if part is None:
        return "Undecided: this claim kind has no numeric bound to compare with."
    least, largest = ("least", "largest") if part.side == "at-most" else ("largest", "least")
    if provable is not None:
        proof = f"the {least} value that could be proved is {_proving(part, provable)[1]}"
    elif unbounded:
        proof = f"no finite {_proving(part, 0.0)[0]} bound is proved"
    else:
        proof = f"no proved {_proving(part, 0.0)[0]} bound is in scope"
    if provable is None and beside:
        proof += f" ({beside})"
    if refutable is not None:
        attack = f"the {largest} that could have been refuted is {_opposing(part, refutable)[1]}"
    else:
        attack = "the evidence in scope can refute no such claim" if attacked else "no evidence in scope can refute it"
    return f"Undecided: {proof}; {attack}."


def missing(there: int, needed: int, waiting: bool) -> str:
    """A sentence that follows where a run is not complete: what its trials say is judged once all are there.

    waiting: whether there is evidence against the claim already.
    """
    what = "tests of a fixed number of them, of which there is evidence, are" if waiting else "their tests are"
    return f" Trials are missing: {there} of {needed} are there, and {what} judged once all are."


def attack_name(evidence: Evidence) -> str:
    """An attack as reasons name it."""
    groups = evidence.at.get("group_size", 1)
    if evidence.scope.unit != "record":
        return f"{evidence.method}, {several(groups, evidence.scope.unit)}"
    return evidence.method if groups == 1 else f"{evidence.method}, groups of {groups}"


def _where(data: str) -> str:
    return "for the declared collection of data sets" if data == "collection" else "for this data set"


def _proving(part: Part, value: float) -> tuple[str, str]:
    return ("upper", upper(value)) if part.side == "at-most" else ("lower", lower(value))


def _opposing(part: Part, value: float) -> tuple[str, str]:
    return ("lower", lower(value)) if part.side == "at-most" else ("upper", upper(value))
