"""Changes between two results: claims, verdicts, bounds, conformance and declarations.

A bound or a verdict is better or worse only for the same claim. If a claim should be refuted, its bounds are neither,
and its verdict only if it becomes expected or unexpected. A claim with another number or scope is a changed claim. Keys
that an earlier version lacks have their default values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpspec.contract import Json, ThreatModel, thaw
from dpspec.contract.results import AuditResult, Result, Verdict, accepted_cautions, open_cautions
from dpspec.contract.spec import unit_in_words
from dpspec.results.differing import Difference, differing, equal

#: Defaults of the threat model, and its keys that a claim may narrow.
_DEFAULTS: dict[str, Json] = {
    field.name: field.default for field in dataclasses.fields(ThreatModel) if field.default is not dataclasses.MISSING
}
_NARROWED = ("adjacency", "access", "direction", "min_records", "neighbours")

#: Keys of a claim that are not part of its statement.
_ASIDE = frozenset({"id", "expect", "control", "accept"})

#: Blocks that declare the pipeline and the attack. Every claim contains the threat model.
_BLOCKS = ("mechanism", "data", "model", "training", "audit")

#: Keys of ``audit`` that are compared separately.
_TOLD = frozenset({"expect", "confidence"})


def statement(audit: AuditResult, verdict: Verdict) -> dict[str, Json] | None:
    """None if the result's document lacks the claim."""
    document = thaw(audit.document)
    claims, threat = document.get("claims"), document.get("threat_model")
    threat = threat if isinstance(threat, dict) else {}
    for claim in claims if isinstance(claims, list) else ():
        if isinstance(claim, dict) and claim.get("id") == verdict.claim:
            # The attacked group sizes are not part of a claim, which states its group size.
            model = {**_DEFAULTS, **{key: value for key, value in threat.items() if key != "group_size"}}
            scope = {key: model.pop(key) for key in _NARROWED}
            model["unit"] = unit_in_words(str(model["unit"]), document.get("data") or {})
            claim_keys = {key: value for key, value in claim.items() if key not in _ASIDE}
            stated = {"group_size": 1, **scope, **claim_keys}
            over, record = claim_keys.get("over"), claim_keys.get("record")
            of_rows = over == "this" or (over is None and claim_keys.get("kind") == "per-instance-dp")
            if of_rows or record not in (None, "all"):
                stated["rows"] = rows(audit)
            if over not in (None, "all", "this"):
                mechanism = document.get("mechanism")
                limits = mechanism.get("collection") if isinstance(mechanism, dict) else None
                stated["collection"] = {"records": audit.facts.records, "limits": limits or None}
            return {**stated, "threat_model": model}
    return None


def rows(audit: AuditResult) -> str:
    digest = audit.facts.digest
    return f"{audit.facts.records} records, {f'digest {digest[:12]}' if digest else 'declared without rows'}"


def declared(audit: AuditResult) -> dict[str, Json]:
    document = thaw(audit.document)
    blocks = {block: document[block] for block in _BLOCKS if block in document} | {"rows": rows(audit)}
    if isinstance(block := blocks.get("audit"), dict):
        blocks["audit"] = {key: value for key, value in block.items() if key not in _TOLD}
    if audit.facts.initial_weights is not None:
        blocks["initial weights"] = f"digest {audit.facts.initial_weights[:12]}"
    return blocks


