"""Comparison of a result with its recomputation, leaf by leaf.

``verify`` lists the values that cannot be derived from evidence. Only the store detects invented measurements.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from dpspec.contract import Check, Evidence, Finding, FrozenMap
from dpspec.contract.catalog import Catalog
from dpspec.contract.findings import Privacy
from dpspec.contract.frozen import canonical_json
from dpspec.contract.results import REJECTED, AuditResult, Result
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import as_expected
from dpspec.engine.storage.stored_trials import environment
from dpspec.engine.storage.trial_store import Store
from dpspec.json_records import write
from dpspec.results.conformance_status import inspections, rejected
from dpspec.results.differing import Difference, differing
from dpspec.results.redact import LEFT_OUT_REASON, redact_audit, with_assumptions


@dataclass(frozen=True)
class Mismatch(Difference):
    """A value of a result that does not follow from the rest.

    Attributes:
        differs: False for a value that cannot be recomputed because its inputs are not available.
        claims: The claims whose verdicts were not recomputed for that reason.
        because: The reason of the recomputed verdict, if a verdict differs.
        part: The recorded finding, verdict, check or other part of the audit that has the value; None for others.
    """

    differs: bool = True
    claims: tuple[str, ...] = ()
    because: str = ""
    part: object = field(default=None, compare=False, repr=False)


def compare(audit: str, name: str, recorded: Any, recomputed: Any) -> Iterator[Mismatch]:
    """The mismatches between two values, each written as JSON."""
    if isinstance(recorded, tuple) and isinstance(recomputed, tuple) and len(recorded) == len(recomputed):
        for number, (part, again) in enumerate(zip(recorded, recomputed, strict=True)):
            for path, old, new in differing(write(part), write(again), f"{name}[{number}]"):
                yield Mismatch(audit, path, old, new, part=part)
        return
    for path, old, new in differing(write(recorded), write(recomputed), name):
        yield Mismatch(audit, path, old, new)


def other_versions(result: Result, catalog: Catalog) -> tuple[str, ...]:
    """The distributions of a result with another installed version: ``dpspec 0.2.0 (here 0.3.0)``."""
    installed = versions_of(environment(catalog))
    recorded = versions_of(result.environment).items()
    return tuple(f"{name} {old} (here {installed[name]})" for name, old in recorded if installed.get(name, old) != old)


def versions_of(values: FrozenMap) -> dict[str, str]:
    plugins = values.get("plugins")
    named = [str(text).rpartition(" ") for text in (plugins.values() if isinstance(plugins, Mapping) else ())]
    versions = {name: version for name, _, version in named}
    return versions | ({"dpspec": str(values["dpspec"])} if values.get("dpspec") else {})


#: Places of a result that nothing implies, with ``*`` for any index or key, and their meaning.
UNVERIFIED = {
    "created": "dates",
    "environment.*": "command, versions and machine",
    "requires_claim": "command, versions and machine",
    "unjudged.*": "specs with errors",
    "regressions.*": "regressions from an earlier result",
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
    meanings = list(dict.fromkeys(UNVERIFIED.values()))
    if not result.unjudged:
        meanings.remove(UNVERIFIED["unjudged.*"])
    if result.regressions is None:
        meanings.remove(UNVERIFIED["regressions.*"])
    if not trials:
        meanings.remove(UNVERIFIED["audits.*.stored_trials"])
        meanings.remove(UNVERIFIED["audits.*.trials.*.recorded.*"])
    else:
        measured = f"the measurements of {trials} trial{'' if trials == 1 else 's'}"
        meanings.insert(0, measured if store is None else f"{measured} (except stored ones)")
    return f"not verified, because a result does not imply it: {', '.join(meanings)}"


#: Parts of an audit that follow from trials.
_PARTS = ("findings", "series", "checks", "evidence")


def merged(audit: AuditResult, again: Concluded) -> tuple[Concluded, Counter[str]]:
    """The recomputed conclusions with the values that only the audit has, and their number by part."""
    outcomes_by_part: dict[str, Any] = {part: _merge(getattr(audit, part), getattr(again, part)) for part in _PARTS}
    taken_counts = Counter({part: len(items) - len(getattr(again, part)) for part, items in outcomes_by_part.items()})
    return replace(again, trials=len(audit.trials), **outcomes_by_part), +taken_counts


def comparable(
    old: AuditResult, new: AuditResult, family: int, taken_counts: Counter[str] | None
) -> tuple[AuditResult, AuditResult, list[Mismatch]]:
    """A redacted audit and its recomputation without incomparable values, and the mismatches."""
    new = redact_audit(new, family)
    if taken_counts is None or (not taken_counts and old.left_out == new.left_out):
        return old, new, []
    mismatches = list(_counts(old, new))
    left_out = {verdict.claim: verdict for verdict in old.verdicts if verdict.left_out}
    verdicts = []
    for new_verdict in new.verdicts:
        old_verdict = left_out.get(new_verdict.claim)
        if old_verdict is not None:
            # No omitted value can change an attack's rejection, because the privacy tests are a separate family.
            differs = (
                new_verdict.kind != "metric" and new_verdict.verdict in REJECTED and old_verdict.verdict not in REJECTED
            )
            text = new_verdict.verdict if differs else "depends on values that this result omits"
            value_name = f"the verdict of {old_verdict.claim}"
            mismatches.append(
                Mismatch(old.name, value_name, old_verdict.verdict, text, differs=differs, claims=(old_verdict.claim,))
            )
            if old_verdict.upper is not None and old_verdict.lower is not None:
                ends = f"[{old_verdict.lower}, {old_verdict.upper}]"
                mismatches.append(Mismatch(old.name, value_name, ends, "one end depends on an omitted value"))
            of_claim = {name: getattr(new_verdict, name) for name in ("kind", "text", "expect", "quantity", "claimed")}
            expected = as_expected(old_verdict.verdict, new_verdict.expect)
            of_claim |= {"expected": expected, "reason": LEFT_OUT_REASON, "p_value": None}
            new_verdict = replace(old_verdict, **of_claim)
        verdicts.append(new_verdict)
    mismatches.extend(_taken(old, taken_counts))
    new = replace(new, verdicts=tuple(verdicts), left_out=old.left_out)
    if "checks" in taken_counts:
        # A rejected check may no longer reject because its p-value was rounded to a power of ten.
        own_family = family * inspections(len(new.trials), new.planned_trials)
        tenfold_checks = [replace(check, p_value=check.p_value / 10.0) for check in new.checks if check.p_value < 1.0]
        statuses = (old.conformance.status, new.conformance.status)
        if statuses == ("deviates", "no-deviation-found") and any(
            rejected(check, own_family) for check in tenfold_checks
        ):
            new = replace(new, conformance=old.conformance)
        # The choice of the tests of assumptions depends on removed digits.
        old, new = (
            with_assumptions(audit, lambda assumed: replace(assumed, test=None, detectable=None, privacy="public"))
            for audit in (old, new)
        )
    return old, new, mismatches


def _merge(recorded: Sequence[Any], again: Sequence[Any]) -> tuple[Any, ...]:
    """``again`` with the further values of ``recorded`` in their order."""
    indices_by_key: dict[Hashable, deque[int]] = defaultdict(deque)
    for i, item in enumerate(again):
        indices_by_key[_key(item)].append(i)
    further: dict[int, list[Any]] = defaultdict(list)
    last_match = -1
    for item in recorded:
        indices = indices_by_key.get(_key(item))
        if indices:
            last_match = indices.popleft()
        else:
            further[last_match].append(item)
    return (*further[-1], *(outcome for i, item in enumerate(again) for outcome in (item, *further[i])))


def _key(item: Any) -> Hashable:
    match item:
        case Finding():
            identity = (item.quantity, item.bound, item.rigor, item.method, item.source, item.privacy)
            return (*identity, canonical_json(item.at), canonical_json(write(item.scope)))
        case Check():
            return (item.assumption, item.test, item.note, item.observed)
        case Evidence():
            return (item.id, item.kind, item.quantity, item.method)
        case _:
            return (item.name, item.title)


def _counts(old: AuditResult, new: AuditResult) -> Iterator[Mismatch]:
    """Compare the numbers of removed values: at least the recomputed number, and only known classes."""
    for privacy in {**old.left_out, **new.left_out}:
        number, recomputed_number = int(old.left_out.get(privacy, 0)), int(new.left_out.get(privacy, 0))
        is_wrong = number < recomputed_number or privacy not in get_args(Privacy) or privacy == "public"
        explanation = "" if is_wrong else " recomputed; the rest needs the run's store, or its data"
        if is_wrong or number > recomputed_number:
            yield Mismatch(
                old.name,
                f"left_out.{privacy}",
                f"{number} values",
                f"{recomputed_number}{explanation}",
                differs=is_wrong,
            )


def _taken(old: AuditResult, taken_counts: Counter[str]) -> Iterator[Mismatch]:
    everyone = tuple(verdict.claim for verdict in old.verdicts)
    executed = tuple(
        verdict.claim
        for verdict in old.verdicts
        if verdict.upper_finding is not None and old.findings[verdict.upper_finding].scope.pipeline == "executed"
    )
    for part, number in taken_counts.items():
        yield Mismatch(
            old.name,
            "conformance" if part == "checks" else part,
            old.conformance.status if part == "checks" else f"a list of {len(getattr(old, part))}",
            f"{number} {part} depend on values that this result omits",
            differs=False,
            claims={"series": (), "checks": executed}.get(part, everyone),
        )
