"""What changed between two results: claims, verdicts, bounds, conformance, and what the audits declare.

A bound or a verdict is better or worse only where it is of the same claim: one that was changed, its delta or its scope
too, is told as changed, and what is said of it then is neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpspec.engine.results.declarations import Leaves, confidence, declared, of_data, shown, statement, text, wanted
from dpspec.engine.results.result import AuditResult, Result, Verdict

#: How a change reads for somebody who wants claims to hold.
Trend: TypeAlias = Literal["better", "worse", "other"]

_RANK = {"contradicted": 0, "refuted": 1, "open": 2, "supported": 3, "proved": 4}

#: Conformances from the worst: what deviates is known to be wrong, of what was not looked at nothing is known.
_LOOKED = {"deviates": 0, "checks-missing": 1, "not-run": 2, "no-deviation-found": 3}

#: The change that makes attacks refute less where it is raised, and statements hold less often where it is lowered.
CONFIDENCE = "audit.confidence"

#: Bounds that differ by less than this, relatively, have not changed.
_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference; ``claim`` is empty where it concerns the whole audit.

    of_claim: whether what is claimed, or how it is to come out, was itself changed, weakened or taken away.
    """

    audit: str
    claim: str
    what: str
    before: str
    after: str
    trend: Trend
    of_claim: bool = False


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


def failing(changes: tuple[Change, ...], *, allow_changed_claims: bool = False) -> tuple[Change, ...]:
    """What must not pass unseen: whatever got worse, and claims that were changed or taken away, unless allowed."""
    if allow_changed_claims:
        return tuple(change for change in changes if change.trend == "worse" and not change.of_claim)
    return tuple(change for change in changes if change.trend == "worse" or change.of_claim)


def regressions(baseline: Result, result: Result, *, allow_changed_claims: bool = False) -> tuple[Change, ...]:
    """What a gate fails on that compares with ``baseline``: verdicts and conformance that got worse or failed anew.

    So does a claim that is no longer the same, or is gone, unless ``allow_changed_claims``; also then it has to come
    out as expected. A claim that already came out wrong in the baseline is known; a bound that moved without changing a
    verdict is no failure. A claim or an audit that the baseline lacks fails where it does not come out as expected.
    """
    changes = diff(baseline, result)
    changed = {(change.audit, change.claim) for change in changes if change.of_claim}
    known = {
        (audit.name, verdict.claim) for audit in baseline.audits for verdict in audit.verdicts if not verdict.expected
    }
    seen = {(audit.name, verdict.claim) for audit in baseline.audits for verdict in audit.verdicts}
    worse = [
        change
        for change in failing(changes, allow_changed_claims=allow_changed_claims)
        if change.of_claim or change.what in ("verdict", "conformance")
    ]
    told = {(change.audit, change.claim) for change in worse if change.what in ("verdict", "conformance")}
    for audit in result.audits:
        for verdict in audit.verdicts:
            place = (audit.name, verdict.claim)
            if not verdict.expected and (place not in known or place in changed) and place not in told:
                before = "as expected" if place in seen - known else "not as expected" if place in seen else "absent"
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
    changes = [*_declared_changes(old, new)]
    before, after = {v.claim: v for v in old.verdicts}, {v.claim: v for v in new.verdicts}
    for claim in [*before, *(c for c in after if c not in before)]:
        was, now = before.get(claim), after.get(claim)
        if was is None or now is None:
            changes.append(_presence(old.name, claim, "claim", was is not None))
        else:
            stated = [*_claim_changes(old, was, new, now)]
            same = all(change.what == "expect" for change in stated)
            towards = wanted(statement(new, now), now) if same else 0
            changes.extend([*stated, *_verdict_changes(old.name, was, now, same=same, towards=towards)])
    if old.conformance.status != new.conformance.status:
        better = _LOOKED[new.conformance.status] > _LOOKED[old.conformance.status]
        trend: Trend = "worse" if not better else "better" if old.conformance.status == "deviates" else "other"
        changes.append(
            Change(
                audit=old.name,
                claim="",
                what="conformance",
                before=old.conformance.status,
                after=new.conformance.status,
                trend=trend,
            )
        )
    return changes


