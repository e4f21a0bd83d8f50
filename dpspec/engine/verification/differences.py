"""Comparing what a result says with what was recomputed, leaf by leaf.

Of results of other versions it says which verdicts would be other ones now. Rules and bounds change between versions,
so what differs then may do so by a rule or by an edit, and nothing in a result tells which. A verdict that would be
another one is what matters in either case.

Some of a result nothing implies, so that no recomputation can tell whether it was edited, and ``verify`` says so. None
of it decides a verdict: it says when, where and with what an audit was made, and how it is described. But whoever
makes up what trials measured, and everything that follows from it, makes up a result that follows from itself: only the
store, or training again, tells.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dpspec.contract import FrozenMap, Json
from dpspec.contract.catalog import Catalog
from dpspec.engine.results.result import Result
from dpspec.engine.storage.origins import environment
from dpspec.engine.storage.trial_store import Store
from dpspec.text import clipped

#: Numbers that differ by less than this, relatively, are equal: other machines round differently.
TOLERANCE = 1e-9

_NAME = re.compile(r"verdicts\[(\d+)\]\.verdict")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One value of a result that does not follow from the rest.

    differs: False for a value that cannot be recomputed because what it rests on is not at hand; it may be what it says
        or not.
    claims: the claims whose verdicts, for that, were not recomputed either.
    because: the reason of the verdict that was recomputed, where a verdict differs.
    """

    audit: str
    what: str
    recorded: str
    recomputed: str
    differs: bool = True
    claims: tuple[str, ...] = ()
    because: str = ""


def compare(audit: str, what: str, recorded: Json, recomputed: Json) -> Iterator[Mismatch]:
    """Walk two JSON values and yield a mismatch at every leaf where they differ."""
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        for key in [*recorded, *(k for k in recomputed if k not in recorded)]:
            if key in recorded and key in recomputed:
                yield from compare(audit, f"{what}.{key}", recorded[key], recomputed[key])
            else:
                old, new = (short(side[key]) if key in side else "nothing" for side in (recorded, recomputed))
                yield Mismatch(audit=audit, what=f"{what}.{key}", recorded=old, recomputed=new)
    elif isinstance(recorded, list) and isinstance(recomputed, list) and len(recorded) == len(recomputed):
        for i, (old, new) in enumerate(zip(recorded, recomputed, strict=True)):
            yield from compare(audit, f"{what}[{i}]", old, new)
    elif not _equal(recorded, recomputed):
        yield Mismatch(audit=audit, what=what, recorded=short(recorded), recomputed=short(recomputed))


def explained(mismatches: Iterable[Mismatch], reasons: Sequence[str]) -> Iterator[Mismatch]:
    """The mismatches of verdicts, those of their names with the reason of the verdict that was recomputed."""
    for mismatch in mismatches:
        place = _NAME.fullmatch(mismatch.what)
        yield dataclasses.replace(mismatch, because=reasons[int(place[1])]) if place is not None else mismatch


def _equal(a: Json, b: Json) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        return type(a) is type(b) and bool(a == b)
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=0.0) or a == b


def short(value: Json) -> str:
    """A value as it is told, on one line."""
    text = f"a list of {len(value)}" if isinstance(value, list) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


#: What a verdict says besides whether its claim holds: other numbers, told in other words.
_NUMBERS = re.compile(
    r"verdicts\[\d+\]\.(text|reason|upper|lower|upper_finding|lower_finding|provable|refutable|p_value)"
)

#: What a version decides for itself.
_OF_RULES = re.compile(
    r"(findings|series|checks|evidence|power|notes|digest|document|facts|planned_trials|settled_after|left_out|trials\[)"
    r"|conformance\.reason|\d+ trials?,"
)

_VERDICT = re.compile(r"verdicts\[(\d+)\]\.verdict")


