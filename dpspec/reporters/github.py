"""A result as GitHub workflow commands: an annotation at the line of every claim that did not come out as expected."""

from __future__ import annotations

from collections.abc import Iterator

from dpspec.engine.redact import redact
from dpspec.engine.result import AuditResult, Result
from dpspec.reporters import words
from dpspec.reporters.escape import plain


def render(result: Result, *, internal: bool = False) -> str:
    """Workflow commands, one a line; data-dependent and per-record values only where ``internal`` asks for them."""
    if not internal:
        result = redact(result)
    lines = [line for audit in result.audits for line in _annotations(audit)]
    lines.append(_command("notice", words.tally(result), title="dpspec"))
    return "\n".join(lines) + "\n"


def _annotations(audit: AuditResult) -> Iterator[str]:
    for verdict in audit.verdicts:
        if not verdict.expected:
            title = f"{audit.name}, claim {verdict.claim}: {verdict.verdict}"
            kind = "warning" if words.pending(audit, verdict) else "error"
            yield _command(kind, words.verdict_line(audit, verdict), title=title, **_place(audit, verdict.claim))
    found = audit.conformance
    if not found.expected and not words.untested(audit):
        title = f"{audit.name}: {found.status}"
        yield _command("error", words.conformance_line(audit), title=title, **_place(audit, ""))
    if not audit.complete:
        yield _command("warning", words.missing_trials(audit), title=f"{audit.name}: incomplete", **_place(audit, ""))


def _place(audit: AuditResult, claim: str) -> dict[str, str]:
    place = audit.places.get(claim)
    if place is None:
        return {"file": audit.source} if audit.source else {}
    return {"file": place["file"], "line": str(place["line"]), "col": str(place["column"])}


def _command(kind: str, message: str, **properties: str) -> str:
    """One workflow command. Percent signs and line ends are escaped everywhere, colons and commas in properties too."""
    listed = ",".join(
        f"{name}={_escaped(plain(value)).replace(':', '%3A').replace(',', '%2C')}" for name, value in properties.items()
    )
    return f"::{kind} {listed}::{_escaped(plain(message))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
