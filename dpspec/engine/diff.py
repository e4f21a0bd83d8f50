"""What changed between two results: verdicts, bounds, conformance, and claims that came or went."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpspec.engine.result import AuditResult, Result, Verdict

#: How a change reads for somebody who wants claims to hold.
Trend: TypeAlias = Literal["better", "worse", "other"]

_RANK = {"contradicted": 0, "refuted": 1, "open": 2, "supported": 3, "proved": 4}

#: Bounds that differ by less than this, relatively, have not changed.
_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference; ``claim`` is empty where it concerns the whole audit."""

    audit: str
    claim: str
    what: str
    before: str
    after: str
    trend: Trend


def diff(a: Result, b: Result) -> tuple[Change, ...]:
    """Every change from result ``a`` to result ``b``, audits matched by name and claims by id."""
    before, after = {x.name: x for x in a.audits}, {x.name: x for x in b.audits}
    changes: list[Change] = []
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            changes.append(_presence(name, "", "audit", old is not None))
        else:
            changes.extend(_audit_changes(old, new))
    return tuple(changes)


def regressions(baseline: Result, result: Result) -> tuple[Change, ...]:
    """What a gate fails on that compares with ``baseline``: verdicts and conformance that got worse or failed anew.

    A claim that already came out wrong in the baseline is known; a bound that moved without changing a verdict is no
    failure. A claim or an audit that the baseline lacks fails where it does not come out as expected.
    """
    known = {
        (audit.name, verdict.claim) for audit in baseline.audits for verdict in audit.verdicts if not verdict.expected
    }
    seen = {(audit.name, verdict.claim) for audit in baseline.audits for verdict in audit.verdicts}
    worse = [
        change
        for change in diff(baseline, result)
        if change.trend == "worse" and change.what in ("verdict", "conformance")
    ]
    told = {(change.audit, change.claim) for change in worse}
    for audit in result.audits:
        for verdict in audit.verdicts:
            place = (audit.name, verdict.claim)
            if not verdict.expected and place not in known and place not in told:
                before = "as expected" if place in seen else "absent"
                worse.append(
                    Change(
                        audit=audit.name,
                        claim=verdict.claim,
                        what="verdict",
                        before=before,
                        after=f"{verdict.verdict}, not as expected",
                        trend="worse",
                    )
                )
        wrong = {a.name for a in baseline.audits if not a.conformance.expected}
        if not audit.conformance.expected and audit.name not in wrong and (audit.name, "") not in told:
            worse.append(
                Change(
                    audit=audit.name,
                    claim="",
                    what="conformance",
                    before="as expected",
                    after=f"{audit.conformance.status}, not as expected",
                    trend="worse",
                )
            )
    return tuple(worse)


def _audit_changes(old: AuditResult, new: AuditResult) -> list[Change]:
    changes: list[Change] = []
    if old.digest != new.digest:
        changes.append(
            Change(audit=old.name, claim="", what="spec", before=old.digest[:12], after=new.digest[:12], trend="other")
        )
    before, after = {v.claim: v for v in old.verdicts}, {v.claim: v for v in new.verdicts}
    for claim in [*before, *(c for c in after if c not in before)]:
        was, now = before.get(claim), after.get(claim)
        if was is None or now is None:
            changes.append(_presence(old.name, claim, "claim", was is not None))
        else:
            changes.extend(_verdict_changes(old.name, was, now))
    if old.conformance.status != new.conformance.status:
        trend: Trend = "worse" if new.conformance.status == "deviates" else "other"
        changes.append(
            Change(
                audit=old.name,
                claim="",
                what="conformance",
                before=old.conformance.status,
                after=new.conformance.status,
                trend="better" if old.conformance.status == "deviates" else trend,
            )
        )
    return changes


def _verdict_changes(audit: str, was: Verdict, now: Verdict) -> list[Change]:
    changes = []
    if was.verdict != now.verdict:
        trend: Trend = "better" if _RANK[now.verdict] > _RANK[was.verdict] else "worse"
        if not _same(was.claimed, now.claimed):  # another claim: its verdict is no better and no worse
            trend = "other"
        changes.append(
            Change(audit=audit, claim=was.claim, what="verdict", before=was.verdict, after=now.verdict, trend=trend)
        )
    for what in ("claimed", "upper", "lower"):
        old, new = getattr(was, what), getattr(now, what)
        if not _same(old, new):
            changes.append(
                Change(
                    audit=audit,
                    claim=was.claim,
                    what=what,
                    before=_number(old),
                    after=_number(new),
                    trend=_trend(what, old, new),
                )
            )
    return changes


def _trend(what: str, old: float | None, new: float | None) -> Trend:
    if what == "claimed" or old is None or new is None:
        return "other"
    return "worse" if new > old else "better"


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return a == b or math.isclose(a, b, rel_tol=_TOLERANCE)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _presence(audit: str, claim: str, what: str, removed: bool) -> Change:
    return Change(
        audit=audit,
        claim=claim,
        what=what,
        before="present" if removed else "absent",
        after="absent" if removed else "present",
        trend="other",
    )
