"""The limits of a result, and the facts to reproduce it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dpspec.contract import FrozenMap, Json
from dpspec.engine.results import decimals
from dpspec.engine.results.joined import apart
from dpspec.engine.results.result import AuditResult, Result, TrialRecord
from dpspec.engine.storage import origins
from dpspec.engine.storage.origins import origin_summary, version_notices
from dpspec.reporters.view import words
from dpspec.text import joined

#: Limits of every audit.
ALWAYS = (
    "No number here covers floating-point behavior of the noise, timing or other side channels.",
    "Each claim covers one mechanism: other releases from the same data are not counted.",
)


def limits(result: Result) -> tuple[str, ...]:
    """Return distinct sentences, the most specific first."""
    sentences = [sentence for audit in result.audits for sentence in _audit(audit)]
    sentences += [sentence for one in apart(result) for sentence in made_before(one)]
    return tuple(dict.fromkeys((*sentences, *ALWAYS)))


def _audit(audit: AuditResult) -> Iterator[str]:
    undecided = [verdict.claim for verdict in audit.verdicts if verdict.verdict == "open"]
    if undecided:
        why = "Neither proved nor refuted" if audit.complete else "The missing trials may decide it"
        yield f"Open in {audit.name}: {joined(undecided)}. {why}."
    supported = [verdict.claim for verdict in audit.verdicts if verdict.verdict == "supported"]
    if supported:
        yield f"Only supported in {audit.name}: {joined(supported)}. The evidence agrees with it but is no proof."
    if recorded(audit):
        yield (
            f"dpspec neither trained nor attacked for {audit.name}: the recording, made inside the training process, "
            "is the only source."
        )
    elif not audit.planned_trials:
        yield f"Nothing was trained for {audit.name}: its results apply to the specification; no code was run."
    elif not audit.complete:
        missing = audit.needed_trials - len(audit.trials)
        yield f"{missing} of {audit.needed_trials} trials of {audit.name} are missing: a re-run resumes."
    if audit.settled_after is not None:
        yield (
            f"{audit.name} stopped after {audit.settled_after} of {audit.planned_trials} trials, when all its claims "
            "were decided: further trials may raise lower bounds."
        )
    if audit.planned_trials:
        yield "A lower bound from an attack is a minimum: a stronger attack may find more."
        if audit.conformance.status == "conforms-within":
            yield (
                "Conformance means that no test found a deviation. Deviations below the detection limits, and of kinds "
                "that no test covers, remain possible."
            )
            if _alone(audit):
                yield (
                    f"{audit.name} was trained once, without a canary-free run: its tests cannot detect noise that is "
                    "the same in every run."
                )
        elif audit.conformance.status == "checks-missing":
            yield f"Planned checks of {audit.name} are missing: what they would detect is unknown."
        elif audit.conformance.status == "not-run":
            yield f"No test compared the executed code of {audit.name} with the declared mechanism."
    if any(finding.scope.data != "all" for finding in audit.findings if finding.bound == "upper"):
        yield f"Some upper values of {audit.name} hold only for its data, or for a declared collection."
    uppers = [finding.scope for finding in audit.findings if finding.bound == "upper"]
    if least := max((scope.min_records for scope in uppers), default=0):
        yield f"Some upper values of {audit.name} hold only for datasets of at least {least} records."
    for kind in sorted({scope.neighbours for scope in uppers} - {"all"}):
        yield f"Some upper values of {audit.name} hold only between neighbours of the kind {kind!r}."


def _alone(audit: AuditResult) -> bool:
    """Return whether no second run was compared with the only one."""
    options = audit.document.get("audit")
    return isinstance(options, Mapping) and options.get("twin") is False


def recorded(audit: AuditResult) -> bool:
    """Return whether the audited run is a recording."""
    training = audit.document.get("training")
    return isinstance(training, Mapping) and training.get("backend") == "recorded"


def made_before(result: Result) -> Iterator[str]:
    """Yield which trials come from a store, or from another version of dpspec."""
    for audit in result.audits:
        if audit.stored_trials:
            yield (
                f"Trials of {audit.name} come from a store: {origin_summary(audit)}. Anyone with write access to that "
                "store can change them."
            )
        for sentence in version_notices(audit.trials, result.environment):
            yield f"{audit.name}: {sentence}."


#: The number of shown characters of a digest; the JSON has all of them.
_DIGEST = 16


def command(result: Result) -> tuple[str, ...]:
    """Return the command line of the result, or the simplest one that runs the same specs."""
    given = result.environment.get("command")
    if isinstance(given, list | tuple):
        return tuple(str(part) for part in given)
    return ("dpspec", "run", *dict.fromkeys(audit.source for audit in result.audits if audit.source))


@dataclass(frozen=True)
class Recipe:
    """How to reproduce one result; ``of`` names its file if there are several."""

    of: str
    command: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]


def recipes(result: Result) -> tuple[Recipe, ...]:
    """Return a recipe for each joined result."""
    named = [part.source for part in result.parts] or [""]
    return tuple(Recipe(of, command(one), tuple(facts(one))) for of, one in zip(named, apart(result), strict=True))


#: Keys of the environment that are not versions.
_NO_VERSIONS = ("command", "plugins", "kept_bounds")


def facts(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each fact of one invocation."""
    for audit in result.audits:
        yield from _recipe(audit)
    yield "family-wise confidence", decimals.exact(result.confidence)
    yield "made", result.created
    versions = {key: item for key, item in result.environment.items() if key not in _NO_VERSIONS and item}
    if versions:
        yield "versions", words.conditions(versions)
    kept = result.environment.get("kept_bounds")
    if isinstance(kept, int) and kept:
        yield "bounds", f"of {words.count(kept, 'audit')} kept from an earlier run by the same user with the same code"
    plugins = result.environment.get("plugins")
    if isinstance(plugins, Mapping) and plugins:
        yield "plugins", words.conditions(plugins)


def _recipe(audit: AuditResult) -> Iterator[tuple[str, str]]:
    parts = [f"spec digest {audit.digest[:_DIGEST]}"]
    if audit.source:
        parts.insert(0, audit.source)
    if audit.facts.digest:
        parts.append(f"data digest {audit.facts.digest[:_DIGEST]}")
    if audit.facts.initial_weights:
        parts.append(f"initial weights digest {audit.facts.initial_weights[:_DIGEST]}")
    seed = _seed(audit.document)
    if seed is not None:
        parts.append(f"seed {words.value(seed)}")
    if audit.planned_trials:
        parts.append(words.trials(audit))
    if origin := origins.origin_summary(audit):
        parts.append(origin)
    devices = sorted(set(filter(None, map(_device, audit.trials))))
    if devices:
        parts.append(f"trained on {' and '.join(devices)}")
    parts.append(f"took {decimals.duration(audit.seconds)}")
    yield audit.name, ", ".join(parts)


def _device(trial: TrialRecord) -> str:
    """The device of a trial: ``cpu``, or ``cuda:1 (NVIDIA H200)``; empty if it is not recorded."""
    device, gpu = trial.recorded.get("device"), trial.recorded.get("gpu")
    return f"{device} ({gpu})" if device and gpu else str(device or "")


def _seed(document: FrozenMap) -> Json:
    audit = document.get("audit")
    return audit.get("seed") if isinstance(audit, Mapping) else None
