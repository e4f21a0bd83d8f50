"""What a result does not show, and what somebody else needs to get the same numbers."""

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

#: True of every audit that this program can make.
ALWAYS = (
    "Floating-point behaviour of the noise, timing and other side channels are outside every number here.",
    "Claims are judged one mechanism at a time: what else was released from the same data is not counted.",
)


def limits(result: Result) -> tuple[str, ...]:
    """Sentences, the most specific first, each said once."""
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
        yield f"Only supported in {audit.name}: {joined(supported)}. The evidence points that way but is no proof."
    if recorded(audit):
        yield (
            f"Nothing was trained or attacked for {audit.name}: what ran is what its recording says, seen from "
            "inside the process that trained."
        )
    elif not audit.planned_trials:
        yield f"Nothing was trained for {audit.name}: its results apply to the specification; no code was run."
    elif not audit.complete:
        missing = audit.needed_trials - len(audit.trials)
        yield f"{missing} of {audit.needed_trials} trials of {audit.name} are missing: a re-run resumes."
    if audit.settled_after is not None:
        yield (
            f"{audit.name} stopped after {audit.settled_after} of {audit.planned_trials} trials, when all its claims "
            "were decided: more might have shown more."
        )
    if audit.planned_trials:
        yield "A lower bound by an attack is a minimum: a stronger attack may find more, never less."
        if audit.conformance.status == "conforms-within":
            yield (
                "Conformance means that no test saw a deviation; deviations smaller than the tests can see, "
                "and of kinds that no test looks for, remain possible."
            )
            if _alone(audit):
                yield (
                    f"{audit.name} was trained once, without a twin: noise that is the same in every run would not "
                    "have been seen."
                )
        elif audit.conformance.status == "checks-missing":
            yield (
                f"Checks that the plan of {audit.name} promised were not made: what they would have seen of the code "
                "that ran is not known."
            )
        elif audit.conformance.status == "not-run":
            yield f"Whether the code that ran for {audit.name} is the mechanism as declared was not tested."
    if any(finding.scope.data != "all" for finding in audit.findings if finding.bound == "upper"):
        yield f"Some upper values of {audit.name} hold for the data that was used, or for a declared collection, only."
    uppers = [finding.scope for finding in audit.findings if finding.bound == "upper"]
    if least := max((scope.min_records for scope in uppers), default=0):
        yield f"Some upper values of {audit.name} hold for data sets of at least {least} records only."
    for kind in sorted({scope.neighbours for scope in uppers} - {"all"}):
        yield f"Some upper values of {audit.name} hold between neighbours of the kind {kind!r} only."


def _alone(audit: AuditResult) -> bool:
    """Whether the twin was left out, and no other run held against the one that there is."""
    options = audit.document.get("audit")
    beside = ("with another seed", "first steps of different trials")
    compared = any(check.assumption == "fresh-noise" and check.note.startswith(beside) for check in audit.checks)
    return isinstance(options, Mapping) and options.get("twin") is False and not compared


def recorded(audit: AuditResult) -> bool:
    """Whether what ran is a recording, that nothing was trained for."""
    training = audit.document.get("training")
    return isinstance(training, Mapping) and training.get("backend") == "recorded"


def made_before(result: Result) -> Iterator[str]:
    """What was not made by the run that the result is of, and by what else than what judged it."""
    for audit in result.audits:
        if audit.stored_trials:
            yield (
                f"{audit.name} was not trained for this result, or not all of it: {origin_summary(audit)}. Whoever can "
                "write to that store can write what it says."
            )
        for sentence in version_notices(audit.trials, result.environment):
            yield f"{audit.name}: {sentence}."


#: Digests are shown this short; the JSON has the whole.
_DIGEST = 16


def command(result: Result) -> tuple[str, ...]:
    """The command line as it was given, or the plainest one that runs the same specs."""
    given = result.environment.get("command")
    if isinstance(given, list | tuple):
        return tuple(str(part) for part in given)
    return ("dpspec", "run", *dict.fromkeys(audit.source for audit in result.audits if audit.source))


@dataclass(frozen=True)
class Recipe:
    """How one result is made again; ``of`` names its file where there are several."""

    of: str
    command: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]


def recipes(result: Result) -> tuple[Recipe, ...]:
    """One for each result that was joined; the one of any other."""
    named = [part.source for part in result.parts] or [""]
    return tuple(Recipe(of, command(one), tuple(facts(one))) for of, one in zip(named, apart(result), strict=True))


#: What the environment holds besides versions.
_NO_VERSIONS = ("command", "plugins", "kept_bounds")


def facts(result: Result) -> Iterator[tuple[str, str]]:
    """Name and text of every fact of one invocation, in the order in which they are read."""
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
    """What a trial was trained on: ``cpu``, or ``cuda:1 (NVIDIA H200)``; empty where its record says nothing."""
    device, gpu = trial.recorded.get("device"), trial.recorded.get("gpu")
    return f"{device} ({gpu})" if device and gpu else str(device or "")


def _seed(document: FrozenMap) -> Json:
    audit = document.get("audit")
    return audit.get("seed") if isinstance(audit, Mapping) else None
