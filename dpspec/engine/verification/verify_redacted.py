"""Verification of a redacted result.

If the removed values can be recomputed, from bounds or from a store with the trials, the audit is recomputed, redacted
and compared, including the number of removed values. Otherwise values that depend on removed evidence are taken from
the result and reported.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, get_args

from dpspec.contract import Assumption, Check, Evidence, Finding
from dpspec.contract.findings import Privacy
from dpspec.contract.frozen import canonical_json
from dpspec.engine.judging.conformance_status import inspections, rejected
from dpspec.engine.judging.judge import as_expected
from dpspec.engine.judging.judge_input import Concluded
from dpspec.engine.redact import LEFT_OUT_REASONS, redact_audit
from dpspec.engine.results.result import AuditResult
from dpspec.engine.verification.differences import Mismatch, compare
from dpspec.json_records import write

#: Parts of a verdict that follow from its claim.
_OF_THE_CLAIM = ("kind", "text", "expect", "expected", "quantity", "claimed")

#: Parts of an audit that follow from trials.
_PARTS = ("findings", "series", "checks", "evidence")


def merged(audit: AuditResult, again: Concluded) -> tuple[Concluded, tuple[str, ...]]:
    """The recomputed conclusions with the values that only the audit has, and the part of each such value."""
    parts: dict[str, Any] = {}
    taken: list[str] = []
    for part in _PARTS:
        items, only_recorded = _merge(getattr(audit, part), getattr(again, part))
        parts[part] = tuple(items)
        taken.extend([part] * only_recorded)
    return dataclasses.replace(again, **parts), tuple(taken)


def comparable(
    old: AuditResult, new: AuditResult, family: int, taken: Sequence[str] | None
) -> tuple[AuditResult, AuditResult, list[Mismatch]]:
    """A redacted audit and its recomputation without incomparable values, and the mismatches.

    ``taken`` is the part of each value taken from the result; None if nothing is missing.
    """
    new = redact_audit(new, family)
    if taken is None or (not taken and old.left_out == new.left_out):
        return old, new, []
    mismatches = [*_counts(old, new), *_left_out(old, new), *_taken(old, taken)]
    left_out = {verdict.claim: verdict for verdict in old.verdicts if verdict.reason in LEFT_OUT_REASONS}
    verdicts = tuple(left_out.get(verdict.claim, verdict) for verdict in new.verdicts)
    new = dataclasses.replace(new, verdicts=verdicts, left_out=old.left_out)
    if "checks" in taken:
        if _blurred_away(old, new, family):
            new = dataclasses.replace(new, conformance=old.conformance)
        old, new = _plainly(old), _plainly(new)
    return old, new, mismatches


def _merge(recorded: Sequence[Any], again: Sequence[Any]) -> tuple[list[Any], int]:
    """``again`` with the further values of ``recorded`` in their order, and their number."""
    places: dict[Hashable, deque[int]] = defaultdict(deque)
    for i, item in enumerate(again):
        places[_key(item)].append(i)
    besides: dict[int, list[Any]] = defaultdict(list)
    last = -1
    for item in recorded:
        indices = places.get(_key(item))
        if indices:
            last = indices.popleft()
        else:
            besides[last].append(item)
    items = [*besides[-1]]
    for i, item in enumerate(again):
        items += [item, *besides[i]]
    return items, len(items) - len(again)


def _key(item: Any) -> Hashable:
    match item:
        case Finding():
            what = (item.quantity, item.bound, item.rigor, item.method, item.source, item.privacy)
            return (*what, canonical_json(item.at), canonical_json(write(item.scope)))
        case Check():
            return (item.assumption, item.test, item.note, item.observed)
        case Evidence():
            return (item.id, item.kind, item.quantity, item.method)
        case _:
            return (item.name, item.title)


def _counts(old: AuditResult, new: AuditResult) -> Iterator[Mismatch]:
    """Compare the numbers of removed values: at least the recomputed number, and only known classes."""
    for privacy, number in old.left_out.items():
        due = int(new.left_out.get(privacy, 0))
        if privacy not in get_args(Privacy) or privacy == "public" or number < due:
            yield Mismatch(old.name, f"left_out.{privacy}", str(number), str(due))
        elif number > due:
            yield Mismatch(
                old.name,
                f"left_out.{privacy}",
                f"{number} values",
                f"{due} recomputed; the rest needs the run's store, or its data",
                differs=False,
            )
    for privacy, number in new.left_out.items():
        if privacy not in old.left_out:
            yield Mismatch(old.name, f"left_out.{privacy}", "nothing", str(number))


def _left_out(old: AuditResult, new: AuditResult) -> Iterator[Mismatch]:
    again = {verdict.claim: verdict for verdict in new.verdicts}
    for verdict in old.verdicts:
        if verdict.reason not in LEFT_OUT_REASONS:
            continue
        what, verdict_now = f"the verdict of {verdict.claim}", again.get(verdict.claim)
        if verdict_now is None:
            yield Mismatch(old.name, what, verdict.verdict, "no such claim")
            continue
        verdict_now = dataclasses.replace(verdict_now, expected=as_expected(verdict.verdict, verdict_now.expect))
        for key in _OF_THE_CLAIM:
            yield from compare(
                old.name, f"{what}: {key}", write(getattr(verdict, key)), write(getattr(verdict_now, key))
            )
        yield from compare(old.name, f"{what}: p_value", verdict.p_value, None)
        if verdict.upper is not None and verdict.lower is not None:
            ends = f"[{verdict.lower}, {verdict.upper}]"
            yield Mismatch(old.name, what, ends, "one end depends on an omitted value")
        # No omitted value can change an attack's rejection, because the privacy tests are a separate family.
        rejects = verdict.kind != "metric" and verdict_now.verdict in ("refuted", "contradicted")
        differs = rejects and verdict.verdict not in ("refuted", "contradicted")
        yield Mismatch(
            old.name,
            what,
            verdict.verdict,
            verdict_now.verdict if differs else "depends on values that this result omits",
            differs=differs,
            claims=(verdict.claim,),
        )


def _taken(old: AuditResult, taken: Sequence[str]) -> Iterator[Mismatch]:
    everyone = tuple(verdict.claim for verdict in old.verdicts)
    executed = tuple(
        verdict.claim
        for verdict in old.verdicts
        if verdict.upper_finding is not None and old.findings[verdict.upper_finding].scope.pipeline == "executed"
    )
    rest = {"findings": everyone, "evidence": everyone, "series": (), "checks": executed}
    for part, number in Counter(taken).items():
        yield Mismatch(
            old.name,
            "conformance" if part == "checks" else part,
            old.conformance.status if part == "checks" else f"a list of {len(getattr(old, part))}",
            f"{number} {part} depend on values that this result omits",
            differs=False,
            claims=rest[part],
        )


def _blurred_away(old: AuditResult, new: AuditResult, family: int) -> bool:
    """Whether a rejected check may no longer reject because its p-value was rounded to a power of ten."""
    family *= inspections(len(new.trials), new.needed_trials)
    near = (dataclasses.replace(check, p_value=check.p_value / 10.0) for check in new.checks if check.p_value < 1.0)
    return (old.conformance.status, new.conformance.status) == ("deviates", "no-deviation-found") and any(
        rejected(check, family) for check in near
    )


def _plainly(audit: AuditResult) -> AuditResult:
    """The audit without the tests of assumptions, whose choice depends on removed digits."""

    def plainly(held: Sequence[Assumption]) -> tuple[Assumption, ...]:
        return tuple(dataclasses.replace(assumption, test=None, detectable=None) for assumption in held)

    return dataclasses.replace(
        audit,
        findings=tuple(dataclasses.replace(f, assumptions=plainly(f.assumptions)) for f in audit.findings),
        evidence=tuple(dataclasses.replace(e, assumptions=plainly(e.assumptions)) for e in audit.evidence),
    )
