"""Results without the values that reveal the rows, for reports.

Redaction removes findings and series marked ``data-dependent`` or ``per-record``, and values that repeat them: the ends
and the reason of a verdict, the evidence of a quantity without public findings, and the part :data:`INTERNAL` of each
trial's evidence. ``left_out`` counts the removed values of each audit, which ``verify`` compares.

A check on the rows keeps only its rejection and rough size: the power of ten of a small p-value, and one digit of the
detectable deviation. The conformance's sentence is rebuilt from these. Its assumptions keep the same digit.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dpspec import decimals
from dpspec.contract import Assumption, Check, Evidence, Finding, FrozenMap
from dpspec.contract.results import AuditResult, Result, Verdict
from dpspec.results.conformance_status import inspections, missing, reason, rejected
from dpspec.stats.conformance.measurement import LEVEL

#: The key of a trial's evidence that no report may show.
INTERNAL = "internal"

_Assuming = TypeVar("_Assuming", Finding, Evidence)

#: The reason of a verdict that depended on a removed value.
LEFT_OUT_REASON = "It depends on a data-dependent number, which this report omits."


def redact(result: Result) -> Result:
    """Idempotent."""
    family = sum(len(audit.checks) for audit in result.audits)
    return dataclasses.replace(result, audits=tuple(redact_audit(audit, family) for audit in result.audits))


def redact_audit(audit: AuditResult, family: int) -> AuditResult:
    """``family`` is the number of checks of the invocation."""
    sharp = sum(check.privacy != "public" and check.measured is not None for check in audit.checks)
    audit = coarsened(audit, family)
    classes = [*(finding.privacy for finding in audit.findings), *(series.privacy for series in audit.series)]
    hidden = Counter(privacy for privacy in classes if privacy != "public")
    hidden.update({"data-dependent": sharp} if sharp else {})
    data = audit.document.get("data", {})
    is_public = isinstance(data, Mapping) and bool(data.get("public", False))
    if not hidden and (is_public or not any(INTERNAL in trial.evidence for trial in audit.trials)):
        return audit
    public_places = [index for index, finding in enumerate(audit.findings) if finding.privacy == "public"]
    moved = {old: new for new, old in enumerate(public_places)}
    public = {audit.findings[index].quantity for index in public_places}
    secret = {finding.quantity for finding in audit.findings} - public
    trials = []
    for trial in audit.trials:
        evidence = {key: value for key, value in trial.evidence.items() if key != INTERNAL}
        trials.append(dataclasses.replace(trial, evidence=FrozenMap(evidence)))
    return dataclasses.replace(
        audit,
        findings=tuple(audit.findings[index] for index in public_places),
        series=tuple(series for series in audit.series if series.privacy == "public"),
        verdicts=tuple(_verdict(verdict, moved) for verdict in audit.verdicts),
        evidence=tuple(evidence for evidence in audit.evidence if evidence.quantity not in secret),
        trials=tuple(trials),
        left_out=FrozenMap(dict(sorted((Counter(audit.left_out) + hidden).items()))),
    )


def _verdict(verdict: Verdict, moved: Mapping[int, int]) -> Verdict:
    changes: dict[str, Any] = {}
    for end, repeated in (("upper", ("upper", "provable")), ("lower", ("lower",))):
        index = getattr(verdict, f"{end}_finding")
        if index is not None:
            changes[f"{end}_finding"] = moved.get(index)
            if index not in moved:  # a p-value may reveal the removed counts exactly
                changes |= {**dict.fromkeys((*repeated, "p_value")), "reason": LEFT_OUT_REASON, "left_out": True}
    return dataclasses.replace(verdict, **changes)


def coarsened(audit: AuditResult, family: int) -> AuditResult:
    audit = with_assumptions(audit, _coarse_assumption)
    checks = tuple(map(_coarse, audit.checks))
    if checks == audit.checks:
        return audit
    family *= inspections(len(audit.trials), audit.planned_trials)
    bad = [new for old, new in zip(audit.checks, checks, strict=True) if rejected(old, family)]
    absent = missing(audit.promised, checks) if audit.executed else ()
    conformance = dataclasses.replace(audit.conformance, reason=reason(bad, checks, absent))
    return dataclasses.replace(audit, checks=checks, conformance=conformance)


def _coarse_assumption(assumption: Assumption) -> Assumption:
    if assumption.privacy == "public":
        return assumption
    return dataclasses.replace(assumption, detectable=_one_digit(assumption.detectable))


def with_assumptions(audit: AuditResult, changed: Callable[[Assumption], Assumption]) -> AuditResult:
    """The audit with changed assumptions of its findings and its evidence."""

    def with_changed(outcome: _Assuming) -> _Assuming:
        assumptions = tuple(map(changed, outcome.assumptions))
        return outcome if assumptions == outcome.assumptions else dataclasses.replace(outcome, assumptions=assumptions)

    return dataclasses.replace(
        audit,
        findings=tuple(map(with_changed, audit.findings)),
        evidence=tuple(map(with_changed, audit.evidence)),
    )


def _coarse(check: Check) -> Check:
    if check.privacy == "public":
        return check
    p_value = 1.0
    if check.p_value <= LEVEL:  # rounded up to a power of ten
        p_value = 10.0 ** math.ceil(math.log10(check.p_value) - 1e-9) if check.p_value > 0.0 else 0.0
    return dataclasses.replace(check, measured=None, p_value=p_value, detectable=_one_digit(check.detectable))


def _one_digit(detectable: float | None) -> float | None:
    if detectable is None or not 0.0 < detectable < math.inf:
        return detectable
    return float(decimals.upper(detectable, digits=1))
