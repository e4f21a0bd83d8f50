"""What leaves the house: a result without the numbers that speak of the rows rather than of the mechanism.

Findings and series marked ``data-dependent`` or ``per-record`` are removed, and whatever repeats them goes with them:
the ends of a verdict's interval and its reason, the evidence of a quantity none of whose findings is public, and of
each trial's evidence the part under :data:`INTERNAL`. Checks that speak of the rows are blurred (``blur``). Every audit
says in ``left_out`` how many values it lost, so that readers know and ``verify`` can compare.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from dpspec.contract import FrozenMap
from dpspec.engine.blur import blurred
from dpspec.engine.joined import apart
from dpspec.engine.result import AuditResult, Result, TrialRecord, Verdict

#: The key of a trial's evidence under which it keeps what no report may show.
INTERNAL = "internal"

#: What stands in for a reason that may quote a number which was left out.
LEFT_OUT_REASON = "It rests on a number that speaks of the data itself, which is left out here."


def redact(result: Result) -> Result:
    """The result without data-dependent and per-record values; redacting twice is redacting once."""
    if result.parts:
        return dataclasses.replace(
            result, audits=tuple(audit for part in apart(result) for audit in redact(part).audits)
        )
    family = sum(len(audit.checks) for audit in result.audits)
    return dataclasses.replace(result, audits=tuple(redact_audit(audit, family) for audit in result.audits))


def redact_audit(audit: AuditResult, family: int) -> AuditResult:
    """One audit without its data-dependent and per-record values; ``family``: how many checks the invocation made."""
    sharp = sum(check.privacy != "public" and check.measured is not None for check in audit.checks)
    audit = blurred(audit, family)
    classes = [*(finding.privacy for finding in audit.findings), *(series.privacy for series in audit.series)]
    hidden = Counter(privacy for privacy in classes if privacy != "public")
    hidden.update({"data-dependent": sharp} if sharp else {})
    if not hidden and (_public(audit) or not any(INTERNAL in trial.evidence for trial in audit.trials)):
        return audit
    kept = [index for index, finding in enumerate(audit.findings) if finding.privacy == "public"]
    moved = {old: new for new, old in enumerate(kept)}
    public = {audit.findings[index].quantity for index in kept}
    secret = {finding.quantity for finding in audit.findings} - public
    return dataclasses.replace(
        audit,
        findings=tuple(audit.findings[index] for index in kept),
        series=tuple(series for series in audit.series if series.privacy == "public"),
        verdicts=tuple(_verdict(verdict, moved) for verdict in audit.verdicts),
        evidence=tuple(evidence for evidence in audit.evidence if evidence.quantity not in secret),
        trials=tuple(_trial(trial) for trial in audit.trials),
        left_out=FrozenMap(dict(sorted((Counter(audit.left_out) + hidden).items()))),
    )


def _public(audit: AuditResult) -> bool:
    data = audit.document.get("data", {})
    return isinstance(data, Mapping) and bool(data.get("public", False))


def _trial(trial: TrialRecord) -> TrialRecord:
    evidence = {key: value for key, value in trial.evidence.items() if key != INTERNAL}
    return dataclasses.replace(trial, evidence=FrozenMap(evidence))


def _verdict(verdict: Verdict, moved: Mapping[int, int]) -> Verdict:
    """Point a verdict at the findings' new places, and drop what it repeats of findings that are gone."""
    upper, lower = verdict.upper_finding, verdict.lower_finding
    changed = dataclasses.replace(
        verdict,
        upper_finding=None if upper is None else moved.get(upper),
        lower_finding=None if lower is None else moved.get(lower),
    )
    lost_upper = upper is not None and upper not in moved
    lost_lower = lower is not None and lower not in moved
    if lost_upper:
        changed = dataclasses.replace(changed, upper=None, provable=None)
    if lost_lower:
        changed = dataclasses.replace(changed, lower=None)
    # A p-value may be that of the very counts that are gone, and tells them exactly.
    return dataclasses.replace(changed, p_value=None, reason=LEFT_OUT_REASON) if lost_upper or lost_lower else changed
