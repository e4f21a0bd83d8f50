"""Why a claim got its verdict, in a sentence or two; numbers rounded against the claim."""

from __future__ import annotations

from dpspec.contract import Evidence, Finding
from dpspec.engine.claims import Part
from dpspec.engine.numbers import exact, lower, upper
from dpspec.engine.standing import Standing


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


def refuted_by_bound(part: Part, standing: Standing) -> str:
    """A certified bound on the other side lies beyond the claim."""
    side, value = _opposing(part, standing.value)
    return f"A certified {side} bound of {value} ({standing.finding.method}) lies beyond the claim."


def proved(part: Part, standing: Standing) -> str:
    """A proved bound is within the claim."""
    side, value = _proving(part, standing.value)
    how = "certified" if standing.finding.rigor == "certified" else "proved"
    return f"The {how} {side} bound of {value} ({standing.finding.method}) is within the claim."


def supported(part: Part, standing: Standing) -> str:
    """Something weaker than a proof is within the claim: says what it lacks."""
    finding, (side, value) = standing.finding, _proving(part, standing.value)
    if standing.strength == "approximate":
        return f"Only the approximate value {value} ({finding.method}) is within the claim; it carries no guarantee."
    if standing.strength == "statistical":
        at = f"confidence {exact(finding.confidence)}" if finding.confidence is not None else "an unstated confidence"
        return f"The {side} bound of {value} ({finding.method}) within the claim is statistical, at {at}."
    unchecked = [a.name for a in finding.assumptions if a.status == "unchecked"]
    given = f"given {', '.join(unchecked)}, which nobody checked" if unchecked else _where(finding.scope.data)
    return f"The {side} bound of {value} ({finding.method}) is within the claim only {given}."


def undecided(
    part: Part | None,
    provable: float | None,
    refutable: float | None,
    *,
    attacked: bool,
    unbounded: bool = False,
    beside: str = "",
) -> str:
    """Nothing decides the claim: what could have been proved, and what refuted.

    unbounded: whether a proof is in scope that bounds nothing, since its value is infinite.
    beside: in what a proof falls short of the scope.
    """
    if part is None:
        return "Nothing decides it: claims of this kind state no inequality that findings can be held against."
    least, largest = ("least", "largest") if part.side == "at-most" else ("largest", "least")
    if provable is not None:
        proof = f"the {least} value that could be proved is {_proving(part, provable)[1]}"
    elif unbounded:
        proof = f"the proved {_proving(part, 0.0)[0]} bound is infinite"
    else:
        proof = f"no proved {_proving(part, 0.0)[0]} bound is in scope"
        proof += f" ({beside})" if beside else ""
    if refutable is not None:
        attack = f"the {largest} that could have been refuted is {_opposing(part, refutable)[1]}"
    else:
        attack = "the evidence in scope can refute no such claim" if attacked else "no evidence in scope can refute it"
    return f"Nothing decides it: {proof}; {attack}."


def attack_name(evidence: Evidence) -> str:
    """An attack as reasons name it."""
    groups = evidence.at.get("group_size", 1)
    return evidence.method if groups == 1 else f"{evidence.method}, groups of {groups}"


def _where(data: str) -> str:
    return "for the declared collection of data sets" if data == "collection" else "for this data set"


def _proving(part: Part, value: float) -> tuple[str, str]:
    return ("upper", upper(value)) if part.side == "at-most" else ("lower", lower(value))


def _opposing(part: Part, value: float) -> tuple[str, str]:
    return ("lower", lower(value)) if part.side == "at-most" else ("upper", upper(value))
