"""Formats for continuous integration: GitHub workflow commands, JUnit XML and SARIF 2.1.0."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote

from dpspec.contract import Json
from dpspec.contract.frozen import digest
from dpspec.contract.results import AuditResult, Regression, Result, accepted_cautions, open_cautions
from dpspec.reporters import words
from dpspec.reporters.summary import answer
from dpspec.results.regressions import in_words
from dpspec.results.status import problems
from dpspec.results.void_bounds import for_readers
from dpspec.text import json_text, plain

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A problem of an audit, an accepted caution, or a warning, as these formats show it.

    Attributes:
        rule: The verdict, the conformance, the name of a caution, or ``incomplete``.
        claim: The claim's id; empty for the further.
        level: ``error`` for a failure, ``warning`` for what missing trials may resolve, ``notice`` for the accepted.
        subject: The audit, and the claim.
        label: The rule in words.
        text: The numbers and the reason.
        accepted: The reason of the user who accepts a caution.
    """

    rule: str
    claim: str
    level: str
    subject: str
    label: str
    text: str
    accepted: str = ""


def _problems(audit: AuditResult, *, compared: bool) -> Iterator[_Entry]:
    """The problems of an audit; notices if the result was ``compared`` with an earlier one, whose changes decide."""
    for problem in problems(audit):
        subject = f"{audit.name}, claim {problem.name}" if problem.kind == "claim" else audit.name
        yield _Entry(
            rule=problem.name if problem.kind == "caution" else problem.status,
            claim=problem.claim,
            level="notice" if compared else "error" if problem.certain else "warning",
            subject=subject,
            label=words.problem_label(audit, problem),
            text=words.problem(audit, problem),
        )


def _remarks(audit: AuditResult) -> Iterator[_Entry]:
    """Accepted cautions, which fail nothing."""
    for rule in accepted_cautions(audit):
        label, text = f"accepted caution {rule.name}", words.accepted(rule)
        yield _Entry(
            rule=rule.name, claim="", level="notice", subject=audit.name, label=label, text=text, accepted=rule.accepted
        )


def _position(audit: AuditResult, entry: _Entry) -> Mapping[str, Json]:
    """The claim's place in its spec; else the spec, or the folder of a recorded run."""
    training = audit.document.get("training")
    run = str(training.get("run") or "") if audit.recording is not None and isinstance(training, Mapping) else ""
    return audit.places.get(entry.claim) or {"file": audit.source or run or "spec", "line": 1, "column": 1}


def render_github(result: Result, *, internal: bool = False) -> str:
    """An annotation at the line of each unexpected claim. ``internal`` keeps data-dependent and per-record values."""
    result = for_readers(result, internal=internal)
    lines = []
    for audit in result.audits:
        for entry in (*_problems(audit, compared=result.regressions is not None), *_remarks(audit)):
            position = audit.places.get(entry.claim)
            location = {"file": audit.source} if audit.source else {}
            if position is not None:
                location = _annotated(position)
            title = f"{entry.subject}: {entry.label}"
            lines.append(workflow_command(entry.level, entry.text, title=title, **location))
    for regression in result.regressions or ():
        position = _regressed_position(result, regression)
        location = _annotated(position) if position else {}
        title = f"{regression.audit}: regression"
        lines.append(workflow_command("error", in_words(regression), title=title, **location))
    for spec in result.unjudged:
        location = {"file": spec.file, "line": str(spec.line)}
        lines.append(workflow_command("error", spec.message, title=f"{spec.file}: not judged", **location))
    outcome = answer(result)
    kind = "notice" if outcome.passed else "error"
    lines.append(workflow_command(kind, f"{outcome.tally} (exit code {outcome.exit_code:d})", title="dpspec"))
    return "\n".join(lines) + "\n"


def _annotated(position: Mapping[str, Json]) -> dict[str, str]:
    """The place in a file as properties of a workflow command."""
    return {"file": str(position["file"]), "line": str(position["line"]), "col": str(position["column"])}


def _regressed_position(result: Result, regression: Regression) -> Mapping[str, Json]:
    """The place of the claim in its spec, else of the spec; empty if it is not known, as of a removed audit."""
    for audit in result.audits:
        if audit.name == regression.audit:
            return audit.places.get(regression.claim) or audit.places.get("") or {}
    return {}


