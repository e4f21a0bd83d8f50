"""Comparison of a result with its recomputation, leaf by leaf.

Differences of another version's result come from a rule or an edit; a changed verdict matters in either case.
``verify`` lists the values that cannot be derived from evidence. Only the store detects invented measurements.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from dpspec.contract import Check, Evidence, Finding, FrozenMap
from dpspec.contract.catalog import Catalog
from dpspec.contract.findings import Privacy
from dpspec.contract.frozen import canonical_json
from dpspec.contract.results import AuditResult, Result
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import as_expected
from dpspec.engine.storage.stored_trials import environment
from dpspec.engine.storage.trial_store import Store
from dpspec.json_records import write
from dpspec.results.conformance_status import inspections, rejected
from dpspec.results.diff import differing
from dpspec.results.redact import LEFT_OUT_REASON, redact_audit, with_assumptions

VERDICT = re.compile(r"verdicts\[(\d+)\]\.verdict")


@dataclass(frozen=True)
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


def compare(audit: str, what: str, recorded: Any, recomputed: Any) -> Iterator[Mismatch]:
    """The mismatches between two values, each written as JSON."""
    for place, old, new in differing(write(recorded), write(recomputed), what):
        yield Mismatch(audit, place, old, new)


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
    here = versions_of(environment(catalog))
    recorded = versions_of(result.environment).items()
    return tuple(f"{name} {old} (here {here[name]})" for name, old in recorded if here.get(name, old) != old)


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


def versions_of(values: FrozenMap) -> dict[str, str]:
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


#: Parts of an audit that follow from trials.
_PARTS = ("findings", "series", "checks", "evidence")

_REJECTED = ("refuted", "contradicted")


def merged(audit: AuditResult, again: Concluded) -> tuple[Concluded, Counter[str]]:
    """The recomputed conclusions with the values that only the audit has, and their number by part."""
    parts: dict[str, Any] = {part: _merge(getattr(audit, part), getattr(again, part)) for part in _PARTS}
    taken = Counter({part: len(items) - len(getattr(again, part)) for part, items in parts.items()})
    return replace(again, trials=len(audit.trials), **parts), +taken


def comparable(
    old: AuditResult, new: AuditResult, family: int, taken: Counter[str] | None
) -> tuple[AuditResult, AuditResult, list[Mismatch]]:
    """A redacted audit and its recomputation without incomparable values, and the mismatches."""
    new = redact_audit(new, family)
    if taken is None or (not taken and old.left_out == new.left_out):
        return old, new, []
    mismatches = list(_counts(old, new))
    left_out = {verdict.claim: verdict for verdict in old.verdicts if verdict.reason == LEFT_OUT_REASON}
    verdicts = []
    for now in new.verdicts:
        was = left_out.get(now.claim)
        if was is not None:
            # No omitted value can change an attack's rejection, because the privacy tests are a separate family.
            differs = now.kind != "metric" and now.verdict in _REJECTED and was.verdict not in _REJECTED
            text = now.verdict if differs else "depends on values that this result omits"
            what = f"the verdict of {was.claim}"
            mismatches.append(Mismatch(old.name, what, was.verdict, text, differs=differs, claims=(was.claim,)))
            if was.upper is not None and was.lower is not None:
                ends = f"[{was.lower}, {was.upper}]"
                mismatches.append(Mismatch(old.name, what, ends, "one end depends on an omitted value"))
            of_claim = {name: getattr(now, name) for name in ("kind", "text", "expect", "quantity", "claimed")}
            expected = as_expected(was.verdict, now.expect)
            now = replace(was, **of_claim, expected=expected, p_value=None)
        verdicts.append(now)
    mismatches.extend(_taken(old, taken))
    new = replace(new, verdicts=tuple(verdicts), left_out=old.left_out)
    if "checks" in taken:
        # A rejected check may no longer reject because its p-value was rounded to a power of ten.
        own = family * inspections(len(new.trials), new.planned_trials)
        near = [replace(check, p_value=check.p_value / 10.0) for check in new.checks if check.p_value < 1.0]
        statuses = (old.conformance.status, new.conformance.status)
        if statuses == ("deviates", "no-deviation-found") and any(rejected(check, own) for check in near):
            new = replace(new, conformance=old.conformance)
        # The choice of the tests of assumptions depends on removed digits.
        old, new = (
            with_assumptions(audit, lambda one: replace(one, test=None, detectable=None)) for audit in (old, new)
        )
    return old, new, mismatches


def _merge(recorded: Sequence[Any], again: Sequence[Any]) -> tuple[Any, ...]:
    """``again`` with the further values of ``recorded`` in their order."""
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
    return (*besides[-1], *(each for i, item in enumerate(again) for each in (item, *besides[i])))


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
    for privacy in {**old.left_out, **new.left_out}:
        number, due = int(old.left_out.get(privacy, 0)), int(new.left_out.get(privacy, 0))
        wrong = number < due or privacy not in get_args(Privacy) or privacy == "public"
        more = "" if wrong else " recomputed; the rest needs the run's store, or its data"
        if wrong or number > due:
            yield Mismatch(old.name, f"left_out.{privacy}", f"{number} values", f"{due}{more}", differs=wrong)


def _taken(old: AuditResult, taken: Counter[str]) -> Iterator[Mismatch]:
    everyone = tuple(verdict.claim for verdict in old.verdicts)
    executed = tuple(
        verdict.claim
        for verdict in old.verdicts
        if verdict.upper_finding is not None and old.findings[verdict.upper_finding].scope.pipeline == "executed"
    )
    for part, number in taken.items():
        yield Mismatch(
            old.name,
            "conformance" if part == "checks" else part,
            old.conformance.status if part == "checks" else f"a list of {len(getattr(old, part))}",
            f"{number} {part} depend on values that this result omits",
            differs=False,
            claims={"series": (), "checks": executed}.get(part, everyone),
        )
