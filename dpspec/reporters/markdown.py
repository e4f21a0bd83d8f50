"""A result as GitHub-flavored Markdown, for a job summary or a comment."""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from dpspec.contract.results import AuditResult, Result, Verdict
from dpspec.reporters import matrices, words
from dpspec.reporters.limits import limits
from dpspec.reporters.provenance import command, provenance
from dpspec.reporters.summary import answer
from dpspec.results.conformance_status import rejected
from dpspec.results.status import open_cautions, wrong_conformance
from dpspec.results.void_bounds import for_readers
from dpspec.text import markdown, plain

#: Of more claims or audits than this, the expected ones are folded.
_MANY = 30

#: The maximum number of listed claims as expected.
_MOST_EXPECTED = 150

#: The length up to which the numbers of audits are added. A comment on GitHub has at most 65,536 characters.
_MOST_CHARACTERS = 56_000


def render(result: Result, *, internal: bool = False) -> str:
    """Unexpected claims come first; findings and recipes are folded."""
    result = for_readers(result, internal=internal)
    several = len(result.audits) > 1
    outcome = answer(result)
    lines = ["# dpspec", "", f"**{markdown(outcome.headline)}**", ""]
    lines += [f"{markdown(outcome.tally)} (exit code {outcome.exit_code:d}).", ""]
    for audit in result.audits:
        for verdict in audit.verdicts:
            if verdict.verdict == "contradicted":
                lines.extend([f"> **CONTRADICTED** {markdown(verdict.claim)}: {markdown(verdict.reason)}", ""])
    gridded = matrices.large(result)
    for matrix in result.matrices:
        if len(matrix.audits) > matrices.MOST_CELLS:
            lines.extend([f"## {markdown(matrix.name)}: {len(matrix.audits)} cells", ""])
            lines.extend(_rows(*matrices.table(matrix)))
    single = [audit for number, audit in enumerate(result.audits) if number not in gridded]
    for audit in single:
        lines.extend(_not_as_expected(audit, several=several))
    judged = [(audit, verdict) for audit in single for verdict in audit.verdicts]
    expected = [pair for pair in judged if pair[1].expected] if len(judged) > _MANY else []
    lines.extend(_table([pair for pair in judged if not (expected and pair[1].expected)], several=several))
    if expected:
        listed = expected[:_MOST_EXPECTED]
        title = f"{words.count(len(expected), 'claim')} as expected"
        title += f", the first {len(listed)} listed" if len(listed) < len(expected) else ""
        lines.extend(_folded(title, _table(listed, several=several)))
    lines.extend(_conformance(single, several=several))
    for audit in result.audits:
        lines.extend(_recording(audit, several=several))
    lines.extend(["## Limits", ""])
    lines.extend(f"- {markdown(sentence)}" for sentence in (*result.notes, *limits(result)))
    lines.append("")
    origin = list(_folded("Provenance", _provenance(result)))
    remaining = _MOST_CHARACTERS - sum(len(line) + 1 for line in (*lines, *origin))
    omitted = 0
    for audit in sorted(single, key=lambda candidate: candidate.as_expected):
        details = list(_folded("Numbers and tests", _details(audit)))
        length = sum(len(line) + 1 for line in details)
        if several and length > remaining:
            omitted += 1
            continue
        remaining -= length
        lines.extend(details)
    further = ["each cell"] if gridded else []
    further += [words.count(omitted, "further audit")] if omitted else []
    if further:
        lines.extend(
            [f"`--report html=FILE` and `json=FILE` have the numbers and tests of {' and '.join(further)}.", ""]
        )
    return "\n".join([*lines, *origin]).rstrip() + "\n"


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    """The title must not contain foreign text: HTML does not escape it."""
    yield from (f"<details><summary>{title}</summary>", "")
    yield from lines
    yield from ("</details>", "")


