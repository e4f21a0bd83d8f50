"""The provenance of a result: data, people, dates, versions, machines and the command.

Text from specs and recordings is returned unescaped: each format escapes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpspec import decimals
from dpspec.contract import FrozenMap, Json
from dpspec.contract.results import AuditResult, RecordedOrigin, Result
from dpspec.reporters import words
from dpspec.results.origins import foreign_makers
from dpspec.text import joined, spaced

#: The number of shown characters of a digest; the JSON is complete.
DIGEST = 16

#: Keys of the environment that are not versions.
_NO_VERSIONS = ("command", "plugins", "project", "trusted", "platform")

#: Versions of a trial that determine its numbers.
_OF_TRIALS = ("dpspec", "python", "torch", "numpy", "scipy", "scikit-learn")

#: A term and a text.
Row = tuple[str, str]

#: The term of the rows with a digest of private rows.
DATA_DIGEST = "Data digest"

_UNSEEN = (
    "A recording does not see the name, the origin and the content of the dataset, nor the person who ran it: "
    "check --declare FILE declares them."
)


def command(result: Result) -> tuple[str, ...]:
    """The command that made the result; without a known one the simplest that runs the same specs."""
    arguments = result.environment.get("command")
    if not isinstance(arguments, list | tuple):
        arguments = ("dpspec", "run", *dict.fromkeys(audit.source for audit in result.audits if audit.source))
    return tuple(map(str, arguments))


@dataclass(frozen=True)
class Provenance:
    """Rows of all audits and of the judgement, and the rows in which an audit differs, by its name."""

    common: tuple[Row, ...]
    differing: tuple[tuple[str, tuple[Row, ...]], ...]


def provenance(result: Result) -> Provenance:
    rows_by_audit = [tuple(of_audit(audit)) for audit in result.audits]
    shared = [row for row in rows_by_audit[0] if all(row in rows for rows in rows_by_audit)] if rows_by_audit else []
    differing = [
        (audit.name, tuple(row for row in rows if row not in shared))
        for audit, rows in zip(result.audits, rows_by_audit, strict=True)
    ]
    return Provenance(
        common=(*shared, *of_judgement(result)), differing=tuple((name, rows) for name, rows in differing if rows)
    )


def in_short(result: Result) -> str:
    """Data, records, dates and the operator in one line; of several audits only the values that all share."""
    common = dict(provenance(result).common)
    facts = [", ".join(common[term] for term in ("Data", "Records") if term in common)]
    facts += [f"trained: {common['Trained']}"] if "Trained" in common else []
    facts += [f"judged: {result.created[:10]}", *([f"run by: {common['Run by']}"] if "Run by" in common else [])]
    return "; ".join(filter(None, facts))


def of_audit(audit: AuditResult) -> Iterator[Row]:
    origin = None if audit.recording is None else audit.recording.origin
    yield "Data", data_name(audit)
    yield "Records", records(audit)
    yield from _digests(audit)
    yield "Run by", _operator(audit)
    yield "Trained", trained(audit)
    if with_versions := training_versions(audit):
        yield "Trained with", with_versions
    if machine := _training_machine(audit, origin):
        yield "Trained on", machine
    yield "Spec", ", ".join(_spec(audit))
    if audit.planned_trials:
        store = f", {audit.stored_trials} from the store" if audit.stored_trials else ""
        yield "Trials", f"{len(audit.trials)} of {audit.planned_trials}{store}; took {decimals.duration(audit.seconds)}"
    if audit.recording is not None:
        yield "Not recorded", _UNSEEN


def of_judgement(result: Result) -> Iterator[Row]:
    yield "Judged", f"{result.created} at family-wise confidence {decimals.exact(result.confidence)}"
    if versions := judging_versions(result):
        yield "Judged with", versions
    if isinstance(platform := result.environment.get("platform"), str):
        yield "Judged on", platform
    plugins, project = (result.environment.get(key) for key in ("plugins", "project"))
    if isinstance(project, Mapping) and project:
        yield "Code of the project", words.conditions(project)
    if isinstance(plugins, Mapping):
        foreign = {name: version for name, version in plugins.items() if name not in (project or {})}
        if foreign:
            yield "Plugins", _plugins(foreign)
    trusted = result.environment.get("trusted")
    if isinstance(trusted, list | tuple) and trusted:
        yield "Signed off by the user", ", ".join(map(str, trusted))


def _plugins(versions: Mapping[str, Json]) -> str:
    """``group, matrix: dpspec 0.3.0; other: theirs 1.0``, the plugins of each distribution together."""
    by_version: dict[str, list[str]] = {}
    for name, version in versions.items():
        by_version.setdefault(words.value(version), []).append(spaced(name))
    return "; ".join(f"{', '.join(names)}: {version}" for version, names in by_version.items())


def collection(document: Mapping[str, Json]) -> Mapping[str, Json]:
    """The curator's answers about the data; empty without any."""
    data = document.get("data")
    answers = data.get("collection") if isinstance(data, Mapping) else None
    return answers if isinstance(answers, Mapping) else FrozenMap()


