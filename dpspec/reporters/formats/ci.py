"""Formats for continuous integration: GitHub workflow commands, JUnit XML and SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote

from dpspec.contract import Json
from dpspec.contract.canonical import digest
from dpspec.engine.redact import redact
from dpspec.engine.results.joined import apart
from dpspec.engine.results.result import AuditResult, Result
from dpspec.reporters import labels
from dpspec.reporters.summary import tally
from dpspec.text import json_text, plain

if TYPE_CHECKING:
    from junitparser import TestCase


def render_github(result: Result, *, internal: bool = False) -> str:
    """An annotation at the line of each unexpected claim. ``internal`` keeps data-dependent and per-record values."""
    if not internal:
        result = redact(result)
    lines = [line for audit in result.audits for line in _annotations(audit)]
    lines.append(_command("notice", tally(result), title="dpspec"))
    return "\n".join(lines) + "\n"


def _annotations(audit: AuditResult) -> Iterator[str]:
    for verdict in audit.verdicts:
        if not verdict.expected:
            title = f"{audit.name}, claim {verdict.claim}: {labels.headline(audit, verdict)}"
            kind = "warning" if labels.pending(audit, verdict) else "error"
            yield _command(kind, labels.verdict_line(audit, verdict), title=title, **_place(audit, verdict.claim))
    conformance = audit.conformance
    if not conformance.expected and not labels.untested(audit):
        title = f"{audit.name}: {labels.conformance_label(conformance.status)}"
        yield _command("error", labels.conformance_line(audit), title=title, **_place(audit, ""))
    if not audit.complete:
        yield _command("warning", labels.missing_trials(audit), title=f"{audit.name}: incomplete", **_place(audit, ""))


def _place(audit: AuditResult, claim: str) -> dict[str, str]:
    place = audit.places.get(claim)
    if place is None:
        return {"file": audit.source} if audit.source else {}
    return {"file": place["file"], "line": str(place["line"]), "col": str(place["column"])}


def _command(kind: str, message: str, **properties: str) -> str:
    """Percent signs and line ends are escaped, and colons and commas in properties."""
    listed = ",".join(
        f"{name}={_escaped(plain(value)).replace(':', '%3A').replace(',', '%2C')}" for name, value in properties.items()
    )
    return f"::{kind} {listed}::{_escaped(plain(message))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def render_junit(result: Result, *, internal: bool = False) -> str:
    """A suite per audit, a case per claim and one for the conformance; undecided ones are skipped."""
    from junitparser import JUnitXml, TestSuite

    if not internal:
        result = redact(result)
    document = JUnitXml("dpspec")
    for part in apart(result):
        for audit in part.audits:
            suite = TestSuite(plain(audit.name))
            suite.timestamp = plain(part.created)
            for case in _cases(audit):
                suite.add_testcase(case)
            suite.time = audit.seconds
            document.add_testsuite(suite)
    text: bytes = document.tostring()  # type: ignore[no-untyped-call]
    return text.decode("utf-8") + "\n"


def _cases(audit: AuditResult) -> Iterator[TestCase]:
    from junitparser import Error, Failure, Skipped, TestCase

    name = plain(audit.name)
    for verdict in audit.verdicts:
        case = TestCase(plain(verdict.claim), name)
        if labels.pending(audit, verdict):
            case.result = [Skipped(plain(labels.verdict_line(audit, verdict)))]
        elif not verdict.expected:
            case.result = [Failure(plain(labels.verdict_line(audit, verdict)), labels.verdict_label(audit, verdict))]
        case.system_out = plain(labels.verdict_line(audit, verdict))
        yield case
    conformance = audit.conformance
    case = TestCase("conformance", name)
    if not conformance.expected and not labels.untested(audit):
        case.result = [Failure(plain(labels.conformance_line(audit)), conformance.status)]
    elif conformance.status == "not-run":
        case.result = [Skipped(plain(conformance.reason))]
    yield case
    if not audit.complete:
        case = TestCase("trials", name)
        case.result = [Error(plain(labels.missing_trials(audit)), "incomplete")]
        yield case


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

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
}

_HELP = {name: f"See `dpspec explain {name}`." for name in ("contradicted", "refuted", "open", "supported", "proved")}
_HELP["incomplete"] = "The same command with the same store adds the missing trials."


def render_sarif(result: Result, *, internal: bool = False) -> str:
    """A result at the line of each unexpected claim."""
    if not internal:
        result = redact(result)
    runs = [_run(part) for part in apart(result)]
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": runs}
    return json_text(json.dumps(document, indent=2, allow_nan=False)) + "\n"


def _run(result: Result) -> Json:
    driver: dict[str, Json] = {
        "name": "dpspec",
        "semanticVersion": _version(result),
        "rules": [_rule(name, text) for name, text in _RULES.items()],
    }
    return {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "endTimeUtc": _zulu(result.created)}],
        "columnKind": "unicodeCodePoints",
        "results": [item for audit in result.audits for item in _results(audit)],
    }


def _results(audit: AuditResult) -> Iterator[Json]:
    for verdict in audit.verdicts:
        if not verdict.expected:
            text = f"{audit.name}, claim {verdict.claim}: {labels.verdict_line(audit, verdict)}"
            level = "warning" if labels.pending(audit, verdict) else "error"
            yield _result(audit, verdict.verdict, verdict.claim, text, level)
    conformance = audit.conformance
    if not conformance.expected and not labels.untested(audit):
        yield _result(audit, conformance.status, "", f"{audit.name}: conformance {labels.conformance_line(audit)}")
    if not audit.complete:
        yield _result(audit, "incomplete", "", f"{audit.name}: {labels.missing_trials(audit)}", level="warning")


def _result(audit: AuditResult, rule: str, claim: str, text: str, level: str = "error") -> Json:
    return {
        "ruleId": f"dpspec/{rule}",
        "ruleIndex": list(_RULES).index(rule),
        "level": level,
        "message": {"text": plain(text)},
        "locations": [{"physicalLocation": _location(audit, claim)}],
        "partialFingerprints": {"dpspec/claim/v1": digest([audit.name, claim])},
    }


def _location(audit: AuditResult, claim: str) -> Json:
    place = audit.places.get(claim) or {"file": audit.source or "spec", "line": 1, "column": 1}
    return {
        "artifactLocation": {"uri": _uri(place["file"])},
        "region": {"startLine": place["line"], "startColumn": place["column"]},
    }


def _uri(file: str) -> str:
    """Undecodable bytes of a name are kept."""
    path = PurePath(file).as_posix()
    try:
        return quote(path, errors="surrogateescape")
    except UnicodeEncodeError:
        return quote(path, errors="backslashreplace")


def _rule(name: str, text: str) -> Json:
    level = "warning" if name == "incomplete" else "error"
    return {
        "id": f"dpspec/{name}",
        "shortDescription": {"text": text},
        "help": {"text": _HELP.get(name, "See `dpspec explain audit.expect`.")},
        "defaultConfiguration": {"level": level},
    }


def _version(result: Result) -> str:
    return str(result.environment.get("dpspec", "0"))


def _zulu(created: str) -> str:
    return created.replace("+00:00", "Z")