def other_versions(result: Result, catalog: Catalog) -> tuple[str, ...]:
    """The distributions that a result names in a version that is not installed: ``dpspec 0.1.0 (here 0.2.0)``."""
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
    """The distributions of plugins that a result was made with and that offer nothing here, with their versions."""
    here, recorded = _versions(environment(catalog)), _versions(result.environment)
    return tuple(clipped(f"{name} {version}") for name, version in recorded.items() if name not in here)


def changed(result: Result, mismatches: Sequence[Mismatch]) -> Iterator[tuple[Mismatch, str]]:
    """The mismatches that change what a result concludes, each in one line: verdicts, whether they were expected, and
    what no rule decides."""
    for mismatch in mismatches:
        if not mismatch.differs or _NUMBERS.fullmatch(mismatch.what) or _OF_RULES.match(mismatch.what):
            continue
        place = _VERDICT.fullmatch(mismatch.what)
        because = f": {mismatch.because}" if mismatch.because else ""
        if place is not None:
            what = f"claim {_claim(result, mismatch.audit, int(place[1]))}"
            yield mismatch, f"{what}: recorded {mismatch.recorded}, would be {mismatch.recomputed} now{because}"
        elif mismatch.what == "audit":
            yield mismatch, f"recorded {mismatch.recorded}, cannot be made now: {mismatch.recomputed}"
        else:
            yield mismatch, f"{mismatch.what}: recorded {mismatch.recorded}, would be {mismatch.recomputed} now"


def tally(mismatches: Sequence[Mismatch]) -> str:
    """How many values differ in which part: ``findings 3, series 1``."""
    parts = Counter(re.split(r"[.\[,:]", mismatch.what, maxsplit=1)[0] for mismatch in mismatches)
    return ", ".join(f"{part} {number}" for part, number in parts.items())


def _claim(result: Result, audit: str, index: int) -> str:
    return next(of_result for of_result in result.audits if of_result.name == audit).verdicts[index].claim


def _versions(values: FrozenMap) -> dict[str, str]:
    """The versions of what decides bounds and verdicts: dpspec, and the distributions of plugins."""
    plugins = values.get("plugins")
    named = [str(text).rpartition(" ") for text in (plugins.values() if isinstance(plugins, Mapping) else ())]
    versions = {name: version for name, _, version in named}
    return versions | ({"dpspec": str(values["dpspec"])} if values.get("dpspec") else {})


#: Places of a result, with ``*`` for any index or key, and what stands there for people.
UNVERIFIED = {
    "created": "when it was made",
    "environment.*": "by which command, with which versions, and where",
    "parts.*.source": "in which files its parts were",
    "parts.*.created": "when it was made",
    "parts.*.environment.*": "by which command, with which versions, and where",
    "audits.*.source": "in which files its specs were",
    "audits.*.places.*": "in which files its specs were",
    "audits.*.seconds": "how long it took",
    "audits.*.stored_trials": "how many trials were in the store before",
    "audits.*.document.description": "how it is described",
    "audits.*.document.system": "whose it is",
    "audits.*.document.owner": "whose it is",
    "audits.*.document.contact": "whose it is",
    "audits.*.trials.*.recorded.*": "with which versions its trials were made",
}


def unverified(result: Result, store: Store | None) -> str:
    """One line that names all of it; of the trials, what they measured where no store vouches for it."""
    trials = sum(len(audit.trials) for audit in result.audits)
    parts = list(dict.fromkeys(UNVERIFIED.values()))
    if not result.parts:
        parts.remove(UNVERIFIED["parts.*.source"])
    if not trials:
        parts.remove(UNVERIFIED["audits.*.stored_trials"])
        parts.remove(UNVERIFIED["audits.*.trials.*.recorded.*"])
    else:
        measured = f"what {trials} trial{'' if trials == 1 else 's'} measured"
        parts.insert(0, measured if store is None else f"{measured}, but for those that the store has")
    return f"not verified, because nothing in a result implies it: {'; '.join(parts)}"
