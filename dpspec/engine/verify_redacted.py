"""Verifying a result that values were left out of: what can still be said of verdicts and checks that rest on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from dpspec.contract import Assumption, Check
from dpspec.engine.codec import encode
from dpspec.engine.judge import as_expected
from dpspec.engine.mismatch import Mismatch, compare
from dpspec.engine.redact import LEFT_OUT_REASON, redact_audit
from dpspec.engine.result import AuditResult

#: What a verdict says of its claim, whatever it rests on.
_OF_THE_CLAIM = ("kind", "text", "expect", "expected")


def comparable(old: AuditResult, new: AuditResult, family: int) -> tuple[AuditResult, AuditResult, list[Mismatch]]:
    """An audit that values were left out of and one recomputed, both without what cannot be compared, and what does not
    follow in that. family: how many checks the invocation made."""
    new = redact_audit(new, family)
    mismatches = list(_left_out(old, new))
    gone = [v.claim for v in old.verdicts if v.reason == LEFT_OUT_REASON]
    old, new, found = _without_checks(_without(old, gone), _without(new, gone))
    return old, new, [*mismatches, *found]


def _left_out(old: AuditResult, new: AuditResult) -> Iterator[Mismatch]:
    """What can still be said of verdicts that rest on values which were left out."""
    again = {verdict.claim: verdict for verdict in new.verdicts}
    for verdict in old.verdicts:
        if verdict.reason != LEFT_OUT_REASON:
            continue
        what, found = f"the verdict of {verdict.claim}", again.get(verdict.claim)
        if found is None:
            yield Mismatch(audit=old.name, what=what, recorded=verdict.verdict, recomputed="no such claim")
            continue
        found = dataclasses.replace(found, expected=as_expected(verdict.verdict, found.expect))
        for key in _OF_THE_CLAIM:
            yield from compare(old.name, f"{what}: {key}", encode(getattr(verdict, key)), encode(getattr(found, key)))
        # No value that was left out can turn what an attack rejects: the tests of privacy are a family of their own.
        rejected = verdict.kind != "metric" and found.verdict in ("refuted", "contradicted")
        differs = rejected and verdict.verdict not in ("refuted", "contradicted")
        yield Mismatch(
            audit=old.name,
            what=what,
            recorded=verdict.verdict,
            recomputed=found.verdict if differs else "rests on values that were left out of this result",
            differs=differs,
        )


def _without(audit: AuditResult, claims: Sequence[str]) -> AuditResult:
    return dataclasses.replace(audit, verdicts=tuple(v for v in audit.verdicts if v.claim not in claims))


def _without_checks(old: AuditResult, new: AuditResult) -> tuple[AuditResult, AuditResult, list[Mismatch]]:
    """Both without the checks that rest on evidence which was left out, and what these had joined elsewhere."""
    there = {_key(check) for check in new.checks}
    missing = [check for check in old.checks if _key(check) not in there]
    if not missing:
        return old, new, []
    differs = new.conformance.status == "deviates" and old.conformance.status != "deviates"
    found = Mismatch(
        audit=old.name,
        what="conformance",
        recorded=old.conformance.status,
        recomputed="deviates" if differs else f"{len(missing)} checks rest on values that were left out of this result",
        differs=differs,
    )
    kept = tuple(check for check in old.checks if _key(check) in there)
    old = _plainly(dataclasses.replace(old, checks=kept))
    return old, _plainly(dataclasses.replace(new, conformance=old.conformance)), [found]


def _key(check: Check) -> tuple[str, str, str, str]:
    return (check.assumption, check.test, check.note, check.observed)


def _plainly(audit: AuditResult) -> AuditResult:
    """Without what checks say of assumptions."""

    def plainly(held: Sequence[Assumption]) -> tuple[Assumption, ...]:
        return tuple(Assumption(name=a.name, status="declared", text=a.text) for a in held)

    return dataclasses.replace(
        audit,
        findings=tuple(dataclasses.replace(f, assumptions=plainly(f.assumptions)) for f in audit.findings),
        evidence=tuple(dataclasses.replace(e, assumptions=plainly(e.assumptions)) for e in audit.evidence),
    )
