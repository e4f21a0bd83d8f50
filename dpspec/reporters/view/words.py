"""The words that every report shares: how a verdict, a rigor, a scope or a condition is said in plain English.

Text that a spec, a plugin or a paper may have brought in is returned as it is: escaping is the format's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpspec.contract import Finding, Json
from dpspec.engine.redact import LEFT_OUT_REASON
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Verdict
from dpspec.text import several

if TYPE_CHECKING:
    from dpspec.engine.judging.proven_curves import ProvenCurve

_RIGOR = {
    "certified": "certified, numerical error included",
    "theorem": "proved formula, evaluated in float64",
    "statistical": "statistical",
    "approximate": "approximate, no guarantee",
}

_ADJACENCY = {
    "add-remove": "adding or removing records",
    "replace-one": "replacing a record",
    "zero-out": "replacing records by null records (zero-out)",
}

#: The same of units that are no records.
_OF_UNITS = {"add-remove": "adding or removing a", "replace-one": "replacing a"}

_ACCESS = {
    "all-iterates": "seeing every iterate",
    "final-model": "seeing the final model",
    "transcript": "seeing every iterate and who else was drawn",
}
_ADVERSARY = {
    "gradient": "an adversary who chooses gradients",
    "record": "an adversary who chooses records",
    "none": "no adversary",
}
_DATA = {
    "all": "any data set",
    "collection": "the declared collection of data sets",
    "this": "this data set",
    "planted": "this data set with planted records",
}


#: The labels of the conformance statuses.
_CONFORMANCE = {
    "no-deviation-found": "no deviation found",
    "checks-missing": "checks missing",
    "not-run": "not tested",
}

#: The label of a proof if the executed run deviates from the declared mechanism, to which alone the proof applies.
AS_DECLARED = "proved as declared, run deviates"


def verdict_label(audit: AuditResult, verdict: Verdict) -> str:
    """The verdict as reports show it: its name, or ``AS_DECLARED``."""
    deviates = verdict.kind != "metric" and audit.conformance.status == "deviates"
    return AS_DECLARED if verdict.verdict == "proved" and deviates else verdict.verdict


def conformance_label(status: str) -> str:
    """Return a conformance status as reports show it: ``no deviation found``."""
    return _CONFORMANCE.get(status, status)


def headline(audit: AuditResult, verdict: Verdict) -> str:
    """The label; for a proof on a recording with what it assumes: ``proved, assuming one-record, released-model``."""
    label, recording = verdict_label(audit, verdict), audit.recording
    given = ", ".join(recording.assumes) if label == "proved" and recording is not None else ""
    return f"{label}, assuming {given}" if given else label


def outcome(audit: AuditResult, verdict: Verdict) -> str:
    """Whether a claim came out as the spec expects: ``as expected``, or what was expected instead."""
    if verdict.expected:
        return "as expected"
    state = "NOT YET DECIDED, trials are missing" if pending(audit, verdict) else "NOT AS EXPECTED"
    return f"{state} (expected {' or '.join(verdict.expect)})"


def is_control(verdict: Verdict) -> bool:
    """Whether a claim is made to come out false, to show that the audit sees it."""
    return not set(verdict.expect) & {"proved", "supported", "open"}


def refuted_by_attack(audit: AuditResult, verdict: Verdict) -> bool:
    """Return whether an attack or a measurement refuted the claim.

    False if a certified lower bound exceeds the claim and the spec lets theory refute it: the attack may have found
    nothing.
    """
    if verdict.verdict != "refuted":
        return verdict.verdict == "contradicted"
    blocks = audit.document.get("claims", ())
    for block in blocks if isinstance(blocks, list | tuple) else ():
        if isinstance(block, Mapping) and block.get("id") == verdict.claim and block.get("refuted_by") == "attack":
            return True
    if verdict.reason == LEFT_OUT_REASON:
        return False
    lower, claimed, index = verdict.lower, verdict.claimed, verdict.lower_finding
    if verdict.kind == "metric" or lower is None or claimed is None or index is None:
        return True
    return audit.findings[index].rigor != "certified" or lower <= claimed


def pending(audit: AuditResult, verdict: Verdict) -> bool:
    """Whether an unexpected verdict may still change, while trials are missing: nothing refutes the claim so far."""
    return not verdict.expected and not audit.complete and verdict.verdict not in ("refuted", "contradicted")


def untested(audit: AuditResult) -> bool:
    """Whether nothing is known of what ran because trials are missing."""
    return audit.conformance.status == "not-run" and not audit.complete


def conformance_outcome(audit: AuditResult) -> str:
    """Whether the conformance came out as the spec expects, or what was expected instead; empty where nothing ran."""
    conformance = audit.conformance
    if untested(audit):
        return f"NOT YET TESTED, trials are missing (expected {conformance_label(conformance.expect)})"
    if not conformance.expected:
        return f"NOT AS EXPECTED (expected {conformance_label(conformance.expect)})"
    return "" if conformance.status == "not-run" and not audit.executed else "as expected"


def interval(audit: AuditResult, verdict: Verdict) -> str:
    """The interval ``[lower, upper]`` that a claim's value lies in, each end rounded against the claim.

    An end that is only approximate is marked ``about``; a missing one is ``none``, or ``left out`` where the report
    leaves it out. Ends that cross, as they do when a bound is contradicted, leave nothing between them.
    """
    missing = "left out" if verdict.reason == LEFT_OUT_REASON else "none"
    if verdict.lower is None and verdict.upper is None:
        return missing
    low = high = missing
    if verdict.lower is not None:
        low = _about(audit, verdict.lower_finding) + decimals.lower(verdict.lower, against=verdict.claimed)
    if verdict.upper is not None:
        high = _about(audit, verdict.upper_finding) + decimals.upper(verdict.upper, against=verdict.claimed)
    crossed = verdict.lower is not None and verdict.upper is not None and verdict.lower > verdict.upper
    return f"[{low}, {high}]{' (empty)' if crossed else ''}"


def verdict_line(audit: AuditResult, verdict: Verdict) -> str:
    """A verdict with all that matters on one line: what is claimed, the interval, the outcome, the reason."""
    return (
        f"{headline(audit, verdict)}: {verdict.text}; interval {interval(audit, verdict)}; "
        f"{outcome(audit, verdict)}. {verdict.reason}"
    )


def conformance_line(audit: AuditResult) -> str:
    """A conformance on one line: its outcome and the reason."""
    parts = (conformance_label(audit.conformance.status), conformance_outcome(audit))
    return f"{', '.join(part for part in parts if part)}. {audit.conformance.reason}"


def trials(audit: AuditResult) -> str:
    """How many trials there are, of how many that were planned."""
    counted = f"{len(audit.trials)} of {count(audit.planned_trials, 'trial')}"
    return counted if audit.settled_after is None else f"{counted}, which decided all its claims"


def missing_trials(audit: AuditResult) -> str:
    """How many trials are there, and what to do about the others."""
    return f"{len(audit.trials)} of {audit.needed_trials} trials are there; a run with the same store goes on"


def claimed(verdict: Verdict) -> str:
    """The claimed value, ``epsilon 3``, where the claim's own text does not say it."""
    if verdict.claimed is None or decimals.exact(verdict.claimed) in verdict.text.split():
        return ""
    return f"{verdict.quantity} {decimals.exact(verdict.claimed)}"


