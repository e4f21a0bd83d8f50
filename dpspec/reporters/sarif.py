"""A result as SARIF 2.1.0, which code-scanning pages read: a result at the line of every claim that came out wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePath
from urllib.parse import quote

from dpspec.contract import Json
from dpspec.contract.canonical import digest
from dpspec.engine.joined import apart
from dpspec.engine.redact import redact
from dpspec.engine.result import AuditResult, Result
from dpspec.reporters import words
from dpspec.reporters.escape import plain

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_RULES = {
    "contradicted": "An attack rejects a proved bound: theory, implementation or attack is wrong",
    "refuted": "An attack or a bound rejects what a claim says",
    "open": "Nothing decides a claim",
    "supported": "A claim is supported by evidence that is no proof",
    "proved": "A claim is proved that was expected to fail",
    "deviates": "What ran is not what was declared",
    "conforms-within": "What ran conforms although it was expected to deviate",
    "not-run": "What ran was not tested although it was expected to deviate",
    "incomplete": "Trials are missing",
}

_HELP = {name: f"See `dpspec explain {name}`." for name in ("contradicted", "refuted", "open", "supported", "proved")}
_HELP["incomplete"] = "The same command with the same store makes the trials that are missing."


def render(result: Result, *, internal: bool = False) -> str:
    """SARIF text; data-dependent and per-record values only where ``internal`` asks for them.

    Only what did not come out as the spec expects is a result: a claim that holds needs nobody's attention.
    """
    if not internal:
        result = redact(result)
    runs = [_run(part) for part in apart(result)]
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": runs}, indent=2, allow_nan=False) + "\n"


def _run(result: Result) -> Json:
    """One invocation."""
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
            text = f"{audit.name}, claim {verdict.claim}: {words.verdict_line(audit, verdict)}"
            level = "warning" if words.pending(audit, verdict) else "error"
            yield _result(audit, verdict.verdict, verdict.claim, text, level)
    found = audit.conformance
    if not found.expected and not words.untested(audit):
        yield _result(audit, found.status, "", f"{audit.name}: conformance {words.conformance_line(audit)}")
    if not audit.complete:
        yield _result(audit, "incomplete", "", f"{audit.name}: {words.missing_trials(audit)}", level="warning")


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
        "artifactLocation": {"uri": quote(PurePath(place["file"]).as_posix())},
        "region": {"startLine": place["line"], "startColumn": place["column"]},
    }


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
