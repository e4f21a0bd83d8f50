"""How a part of a result is said in plain English: a test of what ran, an assumption, the place of a value.

Text that a plugin may have brought in is returned as it is: escaping is the format's business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from dpspec.contract import Assumption, Check, Finding
from dpspec.contract.findings import AS_RUN
from dpspec.engine.judging.conformance_status import family_sizes, rejected
from dpspec.engine.results import decimals
from dpspec.engine.results.joined import apart
from dpspec.engine.results.result import AuditResult, Result
from dpspec.reporters import labels

_STATUS_ORDER = ("false", "unchecked", "reported", "declared", "not-rejected", "by-construction")


def assumptions_of(audit: AuditResult) -> list[Assumption]:
    """What the findings and the evidence of an audit rest on, each once; those that decide most come first."""
    held = [*(finding.assumptions for finding in findings(audit)), *(one.assumptions for one in audit.evidence)]
    return by_status(of for assumptions in held for of in assumptions)


def by_status(held: Iterable[Assumption]) -> list[Assumption]:
    """Each once; those that decide most come first."""
    return sorted(dict.fromkeys(held), key=lambda of: _STATUS_ORDER.index(of.status))


def assumption(of: Assumption, *, tested_above: bool = False) -> str:
    """What is known of an assumption: its text, and the test behind it where there is one.

    tested_above: the page has told of that test already.
    """
    text = of.text or of.name
    details = ["tested above" if tested_above else of.test or ""]
    if of.level is not None:
        details.append(f"level {decimals.nearest(of.level, digits=2)}")
    if of.detectable is not None and not tested_above:
        details.append(detectable(of.detectable))
    known = ", ".join(detail for detail in details if detail)
    return f"{text} ({known})" if known else text


def families(result: Result) -> list[int]:
    """For every audit among how many checks its own were judged: those of its invocation, times its looks."""
    return [
        family
        for part in apart(result)
        for family in family_sizes([(len(one.checks), len(one.trials), one.needed_trials) for one in part.audits])
    ]


def ranked(checks: Sequence[Check], family: int) -> list[tuple[Check, bool]]:
    """Every check with whether it is rejected: those that are first, the least p before the others, the rest as made.

    family: among how many checks they were judged, of :func:`families`.
    """
    told = [(one, _is_against(one, family)) for one in checks]
    bad = sorted((one for one, against in told if against), key=lambda one: one.p_value)
    return [*((one, True) for one in bad), *((one, False) for one, against in told if not against)]


def _is_against(check: Check, family: int) -> bool:
    """Whether a check is rejected, or what stands for its p-value is none: such a result was edited."""
    return not 0.0 <= check.p_value <= 1.0 or rejected(check, family)


def check(of: Check) -> str:
    """One test of the executed pipeline, its outcome and its power."""
    text = f"{of.assumption}{f', {of.note}' if of.note else ''}: {of.test}, p = {decimals.upper(of.p_value, digits=2)}"
    if of.declared is not None:
        text += f", declared {decimals.given(of.declared)}"
    if of.measured is not None:
        text += f", {of.observed} {decimals.nearest(of.measured)}"
    elif of.observed == "reported":
        text += ", reported by the backend"
    return text if of.detectable is None else f"{text}, {detectable(of.detectable)}"


def is_as_run(of: Finding) -> bool:
    """Whether a finding is told beside the conformance, and not among the others."""
    return of.quantity == AS_RUN and of.bound == "estimate"


def findings(audit: AuditResult) -> tuple[Finding, ...]:
    """The findings that are told of as such."""
    return tuple(finding for finding in audit.findings if not is_as_run(finding))


def as_run(audit: AuditResult) -> tuple[str, ...]:
    """Epsilon from what was measured, a line for each reading, group size and delta, and what all rest on; or none."""
    found = [finding for finding in audit.findings if is_as_run(finding)]
    given = [finding for finding in found if finding.lower is not None]
    assumed = dict.fromkeys(one.text for finding in given for one in finding.assumptions)
    sure = {decimals.exact(finding.confidence) for finding in given if finding.confidence is not None}
    lines = [_as_run(finding) for finding in found]
    if given:
        held = f" All intervals hold at joint confidence {', '.join(sorted(sure))}." if sure else ""
        deviates = audit.conformance.status == "deviates"
        doubt = " The run deviates and may violate this assumption." if deviates else ""
        lines.append(f"No claim depends on this estimate.{held} Assumption: {'; '.join(assumed)}.{doubt}")
    return tuple(lines)


def _as_run(of: Finding) -> str:
    if of.lower is None:
        missing = "; ".join(one.text for one in of.assumptions)
        return f"Estimated epsilon of the executed run ({of.method}): not available; missing: {missing}."
    high = "no upper end" if math.isinf(of.value) else decimals.upper(of.value)
    at = f" at {labels.conditions(of.at)}" if of.at else ""
    return f"Estimated epsilon of the executed run ({of.method}): {decimals.lower(of.lower)} to {high}{at}."


def foreseen(of: Check) -> str:
    """One test of the executed pipeline that is going to be made, and what it will detect."""
    power = "detection limit depends on the run" if of.detectable is None else detectable(of.detectable)
    return f"check {of.assumption}{f', {of.note}' if of.note else ''} ({of.test}, {of.observed}): {power}"


def detectable(deviation: float) -> str:
    """The smallest relative deviation that a test would have seen, rounded up, in words."""
    if deviation == 0:
        return "smallest detectable deviation: any"
    return f"smallest detectable deviation {decimals.upper(100 * deviation, digits=2)}%"


_PLACE = re.compile(r"(findings|verdicts|checks|series|evidence|power)\[(\d+)\]")


def place(result: Result, audit: str, what: str) -> str:
    """``quickstart: findings[3].value (epsilon <= 2.349, delta 1e-5)``: the audit, the path, and what stands there."""
    path = f"{audit}: {what}" if audit else what
    match = _PLACE.match(what)
    holder = next((one for one in result.audits if one.name == audit), None)
    if match is None or holder is None:
        return path
    said = _said(holder, match[1], int(match[2]))
    return f"{path} ({said})" if said else path


def _said(audit: AuditResult, part: str, index: int) -> str:
    """What a part of an audit is about; empty where there is none of that index."""
    parts = getattr(audit, part)
    if index >= len(parts):
        return ""
    one = parts[index]
    match part:
        case "findings":
            return ", ".join(text for text in (labels.statement(one), labels.conditions(one.at), one.method) if text)
        case "verdicts":
            return f"claim {one.claim}"
        case "checks":
            return ", ".join(text for text in (one.assumption, one.test, one.note) if text)
        case "series":
            return str(one.title)
        case "evidence":
            return str(one.id)
        case _:
            return f"{one.method}, {labels.conditions(one.at)}"