def access(audit: AuditResult, verdict: Verdict) -> str:
    """What the adversary of a claim sees, where that is not every iterate: ``seeing the final model``; or nothing.

    Without it a claim about the final model alone reads like one about all of training. Metrics have no adversary.
    """
    if verdict.kind == "metric":
        return ""
    claims, threat = audit.document.get("claims", ()), audit.document.get("threat_model")
    blocks = [block for block in claims if isinstance(block, Mapping)] if isinstance(claims, list | tuple) else []
    own = next((block.get("access") for block in blocks if block.get("id") == verdict.claim), None)
    seen = own or (threat.get("access") if isinstance(threat, Mapping) else None)
    return "" if seen in (None, "all-iterates") else _ACCESS.get(str(seen), f"access {seen}")


def statement(finding: Finding) -> str:
    """A finding's number: ``epsilon <= 2.956``, ``accuracy = 0.941``; ``epsilon ~ 2.3`` where nothing is promised."""
    sign = {"upper": "<=", "lower": ">=", "estimate": "="}[finding.bound]
    if finding.rigor == "approximate":
        sign = "~"
    return f"{finding.quantity} {sign} {number(finding)}"


def number(finding: Finding) -> str:
    """A finding's value, rounded the way its bound points."""
    if finding.bound == "upper":
        return decimals.upper(finding.value)
    return decimals.lower(finding.value) if finding.bound == "lower" else decimals.nearest(finding.value)