def _not_as_expected(audit: AuditResult, *, several: bool) -> Iterator[str]:
    wrong = [verdict for verdict in audit.verdicts if not verdict.expected]
    deviating, cautions = wrong_conformance(audit), open_cautions(audit)
    if not wrong and not deviating and not cautions:
        return
    yield from (f"## Not as expected{f': {markdown(audit.name)}' if several else ''}", "")
    for verdict in wrong:
        yield f"- **{words.headline(audit, verdict)}** {markdown(verdict.claim)}: {markdown(verdict.reason)}"
    if deviating:
        yield f"- {_status(audit)}. {markdown(audit.conformance.reason)}"
        for check in sorted(
            (candidate for candidate in audit.checks if rejected(candidate, 1)), key=lambda candidate: candidate.p_value
        ):
            yield f"  - {markdown(words.check(check))}"
    for rule in cautions:
        yield f"- **caution** {markdown(f'{rule.name}: {rule.text} {rule.fix}')}"
    yield ""


def _table(judged: Sequence[tuple[AuditResult, Verdict]], *, several: bool) -> Iterator[str]:
    if not judged:
        return
    claimed = any(words.claimed(verdict) for _, verdict in judged)
    yield f"| Verdict | Claim | Statement | {'Claimed | ' if claimed else ''}Bounds | Outcome |"
    yield f"|---|---|---|{'---|' if claimed else ''}---|---|"
    for audit, verdict in judged:
        name = f"{audit.name}.{verdict.claim}" if several else verdict.claim
        value = (words.claimed(verdict),) if claimed else ()
        cells = (name, verdict.text, *value, str(words.bounds(audit, verdict)), words.outcome(audit, verdict))
        label = f"**{markdown(words.headline(audit, verdict))}**"
        yield f"| {' | '.join([label, *map(markdown, cells)])} |"
    yield ""


def _conformance(audits: Sequence[AuditResult], *, several: bool) -> Iterator[str]:
    expected = [audit for audit in audits if not wrong_conformance(audit)]
    for audit in audits:
        if len(audits) <= _MANY or audit not in expected:
            name = f"- {markdown(audit.name)}: " if several else ""
            yield f"{name}{'c' if several else 'C'}onformance {_status(audit)}."
    if len(audits) > _MANY and expected:
        yield f"- Conformance of {words.count(len(expected), 'other audit')}: as expected."
    yield ""


def _recording(audit: AuditResult, *, several: bool) -> Iterator[str]:
    recording = audit.recording
    if recording is None:
        return
    suffix = f": {markdown(audit.name)}" if several else ""
    yield from (f"## {words.CHANNELS}{suffix}", "")
    yield from _rows(words.CHANNEL_COLUMNS, words.channel_rows(recording))
    yield from (f"## {words.EXECUTED}{suffix}", "")
    yield from (f"- {markdown(line)}" for line in words.executed(recording))
    yield ""
    for line in (words.declared(recording), words.accountant(recording.accountant), *words.recording_notes(recording)):
        if line:
            yield from (markdown(line), "")


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(markdown, head))} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(map(markdown, row))} |" for row in rows)
    yield ""


def _status(audit: AuditResult) -> str:
    outcome = words.conformance_outcome(audit)
    return f"**{words.conformance_label(audit.conformance.status)}**{f', {markdown(outcome)}' if outcome else ''}"


def _details(audit: AuditResult) -> Iterator[str]:
    yield from (f"### {markdown(audit.name)}", "")
    yield from (f"Conformance: {_status(audit)}. {markdown(audit.conformance.reason)}", "")
    for said in words.as_run(audit):
        yield from (markdown(said), "")
    if findings := words.findings(audit):
        rows = (
            (words.statement(f), words.conditions(f.at), words.scope(f), words.rigor(f), f.method, f.source)
            for f in findings
        )
        yield from _rows(("Number", "At", "Of", "Kind", "Method", "Source"), rows)
    for note in (*audit.notes, words.omitted(audit)):
        if note:
            yield from (markdown(note), "")


def _provenance(result: Result) -> Iterator[str]:
    line, fence = shlex.join(plain(part) for part in command(result)), "```"
    while fence in line:
        fence += "`"
    yield from (f"{fence}sh", line, fence, "")
    origin = provenance(result)
    yield from (f"- {markdown(term)}: {markdown(text)}" for term, text in origin.common)
    for name, rows in origin.differing:
        yield f"- {markdown(name)}: {markdown('; '.join(f'{term} {text}' for term, text in rows))}"
    yield ""
