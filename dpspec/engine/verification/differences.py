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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dpspec.contract import FrozenMap, Json
from dpspec.contract.catalog import Catalog
from dpspec.engine.results.result import Result
from dpspec.engine.storage.origins import environment
from dpspec.engine.storage.trial_store import Store
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
    r"(findings|series|checks|evidence|power|notes|digest|document|facts|planned_trials|settled_after|left_out|trials\[)"
    r"|conformance\.reason|\d+ trials?,"
)


def other_versions(result: Result, catalog: Catalog) -> tuple[str, ...]:
    """The distributions of a result with another installed version: ``dpspec 0.1.0 (here 0.2.0)``."""
    here = _versions(environment(catalog))
    recorded = [_versions(part.environment) for part in result.parts] or [_versions(result.environment)]
    named = (
        (name, version)
        for versions in recorded
        for name, version in versions.items()
        if here.get(name, version) != version
    )
    return tuple(dict.fromkeys(f"{name} {version} (here {here[name]})" for name, version in named))


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
    "parts.*.source": "files of the parts",
    "parts.*.created": "dates",
    "parts.*.environment.*": "command, versions and machine",
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
    if not result.parts:
        parts.remove(UNVERIFIED["parts.*.source"])
    if not trials:
        parts.remove(UNVERIFIED["audits.*.stored_trials"])
        parts.remove(UNVERIFIED["audits.*.trials.*.recorded.*"])
    else:
        measured = f"the measurements of {trials} trial{'' if trials == 1 else 's'}"
        parts.insert(0, measured if store is None else f"{measured} (except stored ones)")
    return f"not verified, because a result does not imply it: {', '.join(parts)}"
