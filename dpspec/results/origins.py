"""Origins of the trials in a result: versions, plugins and dates."""

from collections.abc import Iterator, Mapping, Sequence

from dpspec.contract import Json
from dpspec.contract.results import AuditResult, TrialRecord

#: Prefix of the digest of code that could not be read.
UNKNOWN_CODE = "unknown-"

#: Versions that determine the results of trials.
_RECORDED = ("dpspec", "torch", "numpy", "scipy", "scikit-learn", "python")


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


def describe_maker(maker: Mapping[str, Json]) -> str:
    """A maker in words: ``acme 0.2, code 12ab34cd56ef``."""
    code = str(maker.get("code") or "")
    what = ", code unknown" if code.startswith(UNKNOWN_CODE) else f", code {code[:12]}" if code else ""
    return f"{maker.get('distribution')} {maker.get('version')}{what}"
