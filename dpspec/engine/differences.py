"""Comparison of a result with its recomputation, leaf by leaf.

For results of other versions it reports the verdicts that would change now. Rules and bounds change between versions,
so a difference may come from a rule or from an edit; a changed verdict matters in either case.

Some values of a result follow from nothing, so recomputation cannot detect their edits; ``verify`` lists them. None of
them decides a verdict. A forger who invents consistent measurements of trials and everything that follows from them is
detected only by the store or by training again.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, get_args

from dpspec.contract import Assumption, Check, Evidence, Finding, FrozenMap, Json
from dpspec.contract.catalog import Catalog
from dpspec.contract.findings import Privacy
from dpspec.contract.frozen import canonical_json
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.conformance_status import inspections, rejected
from dpspec.engine.judging.judge import as_expected
from dpspec.engine.redact import LEFT_OUT_REASONS, redact_audit
from dpspec.engine.results.result import AuditResult, Result
from dpspec.engine.storage.stored_trials import environment
from dpspec.engine.storage.trial_store import Store
from dpspec.json_records import write
from dpspec.text import clipped

#: Relative difference up to which numbers are equal, because machines round differently.
TOLERANCE = 1e-9

VERDICT = re.compile(r"verdicts\[(\d+)\]\.verdict")


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A value of a result that does not follow from the rest.

    Attributes:
        differs: False for a value that cannot be recomputed because its inputs are not available.
        claims: The claims whose verdicts were not recomputed for that reason.
        because: The reason of the recomputed verdict, if a verdict differs.
    """

    audit: str
    what: str
    recorded: str
    recomputed: str
    differs: bool = True
    claims: tuple[str, ...] = ()
    because: str = ""


def compare(audit: str, what: str, recorded: Json, recomputed: Json) -> Iterator[Mismatch]:
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        for key in [*recorded, *(k for k in recomputed if k not in recorded)]:
            if key in recorded and key in recomputed:
                yield from compare(audit, f"{what}.{key}", recorded[key], recomputed[key])
            else:
                old, new = (short(side[key]) if key in side else "nothing" for side in (recorded, recomputed))
                yield Mismatch(audit, f"{what}.{key}", old, new)
    elif isinstance(recorded, list) and isinstance(recomputed, list) and len(recorded) == len(recomputed):
        for i, (old, new) in enumerate(zip(recorded, recomputed, strict=True)):
            yield from compare(audit, f"{what}[{i}]", old, new)
    elif not _equal(recorded, recomputed):
        yield Mismatch(audit, what, short(recorded), short(recomputed))


def _equal(a: Json, b: Json) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        return type(a) is type(b) and bool(a == b)
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=0.0) or a == b


def short(value: Json) -> str:
    text = f"a list of {len(value)}" if isinstance(value, list) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


#: Parts of a verdict besides its outcome.
_NUMBERS = re.compile(
    r"verdicts\[\d+\]\.(text|reason|upper|lower|upper_finding|lower_finding|provable|refutable|p_value)"
)

#: Values that the rules of a version determine.
_OF_RULES = re.compile(
    r"(findings|series|checks|evidence|power|notes|digest|document|facts|planned_trials|left_out|trials\[)"
    r"|conformance\.reason|\d+ trials?,"
)


def other_versions(result: Result, catalog: Catalog) -> tuple[str, ...]:
    """The distributions of a result with another installed version: ``dpspec 0.1.0 (here 0.2.0)``."""
    here = _versions(environment(catalog))
    recorded = _versions(result.environment).items()
    return tuple(f"{name} {old} (here {here[name]})" for name, old in recorded if here.get(name, old) != old)


def absent_packages(result: Result, catalog: Catalog) -> tuple[str, ...]:
    here, recorded = _versions(environment(catalog)), _versions(result.environment)
    return tuple(clipped(f"{name} {version}") for name, version in recorded.items() if name not in here)


def changed(result: Result, mismatches: Sequence[Mismatch]) -> Iterator[tuple[Mismatch, str]]:
    for mismatch in mismatches:
        if not mismatch.differs or _NUMBERS.fullmatch(mismatch.what) or _OF_RULES.match(mismatch.what):
            continue
        place = VERDICT.fullmatch(mismatch.what)
        because = f": {mismatch.because}" if mismatch.because else ""
        if place is not None:
            audit = next(each for each in result.audits if each.name == mismatch.audit)
            what = f"claim {audit.verdicts[int(place[1])].claim}"
            yield mismatch, f"{what}: recorded {mismatch.recorded}, would be {mismatch.recomputed} now{because}"
        elif mismatch.what == "audit":
            yield mismatch, f"recorded {mismatch.recorded}, cannot be made now: {mismatch.recomputed}"
        else:
            yield mismatch, f"{mismatch.what}: recorded {mismatch.recorded}, would be {mismatch.recomputed} now"


def tally(mismatches: Sequence[Mismatch]) -> str:
    """The number of different values per part: ``findings 3, series 1``."""
    parts = Counter(re.split(r"[.\[,:]", mismatch.what, maxsplit=1)[0] for mismatch in mismatches)
    return ", ".join(f"{part} {number}" for part, number in parts.items())


def _versions(values: FrozenMap) -> dict[str, str]:
    plugins = values.get("plugins")
    named = [str(text).rpartition(" ") for text in (plugins.values() if isinstance(plugins, Mapping) else ())]
    versions = {name: version for name, _, version in named}
    return versions | ({"dpspec": str(values["dpspec"])} if values.get("dpspec") else {})


#: Places of a result that nothing implies, with ``*`` for any index or key, and their meaning.
UNVERIFIED = {
    "created": "dates",
    "environment.*": "command, versions and machine",
    "audits.*.source": "files of the specs",
    "audits.*.places.*": "files of the specs",
    "audits.*.seconds": "durations",
    "audits.*.stored_trials": "the number of stored trials",
    "audits.*.document.description": "descriptions",
    "audits.*.document.system": "owners",
    "audits.*.document.owner": "owners",
    "audits.*.document.contact": "owners",
    "audits.*.trials.*.recorded.*": "versions of the trials",
}


def unverified(result: Result, store: Store | None) -> str:
    trials = sum(len(audit.trials) for audit in result.audits)
    parts = list(dict.fromkeys(UNVERIFIED.values()))
    if not trials:
        parts.remove(UNVERIFIED["audits.*.stored_trials"])
        parts.remove(UNVERIFIED["audits.*.trials.*.recorded.*"])
    else:
        measured = f"the measurements of {trials} trial{'' if trials == 1 else 's'}"
        parts.insert(0, measured if store is None else f"{measured} (except stored ones)")
    return f"not verified, because a result does not imply it: {', '.join(parts)}"


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
    family *= inspections(len(new.trials), new.planned_trials)
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