def _declared_changes(old: AuditResult, new: AuditResult) -> Iterator[Change]:
    """What the audit says otherwise: of the pipeline, of the attack, and of how sure it is to be."""

    def change(what: str, before: str, after: str, weaker: bool = False) -> Change:
        trend: Trend = "worse" if weaker else "other"
        return Change(audit=old.name, claim="", what=what, before=before, after=after, trend=trend, of_claim=weaker)

    was, now = confidence(old), confidence(new)
    expected, expects = old.conformance.expect, new.conformance.expect
    found = [change(path, before, after) for path, before, after in _differences(declared(old), declared(new))]
    if was is not None and was != now:
        raised = now is not None and now > was
        told = f"{_number(now)}, at which attacks refute less" if raised else _number(now)
        found.append(change(CONFIDENCE, _number(was), told, weaker=not raised))
    if expected != expects:
        found.append(change("audit.expect", expected, expects, weaker=expects != "no-deviation-found"))
    yield from found
    if not found and old.digest != new.digest:
        yield change("spec", old.digest[:12], new.digest[:12])


def _claim_changes(old: AuditResult, was: Verdict, new: AuditResult, now: Verdict) -> Iterator[Change]:
    """Everything that a claim says otherwise, and how it is expected to come out otherwise."""
    before, after = statement(old, was), statement(new, now)
    if before is None or after is None:
        before, after = shown(was), shown(now)
        if not _same(was.claimed, now.claimed):
            before, after = {**before, "claimed": was.claimed}, {**after, "claimed": now.claimed}
    elif any(before.get(key) != after.get(key) for key in ("over", "record")):  # which data that is then follows
        before, after = ({k: v for k, v in side.items() if not of_data(k)} for side in (before, after))
    for path, one, other in _differences(before, after):
        what = path if path == "claimed" else f"claim.{path}"
        yield Change(audit=old.name, claim=was.claim, what=what, before=one, after=other, trend="other", of_claim=True)
    if set(was.expect) != set(now.expect):
        weaker = not set(now.expect) <= set(was.expect)
        yield Change(
            audit=old.name,
            claim=was.claim,
            what="expect",
            before=" or ".join(was.expect),
            after=" or ".join(now.expect),
            trend="worse" if weaker else "other",
            of_claim=weaker,
        )


def _differences(before: Leaves, after: Leaves) -> Iterator[tuple[str, str, str]]:
    """Paths where two sets of values differ, with both as text."""
    for path in [*before, *(path for path in after if path not in before)]:
        if path not in before or path not in after or before[path] != after[path]:
            was, now = ("absent" if path not in side else text(side[path]) for side in (before, after))
            yield path, was, now


def _verdict_changes(audit: str, was: Verdict, now: Verdict, *, same: bool, towards: int) -> Iterator[Change]:
    """``same``: whether it is the same claim; of another one, nothing is better and nothing is worse.

    towards: 1 where larger bounds are better, -1 where smaller ones are, 0 where neither is.
    """
    if was.verdict != now.verdict:
        trend: Trend = "better" if _RANK[now.verdict] > _RANK[was.verdict] else "worse"
        yield Change(
            audit=audit,
            claim=was.claim,
            what="verdict",
            before=was.verdict,
            after=now.verdict,
            trend=trend if same else "other",
        )
    for what in ("upper", "lower"):
        old, new = getattr(was, what), getattr(now, what)
        if not _same(old, new):
            yield Change(
                audit=audit,
                claim=was.claim,
                what=what,
                before=_number(old),
                after=_number(new),
                trend=_trend(old, new, towards),
            )


def _trend(old: float | None, new: float | None, towards: int) -> Trend:
    if old is None or new is None or towards == 0:
        return "other"
    return "better" if (new > old) == (towards > 0) else "worse"


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
        trend="worse" if removed else "other",
        of_claim=removed,
    )
