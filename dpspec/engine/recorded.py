"""What is taken of an audit as it stands where the arrays of its trials, which only the store holds, are missing."""

from __future__ import annotations

from collections.abc import Sequence

from dpspec.contract import Finding, Series
from dpspec.engine.outcomes import Outcomes
from dpspec.engine.result import AuditResult


def as_recorded(audit: AuditResult, bounds: Sequence[Finding | Series]) -> Outcomes:
    """Bounds as they were computed anew, and what followed from the trials as the result says.

    A result lists what followed from the bounds first; a redacted one has lost those that speak of the data.
    """
    outcomes = Outcomes()
    for bound in bounds:
        outcomes.add(bound)
    told = [bound for bound in bounds if not audit.left_out or bound.privacy == "public"]
    findings = sum(isinstance(bound, Finding) for bound in told)
    outcomes.findings.extend(audit.findings[findings:])
    outcomes.series.extend(audit.series[len(told) - findings :])
    outcomes.checks.extend(audit.checks)
    outcomes.evidence.extend(audit.evidence)
    return outcomes
