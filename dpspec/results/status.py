"""The outcome of an audit: failures, undecided claims, open and accepted cautions, and controls.

Every report, gate and tracker reads these facts and decides nothing itself: one problem is one failure, result or row.
The exit code is a property of the result (``dpspec.contract.results``), the words are in ``dpspec.reporters.summary``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpspec.contract.executed import FiredRule
from dpspec.contract.results import AuditResult, Result, Verdict, claim_block, fired_rules

ProblemKind: TypeAlias = Literal["claim", "conformance", "caution", "trials"]

#: The verdicts that a control may expect; ``open`` for an attack that is too weak in some cells of a matrix.
CONTROL_VERDICTS = frozenset({"contradicted", "refuted", "open"})

#: The verdict of trials that do not exist yet.
INCOMPLETE = "incomplete"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A reason why an audit does not pass.

    Attributes:
        kind: The subject of the problem.
        name: The claim's id or the rule's name; empty for the conformance and for missing trials.
        claim: The id of the claim that it is about; empty for the whole audit.
        status: The verdict, the conformance, ``caution`` or ``incomplete``.
        certain: False if the missing trials may resolve it.
        verdict: The judgement of a claim.
        caution: The rule that fired.
    """

    kind: ProblemKind
    name: str
    status: str
    claim: str = ""
    certain: bool = True
    verdict: Verdict | None = None
    caution: FiredRule | None = None


def problems(audit: AuditResult) -> Iterator[Problem]:
    """Claims first, then the conformance, open cautions and missing trials. Empty for an audit that passes."""
    for verdict in audit.verdicts:
        if not verdict.expected:
            certain = not is_pending(audit, verdict)
            yield Problem(
                kind="claim",
                name=verdict.claim,
                claim=verdict.claim,
                status=verdict.verdict,
                certain=certain,
                verdict=verdict,
            )
    if wrong_conformance(audit):
        yield Problem(kind="conformance", name="", status=audit.conformance.status)
    for claim, rule in fired_rules(audit):
        if not rule.accepted:
            yield Problem(kind="caution", name=rule.name, claim=claim, status="caution", caution=rule)
    if not audit.complete:
        yield Problem(kind="trials", name="", status=INCOMPLETE, certain=False)


def has_failed(result: Result) -> bool:
    """Whether there is a failure that missing trials cannot change, a spec with errors, or a regression."""
    return bool(result.unjudged or result.regressions) or any(
        problem.certain for audit in result.audits for problem in problems(audit)
    )


def is_control(audit: AuditResult, verdict: Verdict) -> bool:
    """Whether the claim is false on purpose, to test the audit.

    By the key ``control``; without it a claim that only an attack may refute, and that expects this.
    """
    block = claim_block(audit, verdict)
    declared = block.get("control", block.get("refuted_by") == "attack")
    return bool(declared) and set(verdict.expect) <= CONTROL_VERDICTS


def is_pending(audit: AuditResult, verdict: Verdict) -> bool:
    """Whether missing trials may still give an unexpected claim the expected verdict."""
    return not verdict.expected and not audit.complete and verdict.verdict not in ("refuted", "contradicted")


def not_yet_tested(audit: AuditResult) -> bool:
    """Whether the conformance is unknown because trials are missing."""
    return audit.conformance.status == "not-run" and not audit.complete


def wrong_conformance(audit: AuditResult) -> bool:
    """Whether the conformance is unexpected, and known."""
    return not (audit.conformance.expected or not_yet_tested(audit))


def is_doubted(audit: AuditResult, verdict: Verdict) -> bool:
    """Whether an open caution is about a claim, or about the whole run."""
    return any(not rule.accepted and claim in ("", verdict.claim) for claim, rule in fired_rules(audit))


def narrowed_data(audit: AuditResult, verdict: Verdict) -> str:
    """``collection`` or ``this`` if the bound that proves a privacy claim holds for these datasets only; else empty."""
    if verdict.kind == "metric" or verdict.verdict != "proved":
        return ""
    index = verdict.upper_finding
    if index is not None and 0 <= index < len(audit.findings):
        data = audit.findings[index].scope.data
        return "" if data == "all" else data
    over = claim_block(audit, verdict).get("over")  # a public report may omit the finding
    return str(over) if over in ("collection", "this") else ""