def rigor(finding: Finding) -> str:
    """What kind of number it is: ``upper bound, certified``; an approximate value is never called a bound."""
    if finding.bound == "estimate":
        kind = "estimate"
    elif finding.rigor == "approximate":
        kind = f"{finding.bound} value"
    else:
        kind = f"{finding.bound} bound"
    text = f"{kind}: {_RIGOR[finding.rigor]}"
    if finding.rigor == "statistical" and finding.confidence is not None:
        text += f" at confidence {decimals.exact(finding.confidence)}"
    return text


def conditions(at: Mapping[str, Json]) -> str:
    """The conditions of a number: ``delta 1e-6, group_size 4``."""
    return ", ".join(f"{key} {value(item)}" for key, item in at.items())


def scope(finding: Finding) -> str:
    """What a number speaks of, in one sentence without a full stop; an estimate has no adversary."""
    of = finding.scope
    any_of_them = f"any {of.unit.partition(' (')[0]}"
    data, record = _DATA.get(of.data, of.data), any_of_them if of.record == "all" else _record(of.record)
    if finding.bound == "estimate":
        return f"the mechanism as {of.pipeline}, {data}"
    direction = "" if of.direction == "both" else f" (direction: {of.direction})"
    # Of one data set its size goes without saying.
    least = f" of at least {of.min_records} records" if of.min_records and of.data in ("all", "collection") else ""
    alike = f" (neighbours: {of.neighbours})" if of.neighbours != "all" and of.data in ("all", "collection") else ""
    return (
        f"the mechanism as {of.pipeline}, {neighbours(of.adjacency, of.unit)}{direction}{alike}, "
        f"{_ACCESS.get(of.access, of.access)}, {_ADVERSARY.get(of.adversary, of.adversary)}, {data}{least}, {record}"
    )


def neighbours(adjacency: str, unit: str) -> str:
    """What neighbours differ in: ``adding or removing records``, ``adding or removing a user (at most 8 records)``."""
    if unit == "record":
        return _ADJACENCY.get(adjacency, adjacency)
    return f"{_OF_UNITS[adjacency]} {unit}" if adjacency in _OF_UNITS else f"{adjacency} (unit: {unit})"


def _record(record: str | int) -> str:
    """An index, or a name that says why the record was chosen."""
    return f"record {record}" if isinstance(record, int) else f"the record {record.removeprefix('record ')!r}"


def of_scope(key: str, value: str) -> str:
    """One part of a scope by itself: ``the declared collection of data sets``."""
    return {"adjacency": _ADJACENCY, "access": _ACCESS, "adversary": _ADVERSARY, "data": _DATA}.get(key, {}).get(
        value, f"{key} {value}"
    )


def curve(of: ProvenCurve) -> str:
    """Which curve of an audit, as the end of a label: its group size, and its scope as far as the curves differ in it;
    empty for single records of the only scope."""
    scopes = (of_scope(key, str(getattr(of.scope, key))) for key in of.varying)
    return groups(of.group_size, of.scope.unit) + "".join(f", {text}" for text in scopes)


def groups(size: int, unit: str = "record") -> str:
    """A group size as the end of a label; of units that are no records, one is named too."""
    if unit != "record":
        return f", {several(size, unit)}"
    return "" if size == 1 else f", groups of {size}"


def value(item: Json) -> str:
    """A declared JSON value as people write it."""
    if isinstance(item, bool) or item is None:
        return {True: "true", False: "false", None: "none"}[item]
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        return decimals.given(item)
    if isinstance(item, Mapping):
        return ", ".join(f"{key} {value(part)}" for key, part in item.items())
    if isinstance(item, list | tuple):
        return "[" + ", ".join(value(part) for part in item) + "]"
    return str(item)


def sentence(text: str) -> str:
    """A text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def count(number: int, noun: str) -> str:
    """``1 claim``, ``2 claims``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def left_out(audit: AuditResult) -> str:
    """What was left out of a report, or nothing."""
    if not audit.left_out:
        return ""
    counts = " and ".join(f"{number} {privacy}" for privacy, number in audit.left_out.items())
    plural = "" if sum(audit.left_out.values()) == 1 else "s"
    return f"Left out: {counts} value{plural}; run with --internal to have them in a report that stays inside."


def _about(audit: AuditResult, index: int | None) -> str:
    if index is not None and 0 <= index < len(audit.findings) and audit.findings[index].rigor == "approximate":
        return "about "
    return ""
