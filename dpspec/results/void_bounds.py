"""The presentation of a recorded run that deviates: its schedule's bounds do not apply to it."""

from dataclasses import replace

from dpspec.contract.results import AuditResult, Result, Verdict


def without_void_bounds(result: Result) -> Result:
    """The result without bounds, curves and remedies of recorded runs that deviate; attacks on them remain.

    Reports for people show this result. The JSON has all numbers.
    """
    return replace(result, audits=tuple(map(_without_void_bounds, result.audits)))


def has_void_bounds(audit: AuditResult) -> bool:
    """Whether the audit is of a recorded run that deviates from its declaration or schedule."""
    return audit.recording is not None and audit.conformance.status == "deviates"


def _without_void_bounds(audit: AuditResult) -> AuditResult:
    recording = audit.recording
    if recording is None or not has_void_bounds(audit):
        return audit
    remaining = [i for i, f in enumerate(audit.findings) if f.rigor == "statistical" and f.scope.pipeline == "executed"]
    accountant = recording.accountant
    if accountant is not None:
        accountant = replace(accountant, difference="The run deviates: this is not its cost.")

    def shown(verdict: Verdict) -> Verdict:
        shown_index = None
        if verdict.lower_finding is not None and verdict.lower_finding in remaining:
            shown_index = remaining.index(verdict.lower_finding)
        lower = verdict.lower if shown_index is not None else None
        return replace(verdict, upper=None, upper_finding=None, provable=None, lower=lower, lower_finding=shown_index)

    return replace(
        audit,
        findings=tuple(audit.findings[i] for i in remaining),
        verdicts=tuple(map(shown, audit.verdicts)),
        series=(),
        remedies=(),
        recording=replace(recording, confirm=(), accountant=accountant),
    )
