"""Origins of results: versions, machines, stores and provider revisions."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata

from dpspec.contract import Facts, FrozenMap, Json
from dpspec.contract.catalog import Catalog, Offered
from dpspec.engine.preparing.trial_keys import code_in, describe_maker, differences, revisions_of, trial_key
from dpspec.engine.results.result import AuditResult, TrialRecord

_ENVIRONMENT = ("dpspec", "numpy", "scipy", "scikit-learn", "torch")


def offers_for_trials(catalog: Catalog) -> list[tuple[str, Offered]]:
    families = (
        *(catalog.mechanisms, catalog.datasets, catalog.models, catalog.backends),
        *(catalog.canaries, catalog.scores),
    )
    return [offered for family in families for offered in family.items()]


def environment(catalog: Catalog | None) -> FrozenMap:
    values: dict[str, Json] = dict(_base())
    if catalog is not None:
        offers = offers_for_trials(catalog)
        values["plugins"] = {offered.plugin: f"{offered.distribution} {offered.version}" for _, offered in offers}
    return FrozenMap(values)


@cache
def _base() -> FrozenMap:
    values: dict[str, Json] = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    return FrozenMap({**values, **{library: version_of(library) for library in _ENVIRONMENT}})


@cache
def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


#: Versions that determine the results of trials.
_RECORDED = ("dpspec", "torch", "numpy", "scipy", "scikit-learn", "python")

#: Keys of trial records that should be equal within an audit.
_MIXED = ("device", "gpu", "dpspec", "torch")


def mixture_notices(records: Sequence[TrialRecord]) -> list[str]:
    notices = []
    for what in _MIXED:
        describe_maker = [record.recorded.get(what) for record in records]
        values = sorted({str(value).partition(":")[0] for value in describe_maker if value is not None})
        if len(values) > 1:
            notices.append(f"its trials have different {what}: {', '.join(values)}")
    return notices


def version_notices(records: Sequence[TrialRecord], environment: Mapping[str, Json]) -> Iterator[str]:
    for what in _RECORDED:
        here = environment.get(what)
        made = [str(r.recorded[what]) for r in records if r.recorded.get(what) not in (None, here)]
        if made and here is not None:
            number = f"{len(made)} of its {len(records)} trials were" if len(records) > 1 else "its trial was"
            yield f"{number} made with {what} {', '.join(sorted(set(made)))}; {here} is what judged them"


def origin_summary(audit: AuditResult) -> str:
    if not audit.trials:
        return ""
    dates = sorted({made[:10] for t in audit.trials if isinstance(made := t.recorded.get("made"), str)})
    versions = [
        f"{what} {', '.join(seen)}"
        for what in ("dpspec", "torch")
        if (seen := sorted({str(t.recorded[what]) for t in audit.trials if t.recorded.get(what)}))
    ]
    makers: dict[str, None] = {}  # of parts whose code matters or that plugins provide
    for trial in audit.trials:
        by = trial.recorded.get("by")
        for part, each in by.items() if isinstance(by, Mapping) else ():
            if isinstance(each, Mapping) and ("code" in each or each.get("distribution") != "dpspec"):
                makers[f"{part} of {describe_maker(each)}"] = None
    made_with = [*versions, *makers]
    text = f"{audit.stored_trials} of {len(audit.trials)} trials from the store" if audit.stored_trials else ""
    text += f"{', ' if text else 'trials '}made by {', '.join(made_with)}" if made_with else ""
    return text + (f" on {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if text and dates else "")


#: Parts that differ from the installed ones, as (part, kind, revision): ``("mechanism", "group", 6)``.
Revisions = tuple[tuple[str, str, int], ...]

#: A part whose code or version differs: the part, its maker, and the installed one.
OtherCode = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class OtherOrigins:
    """The indices of trials whose makers differ from the installed ones.

    ``unexplained``: the key does not follow from the spec with the recorded makers, or with the installed ones if the
    record names none.
    """

    by_revisions: dict[Revisions, list[int]] = field(default_factory=dict)
    by_code: dict[OtherCode, list[int]] = field(default_factory=dict)
    unexplained: list[int] = field(default_factory=list)


def trials_from_other_revisions(
    trials: Sequence[TrialRecord],
    chunk_of: Mapping[int, Sequence[int]],
    inputs: FrozenMap,
    facts: Facts,
    installed: FrozenMap,
) -> OtherOrigins:
    origins = OtherOrigins()
    revisions = revisions_of(installed)
    for record in trials:
        chunk, makers = chunk_of.get(record.index, ()), record.recorded.get("by")
        # Records of version 0.1.0 lack their makers.
        if isinstance(makers, FrozenMap) and set(makers) == set(revisions) and all(map(_is_maker, makers.values())):
            named = trial_key(inputs, facts, revisions_of(makers), chunk, record.index, code_in(makers))
            if named == record.key:
                others: Revisions = tuple(
                    (part, str(maker["kind"]), maker["revision"])
                    for part, maker in makers.items()
                    if (maker["kind"], maker["revision"]) != tuple(revisions[part])
                )
                if others:
                    origins.by_revisions.setdefault(others, []).append(record.index)
                for difference in differences(makers, installed):
                    origins.by_code.setdefault(difference, []).append(record.index)
                continue
        codes = (FrozenMap(), code_in(installed))
        if record.key not in [trial_key(inputs, facts, revisions, chunk, record.index, code) for code in codes]:
            origins.unexplained.append(record.index)
    return origins


def _is_maker(value: Json) -> bool:
    return isinstance(value, FrozenMap) and {"kind", "revision"} <= set(value)
