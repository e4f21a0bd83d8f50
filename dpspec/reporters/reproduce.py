"""What somebody else needs to get the same numbers: the command, digests, seeds, versions, device and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dpspec.contract import FrozenMap, Json
from dpspec.engine import numbers
from dpspec.engine.joined import apart
from dpspec.engine.result import AuditResult, Result
from dpspec.reporters import words

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


def facts(result: Result) -> Iterator[tuple[str, str]]:
    """Name and text of every fact of one invocation, in the order in which they are read."""
    for audit in result.audits:
        yield from _audit(audit)
    yield "family-wise confidence", numbers.exact(result.confidence)
    yield "made", result.created
    versions = {key: item for key, item in result.environment.items() if key not in ("command", "plugins") and item}
    if versions:
        yield "versions", words.conditions(versions)
    plugins = result.environment.get("plugins")
    if isinstance(plugins, Mapping) and plugins:
        yield "plugins", words.conditions(plugins)


def _audit(audit: AuditResult) -> Iterator[tuple[str, str]]:
    parts = [f"spec digest {audit.digest[:_DIGEST]}"]
    if audit.source:
        parts.insert(0, audit.source)
    if audit.facts.digest:
        parts.append(f"data digest {audit.facts.digest[:_DIGEST]}")
    seed = _seed(audit.document)
    if seed is not None:
        parts.append(f"seed {words.value(seed)}")
    if audit.planned_trials:
        parts.append(words.trials(audit))
    devices = sorted({str(trial.recorded["device"]) for trial in audit.trials if trial.recorded.get("device")})
    if devices:
        parts.append(f"trained on {' and '.join(devices)}")
    parts.append(f"took {numbers.duration(audit.seconds)}")
    yield audit.name, ", ".join(parts)


def _seed(document: FrozenMap) -> Json:
    audit = document.get("audit")
    return audit.get("seed") if isinstance(audit, Mapping) else None
