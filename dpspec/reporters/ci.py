"""Formats for continuous integration: GitHub workflow commands, JUnit XML and SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote

from dpspec.contract import Json
from dpspec.contract.frozen import digest
from dpspec.contract.results import AuditResult, Result
from dpspec.errors import ExitCode
from dpspec.reporters import words
from dpspec.reporters.limits import large_deltas
from dpspec.reporters.summary import tally
from dpspec.results.void_bounds import for_readers
from dpspec.text import json_text, plain

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite


@dataclass(frozen=True)
class _Problem:
    """An unexpected claim, an unexpected conformance or missing trials; ``claim`` is empty for the latter two."""

    rule: str
    claim: str
    level: str
    subject: str
    label: str
    text: str


def _problems(audit: AuditResult) -> Iterator[_Problem]:
    for verdict in audit.verdicts:
        if not verdict.expected:
            level = "warning" if words.pending(audit, verdict) else "error"
            label, text = words.headline(audit, verdict), words.verdict_line(audit, verdict)
            subject = f"{audit.name}, claim {verdict.claim}"
            yield _Problem(verdict.verdict, verdict.claim, level, subject, label, text)
    conformance = audit.conformance
    if words.wrong_conformance(audit):
        label = words.conformance_label(conformance.status)
        yield _Problem(conformance.status, "", "error", audit.name, label, words.conformance_line(audit))
    if not audit.complete:
        yield _Problem("incomplete", "", "warning", audit.name, "incomplete", words.missing_trials(audit))


def _warnings(audit: AuditResult) -> Iterator[_Problem]:
    for claim, sentence in large_deltas(audit).items():
        yield _Problem("large-delta", claim, "warning", audit.name, "large delta", sentence)


def render_github(result: Result, *, internal: bool = False) -> str:
    """An annotation at the line of each unexpected claim. ``internal`` keeps data-dependent and per-record values."""
    result = for_readers(result, internal=internal)
    lines = []
    for audit in result.audits:
        for problem in (*_problems(audit), *_warnings(audit)):
            position = audit.places.get(problem.claim)
            location = {"file": audit.source} if audit.source else {}
            if position is not None:
                location = {"file": position["file"], "line": str(position["line"]), "col": str(position["column"])}
            title = f"{problem.subject}: {problem.label}"
            lines.append(workflow_command(problem.level, problem.text, title=title, **location))
    kind = "notice" if result.exit_code is ExitCode.OK else "error"
    lines.append(workflow_command(kind, tally(result), title="dpspec"))
    return "\n".join(lines) + "\n"


def workflow_command(kind: str, message: str, **properties: str) -> str:
    """A command to GitHub's runner. Percent signs and line ends are escaped, and colons and commas in properties."""

    def escaped(text: str) -> str:
        return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    listed = ",".join(
        f"{name}={escaped(value).replace(':', '%3A').replace(',', '%2C')}" for name, value in properties.items()
    )
    return f"::{kind} {listed}::{escaped(message)}"


def render_junit(result: Result, *, internal: bool = False) -> str:
    """A suite per audit, a case per claim and one for the conformance; undecided ones are skipped."""
    from junitparser import TestSuite

    suites = []
    for audit in for_readers(result, internal=internal).audits:
        suite = TestSuite(plain(audit.name))
        suite.timestamp = plain(result.created)
        for case in _cases(audit):
            suite.add_testcase(case)
        suite.time = audit.seconds
        suites.append(suite)
    return junit(suites)


def junit(suites: Sequence[TestSuite]) -> str:
    """A document of JUnit XML."""
    from junitparser import JUnitXml

    document = JUnitXml("dpspec")
    for suite in suites:
        document.add_testsuite(suite)
    text: bytes = document.tostring()  # type: ignore[no-untyped-call]
    return text.decode("utf-8") + "\n"