def confidence(audit: AuditResult) -> float | None:
    block = audit.document.get("audit")
    value = block.get("confidence") if isinstance(block, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


#: The effect of a change on claims that should hold.
Trend: TypeAlias = Literal["better", "worse", "other"]

_RANK = {"contradicted": 0, "refuted": 1, "open": 2, "supported": 3, "proved": 4}

#: Conformances from worst to best.
_LOOKED = {"deviates": 0, "checks-missing": 1, "not-run": 2, "no-deviation-found": 3}

#: The states of a caution from worst to best.
_CAUTIONS = ("open", "accepted", "absent")


def _cautions(audit: AuditResult) -> dict[str, str]:
    """The cautions by rule: ``open`` or ``accepted``."""
    states = {rule.name: "accepted" for rule in accepted_cautions(audit)}
    return states | {rule.name: "open" for rule in open_cautions(audit)}


#: Relative difference up to which ends of bounds are equal: another version sums on other grids, which moves them by
#: 1e-8.
_SAME_END = 1e-6

#: The change that, if raised, makes attacks refute less, and if lowered, makes statements hold less often.
CONFIDENCE = "audit.confidence"


@dataclass(frozen=True)
class Change(Difference):
    """A difference between two results.

    Attributes:
        trend: Its effect on claims that should hold.
        claim: The claim; empty for the whole audit.
        of_claim: Whether the claim or its expectation changed.
        quantity: Of the ends ``upper`` and ``lower``, such as epsilon.
        of_declaration: Whether the spec or the rows changed.
    """

    trend: Trend
    claim: str = ""
    of_claim: bool = False
    quantity: str = ""
    of_declaration: bool = False


def diff(a: Result, b: Result) -> tuple[Change, ...]:
    """All changes from result ``a`` to result ``b``, with audits matched by name and claims by id."""
    before, after = {x.name: x for x in a.audits}, {x.name: x for x in b.audits}
    changes: list[Change] = []
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            changes.append(_presence(name, "", "audit", old is not None))
        else:
            changes.extend(_audit_changes(old, new))
    return tuple(changes)


def _failing(changes: tuple[Change, ...], *, allow_changed_claims: bool) -> tuple[Change, ...]:
    if allow_changed_claims:
        return tuple(change for change in changes if change.trend == "worse" and not change.of_claim)
    return tuple(change for change in changes if change.trend == "worse" or change.of_claim)


def regressions(baseline: Result, result: Result, *, allow_changed_claims: bool = False) -> tuple[Change, ...]:
    """Changes that fail a gate against ``baseline``, and ``dpspec diff``: one comparison for both.

    Worse bounds, verdicts, conformances and cautions fail. A changed or removed claim fails too, unless
    ``allow_changed_claims``; it must then still be as expected. A claim that is not as expected in the baseline is
    known. A new claim or audit fails if it is not as expected.
    """
    changes = diff(baseline, result)
    changed = {(change.audit, change.claim) for change in changes if change.of_claim and change.claim}
    worse = list(_failing(changes, allow_changed_claims=allow_changed_claims))
    reported = {(change.audit, change.claim) for change in worse if change.what in ("verdict", "conformance")}
    before = _statuses(baseline)
    for key, (status, expected) in _statuses(result).items():
        _, was_expected = before.get(key, ("", None))
        if not expected and key not in reported and (was_expected is not False or key in changed):
            was = {True: "as expected", False: "not as expected", None: "absent"}[was_expected]
            quantity = "verdict" if key[1] else "conformance"
            audit, claim = key
            worse.append(Change(audit, quantity, was, f"{status}, not as expected", "worse", claim))
    return tuple(worse)


def _statuses(result: Result) -> dict[tuple[str, str], tuple[str, bool]]:
    """By audit and claim (empty for the conformance) the status, and whether it is expected."""
    statuses: dict[tuple[str, str], tuple[str, bool]] = {}
    for audit in result.audits:
        statuses |= {(audit.name, verdict.claim): (verdict.verdict, verdict.expected) for verdict in audit.verdicts}
        statuses[audit.name, ""] = (audit.conformance.status, audit.conformance.expected)
    return statuses


def _audit_changes(old: AuditResult, new: AuditResult) -> Iterator[Change]:
    yield from _declared_changes(old, new)
    before, after = {v.claim: v for v in old.verdicts}, {v.claim: v for v in new.verdicts}
    for claim in [*before, *(c for c in after if c not in before)]:
        was, now = before.get(claim), after.get(claim)
        if was is None or now is None:
            yield _presence(old.name, claim, "claim", was is not None)
            continue
        stated = [*_claim_changes(old, was, new, now)]
        yield from stated
        same = all(change.what == "expect" for change in stated)
        should_fail = set(now.expect) <= {"refuted", "contradicted"}
        if was.verdict != now.verdict:
            trend: Trend = "better" if _RANK[now.verdict] > _RANK[was.verdict] else "worse"
            if was.expected != now.expected:
                trend = "better" if now.expected else "worse"
            elif should_fail:  # neither verdict of a control is better
                trend = "other"
            yield Change(old.name, "verdict", was.verdict, now.verdict, trend if same else "other", claim)
        limits = (statement(new, now) or {}) if now.kind == "metric" else {"at_most": now.claimed or 0.0}
        # 1 if a larger value is better, -1 if a smaller one is, 0 if the claim does not say.
        towards = (limits.get("at_most") is None) - (limits.get("at_least") is None) if same and not should_fail else 0
        for end in ("upper", "lower"):
            old_end, new_end = getattr(was, end), getattr(now, end)
            if not (equal(old_end, new_end) or _is_same_end(old_end, new_end)):
                trend = "other"
                if old_end is not None and new_end is not None and towards != 0:
                    trend = "better" if (new_end > old_end) == (towards > 0) else "worse"
                yield Change(old.name, end, _number(old_end), _number(new_end), trend, claim, quantity=now.quantity)
    cautions = [_cautions(audit) for audit in (old, new)]
    for rule in dict.fromkeys([*cautions[0], *cautions[1]]):
        states = [of_audit.get(rule, "absent") for of_audit in cautions]
        if states[0] != states[1]:
            trend = "better" if _CAUTIONS.index(states[1]) > _CAUTIONS.index(states[0]) else "worse"
            yield Change(old.name, f"caution {rule}", states[0], states[1], trend)
    status = old.conformance.status
    if status != new.conformance.status:
        better = _LOOKED[new.conformance.status] > _LOOKED[status]
        trend = "worse" if not better else "better" if status == "deviates" else "other"
        yield Change(old.name, "conformance", status, new.conformance.status, trend)


def _is_same_end(old_end: float | None, new_end: float | None) -> bool:
    return old_end is not None and new_end is not None and math.isclose(old_end, new_end, rel_tol=_SAME_END)


def _declared_changes(old: AuditResult, new: AuditResult) -> Iterator[Change]:
    was, now = confidence(old), confidence(new)
    expected, expects = old.conformance.expect, new.conformance.expect
    changes = [(*difference, False) for difference in differing(declared(old), declared(new))]
    if was is not None and was != now:
        raised = now is not None and now > was
        after = f"{_number(now)}, at which attacks refute less" if raised else _number(now)
        changes.append((CONFIDENCE, _number(was), after, not raised))
    if expected != expects:
        changes.append(("audit.expect", expected, expects, expects != "no-deviation-found"))
    if not changes and old.digest != new.digest:
        changes.append(("spec", old.digest[:12], new.digest[:12], False))
    for name, before, after, weaker in changes:
        trend: Trend = "worse" if weaker else "other"
        yield Change(old.name, name, before, after, trend, of_claim=weaker, of_declaration=True)


def _claim_changes(old: AuditResult, was: Verdict, new: AuditResult, now: Verdict) -> Iterator[Change]:
    before, after = statement(old, was), statement(new, now)
    if before is None or after is None:
        before, after = ({"kind": v.kind, "text": v.text, "quantity": v.quantity} for v in (was, now))
        if not equal(was.claimed, now.claimed):
            before, after = {**before, "claimed": was.claimed}, {**after, "claimed": now.claimed}
    elif any(before.get(key) != after.get(key) for key in ("over", "record")):  # which data that is then follows
        before, after = ({k: v for k, v in side.items() if k not in ("rows", "collection")} for side in (before, after))
    for path, old_text, new_text in differing(before, after):
        name = path if path == "claimed" else f"claim.{path}"
        yield Change(old.name, name, old_text, new_text, "other", was.claim, of_claim=True)
    if set(was.expect) != set(now.expect):
        weaker = not set(now.expect) <= set(was.expect)
        old_text, new_text = " or ".join(was.expect), " or ".join(now.expect)
        yield Change(old.name, "expect", old_text, new_text, "worse" if weaker else "other", was.claim, weaker)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _presence(audit: str, claim: str, quantity: str, removed: bool) -> Change:
    before, after = ("present", "absent") if removed else ("absent", "present")
    return Change(audit, quantity, before, after, "worse" if removed else "other", claim, removed)
