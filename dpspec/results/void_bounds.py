"""The presentation of a run that deviates: the bounds of the declared mechanism or schedule do not apply to it."""

from dataclasses import replace

from dpspec.contract.results import AuditResult, Result, Verdict
from dpspec.results.redact import redact


def without_void_bounds(result: Result) -> Result:
    """The result without bounds, curves and remedies of runs that deviate; attacks on them and metrics remain.

    Reports for people show this result. The JSON has all numbers.
    """
    return replace(result, audits=tuple(map(_without_void_bounds, result.audits)))


def for_readers(result: Result, *, internal: bool = False) -> Result:
    """The result as reports for people show it; without ``internal`` also redacted."""
    return without_void_bounds(result if internal else redact(result))


def has_void_bounds(audit: AuditResult) -> bool:
    """Whether the audit is of a run that deviates from its declaration or schedule."""
    return audit.conformance.status == "deviates"


def _without_void_bounds(audit: AuditResult) -> AuditResult:
    if not has_void_bounds(audit):
        return audit
    measured = {v.lower_finding for v in audit.verdicts if v.kind == "metric"}
    measured |= {v.upper_finding for v in audit.verdicts if v.kind == "metric"}
    remaining = [
        index
        for index, finding in enumerate(audit.findings)
        if index in measured or (finding.rigor == "statistical" and finding.scope.pipeline == "executed")
    ]
    new_index = {old: new for new, old in enumerate(remaining)}

    def shown(verdict: Verdict) -> Verdict:
        lower, upper = (
            new_index.get(i) if i is not None else None for i in (verdict.lower_finding, verdict.upper_finding)
        )
        return replace(
            verdict,
            lower=None if lower is None else verdict.lower,
            lower_finding=lower,
            upper=None if upper is None else verdict.upper,
            upper_finding=upper,
            provable=None,
        )

    return replace(
        audit,
        findings=tuple(audit.findings[index] for index in remaining),
        verdicts=tuple(map(shown, audit.verdicts)),
        series=(),
        remedies=(),
        recording=None if audit.recording is None else audit.recording.of_deviating_run(),
    )