def _cases(audit: AuditResult) -> Iterator[TestCase]:
    from junitparser import Error, Failure, Skipped, TestCase

    name, problems = plain(audit.name), list(_problems(audit))
    by_claim = {problem.claim: problem for problem in problems if problem.claim}
    for verdict in audit.verdicts:
        case = TestCase(plain(verdict.claim), name)
        if (problem := by_claim.get(verdict.claim)) is not None:
            text, label = plain(problem.text), words.verdict_label(audit, verdict)
            case.result = [Skipped(text) if problem.level == "warning" else Failure(text, label)]
        case.system_out = plain(words.verdict_line(audit, verdict))
        yield case
    case = TestCase("conformance", name)
    if sentences := large_deltas(audit):
        case.system_out = plain("\n".join(sentences.values()))
    if audit.conformance.status == "not-run":
        case.result = [Skipped(plain(audit.conformance.reason))]
    trials = []
    for problem in problems:
        if problem.rule == "incomplete":
            trials.append(TestCase("trials", name))
            trials[0].result = [Error(plain(problem.text), problem.rule)]
        elif not problem.claim:
            case.result = [Failure(plain(problem.text), problem.rule)]
    yield from (case, *trials)


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_RULES = {
    "contradicted": "An attack rejects a proved bound: theory, implementation or attack is wrong",
    "refuted": "An attack or a bound rejects a claim",
    "open": "A claim is neither proved nor refuted",
    "supported": "A claim is supported by evidence, not proved",
    "proved": "A claim is proved that was expected to fail",
    "deviates": "The executed run deviates from its declaration",
    "no-deviation-found": "No deviation found in a run that was expected to deviate",
    "not-run": "The conformance of the executed run was not tested",
    "checks-missing": "Planned checks of the executed run are missing",
    "incomplete": "Trials are missing",
    "large-delta": "The delta of a claim is not below 1 / records",
}

_HELP = {name: f"See `dpspec explain {name}`." for name in ("contradicted", "refuted", "open", "supported", "proved")}
_HELP["large-delta"] = "See `dpspec explain large-delta`."
_HELP["incomplete"] = "The same command with the same store adds the missing trials."


def render_sarif(result: Result, *, internal: bool = False) -> str:
    """A result at the line of each unexpected claim."""
    result = for_readers(result, internal=internal)
    rules = [
        {
            "id": f"dpspec/{name}",
            "shortDescription": {"text": text},
            "help": {"text": _HELP.get(name, "See `dpspec explain audit.expect`.")},
            "defaultConfiguration": {"level": "warning" if name in ("incomplete", "large-delta") else "error"},
        }
        for name, text in _RULES.items()
    ]
    invocation = {"executionSuccessful": True, "endTimeUtc": result.created.replace("+00:00", "Z")}
    results = [_result(audit, item) for audit in result.audits for item in (*_problems(audit), *_warnings(audit))]
    return sarif(str(result.environment.get("dpspec", "0")), rules, invocation, results)


def sarif(version: str, rules: Sequence[Json], invocation: Json, results: Sequence[Json]) -> str:
    """A document of SARIF 2.1.0 with one run."""
    run = {
        "tool": {"driver": {"name": "dpspec", "semanticVersion": version, "rules": rules}},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    document = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json_text(json.dumps(document, indent=2, allow_nan=False)) + "\n"


def artifact_uri(file: str) -> str:
    """The path of a file as a relative reference of SARIF."""
    path = PurePath(file).as_posix()
    try:
        return quote(path, errors="surrogateescape")  # undecodable bytes of a name are kept
    except UnicodeEncodeError:
        return quote(path, errors="backslashreplace")


def _result(audit: AuditResult, problem: _Problem) -> Json:
    at = audit.places.get(problem.claim) or {"file": audit.source or "spec", "line": 1, "column": 1}
    prefix = "conformance " if not problem.claim and problem.level == "error" else ""
    text = f"{problem.subject}: {prefix}{problem.text}"
    return {
        **sarif_result(problem.rule, list(_RULES), problem.level, text, at["file"], at["line"], at["column"]),
        "partialFingerprints": {"dpspec/claim/v1": digest([audit.name, problem.claim])},
    }


def sarif_result(
    rule: str, rules: Sequence[str], level: str, text: str, file: str, line: int, column: int
) -> dict[str, Json]:
    """A result of SARIF at a place in a file; ``rules`` are the names of all rules of the run."""
    region = {"startLine": line, "startColumn": column}
    location = {"artifactLocation": {"uri": artifact_uri(file)}, "region": region}
    return {
        "ruleId": f"dpspec/{rule}",
        "ruleIndex": rules.index(rule),
        "level": level,
        "message": {"text": plain(text)},
        "locations": [{"physicalLocation": location}],
    }
