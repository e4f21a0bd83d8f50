"""Origins of the trials in a result: versions, plugins and dates."""

from collections.abc import Iterator, Mapping, Sequence

from dpspec.contract import Json
from dpspec.contract.results import AuditResult, TrialRecord

#: Prefix of the digest of code that could not be read.
UNKNOWN_CODE = "unknown-"

#: Versions that determine the results of trials.
_RECORDED = ("dpspec", "torch", "numpy", "scipy", "scikit-learn", "python")


def version_notices(records: Sequence[TrialRecord], environment: Mapping[str, Json]) -> Iterator[str]:
    for name in _RECORDED:
        present = environment.get(name)
        versions = [str(r.recorded[name]) for r in records if r.recorded.get(name) not in (None, present)]
        if versions and present is not None:
            number = f"{len(versions)} of its {len(records)} trials were" if len(records) > 1 else "its trial was"
            yield f"{number} made with {name} {', '.join(sorted(set(versions)))}; {present} is what judged them"


def origin_summary(audit: AuditResult) -> str:
    if not audit.trials:
        return ""
    dates = sorted({date[:10] for t in audit.trials if isinstance(date := t.recorded.get("made"), str)})
    versions = [
        f"{name} {', '.join(used)}"
        for name in ("dpspec", "torch")
        if (used := sorted({str(t.recorded[name]) for t in audit.trials if t.recorded.get(name)}))
    ]
    made_with = [*versions, *foreign_makers(audit)]
    text = f"{audit.stored_trials} of {len(audit.trials)} trials from the store" if audit.stored_trials else ""
    text += f"{', ' if text else 'trials '}made by {', '.join(made_with)}" if made_with else ""
    return text + (f" on {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if text and dates else "")


def foreign_makers(audit: AuditResult) -> list[str]:
    """The makers of an audit's trials, by part, whose code matters or that plugins provide."""
    makers: dict[str, None] = {}
    for trial in audit.trials:
        by = trial.recorded.get("by")
        for part, maker in by.items() if isinstance(by, Mapping) else ():
            if isinstance(maker, Mapping) and ("code" in maker or maker.get("distribution") != "dpspec"):
                makers[f"{part} of {describe_maker(maker)}"] = None
    return list(makers)


def describe_maker(maker: Mapping[str, Json]) -> str:
    """A maker in words: ``acme 0.2, code 12ab34cd56ef``."""
    code = str(maker.get("code") or "")
    suffix = ", code unknown" if code.startswith(UNKNOWN_CODE) else f", code {code[:12]}" if code else ""
    return f"{maker.get('distribution')} {maker.get('version')}{suffix}"