def workflow_command(kind: str, message: str, **properties: str) -> str:
    """A command to GitHub's runner. Percent signs and line ends are escaped, and colons and commas in properties."""
    if "file" in properties:
        properties["file"] = in_workspace(properties["file"])

    def escaped(text: str) -> str:
        return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    listed = ",".join(
        f"{name}={escaped(value).replace(':', '%3A').replace(',', '%2C')}" for name, value in properties.items()
    )
    return f"::{kind} {listed}::{escaped(message)}"


def render_junit(result: Result, *, internal: bool = False) -> str:
    """A suite per audit, and a case for each claim, the conformance and each caution; undecided ones are skipped."""
    from junitparser import TestSuite

    suites = []
    for audit in for_readers(result, internal=internal).audits:
        suite = TestSuite(plain(audit.name))
        suite.add_property("dpspec.exit_code", str(int(result.exit_code)))
        suite.timestamp = plain(result.created)
        for case in _cases(audit, compared=result.regressions is not None):
            suite.add_testcase(case)
        suite.time = audit.seconds
        suites.append(suite)
    if result.unjudged:
        suites.append(_unjudged_specs(result))
    if result.regressions is not None:
        suites.append(_earlier_result(result))
    return junit(suites)


def _earlier_result(result: Result) -> TestSuite:
    """A suite with a failure for each regression, or a case that passes."""
    from junitparser import Failure, TestCase, TestSuite

    suite = TestSuite("earlier result")
    suite.add_property("dpspec.exit_code", str(int(result.exit_code)))
    for regression in result.regressions or ():
        text = plain(in_words(regression))
        case = TestCase(text, "earlier result")
        case.result = [Failure(text, "regression")]
        suite.add_testcase(case)
    if not result.regressions:
        suite.add_testcase(TestCase("no regression", "earlier result"))
    return suite


def _unjudged_specs(result: Result) -> TestSuite:
    """A suite with an error for each spec that has no audit."""
    from junitparser import Error, TestCase, TestSuite

    suite = TestSuite("specs")
    suite.add_property("dpspec.exit_code", str(int(result.exit_code)))
    for spec in result.unjudged:
        case = TestCase(plain(spec.file), "specs")
        case.result = [Error(plain(spec.message), "invalid-spec")]
        suite.add_testcase(case)
    return suite


def junit(suites: Sequence[TestSuite]) -> str:
    """A document of JUnit XML."""
    from junitparser import JUnitXml

    document = JUnitXml("dpspec")
    for suite in suites:
        document.add_testsuite(suite)
    text: bytes = document.tostring()  # type: ignore[no-untyped-call]
    return text.decode("utf-8") + "\n"


def _cases(audit: AuditResult, *, compared: bool) -> Iterator[TestCase]:
    """Its problems fail nothing if the result was ``compared`` with an earlier one."""
    from junitparser import Error, Failure, Skipped, TestCase

    def failure(text: str, kind: str) -> Failure | Skipped:
        return Skipped(text) if compared else Failure(text, kind)

    name, entries = plain(audit.name), list(_problems(audit, compared=compared))
    cautions = {rule.name for rule in open_cautions(audit)}
    by_claim = {entry.claim: entry for entry in entries if entry.claim and entry.rule not in cautions}
    for verdict in audit.verdicts:
        case = TestCase(plain(verdict.claim), name)
        if (entry := by_claim.get(verdict.claim)) is not None:
            text, label = plain(entry.text), words.verdict_label(audit, verdict)
            case.result = [Skipped(text) if entry.level == "warning" else failure(text, label)]
        case.system_out = plain(words.verdict_line(audit, verdict))
        yield case
    case = TestCase("conformance", name)
    if audit.conformance.status == "not-run":
        case.result = [Skipped(plain(audit.conformance.reason))]
    further = []
    for problem in problems(audit):
        text, kind = plain(words.problem(audit, problem)), plain(problem.status)
        if problem.kind == "conformance":
            case.result = [failure(text, kind)]
        elif problem.kind == "trials":
            further.append(TestCase("trials", name))
            further[-1].result = [Error(text, kind)]
        elif problem.kind == "caution":
            further.append(TestCase(plain(f"caution {problem.name}"), name))
            further[-1].result = [failure(text, kind)]
    for rule in accepted_cautions(audit):
        further.append(TestCase(plain(f"accepted caution {rule.name}"), name))
        further[-1].system_out = plain(words.accepted(rule))
    yield from (case, *further)


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
    "invalid-spec": "A spec has errors and was not judged",
    "regression": "A value is worse than in the earlier result",
}

