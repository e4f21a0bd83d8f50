"""A result as GitHub-flavoured Markdown, for a job summary or a comment: the table of claims and what it rests on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dpspec.engine.redact import redact
from dpspec.engine.results.joined import sources
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.reporters.view import sentences, words
from dpspec.reporters.view.limits import limits, recipes
from dpspec.text import markdown, plain


def render(result: Result, *, internal: bool = False) -> str:
    """The report as Markdown text; data-dependent and per-record values only where ``internal`` asks for them."""
    if not internal:
        result = redact(result)
    lines = ["# dpspec", "", f"**{markdown(words.tally(result))}**", ""]
    for source, audit in zip(sources(result), result.audits, strict=True):
        lines.extend(_audit(audit, source))
    lines.extend(["## What this does not show", ""])
    lines.extend(f"- {markdown(sentence)}" for sentence in (*result.notes, *limits(result)))
    lines.extend(["", "## How to reproduce", ""])
    for recipe in recipes(result):
        lines.extend([f"### {markdown(recipe.of)}", ""] if recipe.of else [])
        lines.extend([*_fenced(shlex.join(plain(part) for part in recipe.command)), ""])
        lines.extend(f"- {markdown(name)}: {markdown(text)}" for name, text in recipe.facts)
        lines.extend([""] if recipe.of else [])
    return "\n".join(lines) + "\n"


def _audit(audit: AuditResult, source: str) -> Iterator[str]:
    yield f"## {markdown(audit.name)}"
    yield ""
    if source:
        yield f"From {markdown(source)}."
        yield ""
    for verdict in audit.verdicts:
        if verdict.verdict == "contradicted":
            yield f"> **CONTRADICTED** {markdown(verdict.claim)}: {markdown(verdict.reason)}"
            yield ""
    if audit.verdicts:
        claimed = any(words.claimed(verdict) for verdict in audit.verdicts)
        yield f"| Verdict | Claim | Says | {'Claimed | ' if claimed else ''}Interval | Outcome |"
        yield f"|---|---|---|{'---|' if claimed else ''}---|---|"
        for verdict in audit.verdicts:
            yield f"| {' | '.join(_row(audit, verdict, claimed=claimed))} |"
        yield ""
    conformance = audit.conformance
    outcome = words.conformance_outcome(audit)
    status = f"**{conformance.status}**, {markdown(outcome)}" if outcome else f"**{conformance.status}**"
    yield f"Conformance: {status}. {markdown(conformance.reason)}"
    yield ""
    for said in sentences.as_run(audit):
        yield markdown(said)
        yield ""
    told = sentences.findings(audit)
    if told:
        yield "<details><summary>Findings</summary>"
        yield ""
        yield "| Number | At | Of | Kind | Method | Source |"
        yield "|---|---|---|---|---|---|"
        for finding in told:
            cells = (
                words.statement(finding),
                words.conditions(finding.at),
                words.scope(finding),
                words.rigor(finding),
                finding.method,
                finding.source,
            )
            yield f"| {' | '.join(markdown(cell) for cell in cells)} |"
        yield ""
        yield "</details>"
        yield ""
    for note in (*audit.notes, words.left_out(audit)):
        if note:
            yield markdown(note)
            yield ""


def _row(audit: AuditResult, verdict: Verdict, *, claimed: bool) -> tuple[str, ...]:
    value = (words.claimed(verdict),) if claimed else ()
    cells = (verdict.claim, verdict.text, *value, words.interval(audit, verdict), words.outcome(audit, verdict))
    return (f"**{verdict.verdict}**", *(markdown(cell) for cell in cells))


def _fenced(text: str) -> tuple[str, ...]:
    """A code block whose fence is longer than any run of backticks inside."""
    fence = "```"
    while fence in text:
        fence += "`"
    return (f"{fence}sh", text, fence)