def deployment(document: Mapping[str, Json]) -> Mapping[str, Json]:
    """The declared facts about the deployment; empty without any."""
    declared = document.get("deployment")
    return declared if isinstance(declared, Mapping) else FrozenMap()


def data_name(audit: AuditResult) -> str:
    data, name = audit.document.get("data"), collection(audit.document).get("name")
    stated = f"{name} (declared)" if name else ""
    if audit.recording is not None:
        origin = audit.recording.origin
        class_name = f"class {origin.dataset}" if origin is not None and origin.dataset else "no dataset seen"
        return f"{stated}; {class_name}" if stated else f"{class_name}; no name declared"
    values = data if isinstance(data, Mapping) else {}
    kind = str(values.get("kind") or "unknown")
    path = f" {values['path']}" if isinstance(values.get("path"), str) else ""
    return f"{stated}; {kind}{path}" if stated else f"{kind}{path}"


def records(audit: AuditResult) -> str:
    origin = None if audit.recording is None else audit.recording.origin
    if audit.recording is not None:
        if origin is None or origin.records is None:
            return "not recorded"
        return words.count(origin.records, "client" if origin.federated else "record")
    tested = f", {words.count(audit.facts.test_records, 'test record')}" if audit.facts.test_records else ""
    users = f" of {words.count(audit.facts.users, 'user')}" if audit.facts.users else ""
    return f"{words.count(audit.facts.records, 'record')}{users}{tested}"


def _digests(audit: AuditResult) -> Iterator[Row]:
    recording = audit.recording
    if recording is None:
        digest = audit.facts.digest
        yield DATA_DIGEST, digest[:DIGEST] if digest else "none: only public facts are declared"
        if weights := audit.facts.initial_weights:
            yield "Digest of the initial weights", weights[:DIGEST]
        return
    if recording.digest:
        yield "Recording digest", recording.digest[:DIGEST]
    if recording.origin is not None and recording.origin.indices:
        yield "Subset", f"commitment {recording.origin.indices[:DIGEST]} to its indices (the folder has the salt)"


def _operator(audit: AuditResult) -> str:
    operator, owner = deployment(audit.document).get("operator"), audit.document.get("owner")
    if operator:
        return f"{operator} (declared)"
    undeclared = "not declared (deployment.operator)"
    return f"{undeclared}; owner {owner}" if owner else undeclared


def trained(audit: AuditResult) -> str:
    if audit.recording is not None:
        origin = audit.recording.origin
        return f"{origin.began[:10]}, recorded" if origin is not None and origin.began else "recorded, without a date"
    dates = sorted({date[:10] for trial in audit.trials if isinstance(date := trial.recorded.get("made"), str)})
    if not audit.trials:
        return "nothing was trained"
    return " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "without a date"


def training_versions(audit: AuditResult) -> str:
    if audit.recording is not None:
        origin = audit.recording.origin
        return words.conditions(origin.versions) if origin is not None else ""
    used = {
        name: ", ".join(versions)
        for name in _OF_TRIALS
        if (versions := sorted({str(t.recorded[name]) for t in audit.trials if t.recorded.get(name)}))
    }
    return ", ".join(filter(None, (words.conditions(used), *foreign_makers(audit))))


def judging_versions(result: Result) -> str:
    return words.conditions({k: item for k, item in result.environment.items() if k not in _NO_VERSIONS and item})


def _training_machine(audit: AuditResult, origin: RecordedOrigin | None) -> str:
    if audit.recording is not None:
        return origin.machine if origin is not None else ""
    machines = set()
    for trial in audit.trials:
        device, gpu = trial.recorded.get("device"), trial.recorded.get("gpu")
        on = f"{device} ({gpu})" if device and gpu else str(device or "")
        machines.add(", ".join(filter(None, (str(trial.recorded.get("platform") or ""), on))))
    return joined(sorted(machines - {""}))


def _spec(audit: AuditResult) -> Sequence[str]:
    options = audit.document.get("audit")
    seed = options.get("seed") if isinstance(options, Mapping) else None
    texts = (audit.source, f"digest {audit.digest[:DIGEST]}", "" if seed is None else f"seed {words.value(seed)}")
    return [text for text in texts if text]