_HELP = {name: f"See `dpspec explain {name}`." for name in ("contradicted", "refuted", "open", "supported", "proved")}
_HELP["incomplete"] = "The same command with the same store adds the missing trials."


def render_sarif(result: Result, *, internal: bool = False) -> str:
    """A result at the line of each unexpected claim, and one for each caution; accepted ones are suppressed."""
    result = for_readers(result, internal=internal)
    fired = {rule.name: rule for audit in result.audits for rule in (*open_cautions(audit), *accepted_cautions(audit))}
    texts = {**_RULES, **{name: rule.why for name, rule in fired.items()}}
    helps = {**_HELP, **{name: rule.fix for name, rule in fired.items()}}
    rules = [
        {
            "id": f"dpspec/{plain(name)}",
            "shortDescription": {"text": plain(text)},
            "help": {"text": plain(helps.get(name, "See `dpspec explain audit.expect`."))},
            "defaultConfiguration": {"level": "warning" if name == "incomplete" else "error"},
        }
        for name, text in texts.items()
    ]
    outcome = answer(result)
    invocation = {
        "executionSuccessful": True,
        "exitCode": int(outcome.exit_code),
        "exitCodeDescription": plain(outcome.tally),
        "endTimeUtc": result.created.replace("+00:00", "Z"),
    }
    results = [
        _result(audit, entry, list(texts))
        for audit in result.audits
        for entry in (*_problems(audit, compared=result.regressions is not None), *_remarks(audit))
    ]
    sources = {audit.name: audit.source or "spec" for audit in result.audits}
    for change in result.regressions or ():
        beginning = {"file": sources.get(change.audit, "spec"), "line": 1, "column": 1}
        position = {**beginning, **_regressed_position(result, change)}
        file, line, column = str(position["file"]), int(position["line"]), int(position["column"])
        results.append(sarif_result("regression", list(texts), "error", in_words(change), file, line, column))
    results += [
        sarif_result("invalid-spec", list(texts), "error", spec.message, spec.file, spec.line, 1)
        for spec in result.unjudged
    ]
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


def in_workspace(file: str) -> str:
    """The path from the root of GitHub's checkout, for an existing file; else the path unchanged.

    GitHub places annotations by paths from ``GITHUB_WORKSPACE``. A job can run dpspec in another folder.
    """
    workspace = os.environ.get("GITHUB_WORKSPACE")
    if not workspace or PurePath(file).is_absolute():
        return file
    try:
        path = Path(file).resolve()
        return path.relative_to(Path(workspace).resolve()).as_posix() if path.exists() else file
    except (OSError, ValueError):
        return file


def artifact_uri(file: str) -> str:
    """The path of a file as a relative reference of SARIF."""
    path = PurePath(in_workspace(file)).as_posix()
    try:
        return quote(path, errors="surrogateescape")  # undecodable bytes of a name are kept
    except UnicodeEncodeError:
        return quote(path, errors="backslashreplace")


def _result(audit: AuditResult, entry: _Entry, rules: Sequence[str]) -> Json:
    position = _position(audit, entry)
    level = {"notice": "note"}.get(entry.level, entry.level)
    text = f"{entry.subject}: {entry.text}"
    identity = [audit.name, entry.claim] if entry.rule in _RULES else [audit.name, entry.claim, entry.rule]
    shown = sarif_result(entry.rule, rules, level, text, str(position["file"]), position["line"], position["column"])
    shown["partialFingerprints"] = {"dpspec/claim/v1": digest(identity)}
    if entry.accepted:  # viewers count a suppressed result as resolved
        shown["suppressions"] = [{"kind": "external", "status": "accepted", "justification": plain(entry.accepted)}]
    return shown


def sarif_result(
    rule: str, rules: Sequence[str], level: str, text: str, file: str, line: int, column: int
) -> dict[str, Json]:
    """A result of SARIF at a place in a file; ``rules`` are the names of all rules of the run."""
    region = {"startLine": line, "startColumn": column}
    location = {"artifactLocation": {"uri": artifact_uri(file)}, "region": region}
    return {
        "ruleId": f"dpspec/{plain(rule)}",
        "ruleIndex": rules.index(rule),
        "level": level,
        "message": {"text": plain(text)},
        "locations": [{"physicalLocation": location}],
    }
