"""The report of ``dpspec run``: a line for what is as expected, then what is not, in full.

The whole report is :mod:`dpspec.reporters.formats.terminal`.
"""

from __future__ import annotations

import math
from collections import Counter

from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.redact import redact
from dpspec.engine.results import decimals, recording
from dpspec.engine.results.joined import apart
from dpspec.engine.results.matrices import Matrix
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.language.selections import is_selection
from dpspec.reporters.formats import terminal
from dpspec.reporters.view import cells, sentences, words
from dpspec.reporters.view.audited import audited
from dpspec.reporters.view.cells import cell_title
from dpspec.reporters.view.limits import made_before, recorded
from dpspec.reporters.view.page_layout import Page, text_table

#: Audits up to so many are shown claim by claim; of more each that is as expected has one line.
_MANY = 6

#: Where to find what is left out here.
_MORE = "-v shows findings, checks, assumptions and limits; nothing is trained again."


def render(result: Result, *, internal: bool = False, width: int = 80, color: bool = False) -> str:
    """The report as text of at most ``width`` columns; :func:`dpspec.reporters.view.tally.tally` is to follow.

    internal: keep data-dependent and per-record values, which are otherwise left out and counted.
    """
    if not internal:
        result = redact(result)
    page = Page(width, color=color)
    terminal.alarm(page, result)
    several, many = len(result.audits) > 1, len(result.audits) > _MANY
    shown = {id(one): matrix for matrix in result.matrices for one in matrix.audits}
    for audit in result.audits:
        if (matrix := shown.get(id(audit))) is not None:
            if audit is matrix.audits[0]:
                _matrix(page, matrix)
            continue
        if many and audit.as_expected and not is_selection(audit.document):
            _in_one_line(page, audit)
            continue
        if several:
            page.line((audit.name, "underline"))
        if audit.recording is not None:
            _recorded(page, audit, f": {audit.name}" if several else "")
            continue
        _as_expected(page, audit)
        if audit.conformance.expected or words.untested(audit):
            _conformance(page, audit)
        for note in audit.notes:
            page.item(note)
    for audit in result.audits:
        if audit.recording is not None:
            continue
        cell = shown.get(id(audit))
        name = audit.name if cell is None else f"{cell.name}, {cell_title(cell, audit)} ({audit.name})"
        _not_as_expected(page, audit, name if several else "")
    untrained = [audit for audit in result.audits if not (audit.planned_trials or recorded(audit))]
    if untrained:
        of = f" for {words.count(len(untrained), 'audit')}" if several else ""
        page.item(f"Nothing was trained{of}: results apply to the specification; no code was run.")
    for sentence in (*result.notes, *(told for one in apart(result) for told in made_before(one))):
        page.item(sentence)
    page.blank()
    page.line(_MORE)
    return page.text()


def _recorded(page: Page, audit: AuditResult, suffix: str) -> None:
    """A recorded training: its claims with their reasons, every epsilon, and what the recording shows."""
    if not audit.verdicts:
        page.line(("NOTHING CLAIMED", "bold yellow"), ": no claim can be proved or refuted", indent=2, hang=2)
    for verdict in audit.verdicts:
        terminal.claim(page, audit, verdict)
    if audit.conformance.expected:
        _conformance(page, audit)
    else:
        _deviation(page, audit)
    if audit.recording is not None:
        for note in audit.recording.cautions:
            page.item(("Note: ", "bold"), note)
    page.heading(f"Epsilon{suffix}")
    adversary = next((text for term, text in audited(audit) if term == "Adversary"), "")
    if adversary:
        page.line(f"{words.sentence(adversary)}.", indent=2)
    if audit.conformance.status != "no-deviation-found":
        page.line("The run deviates: these bounds hold for the recorded schedule, not for the run.", indent=2)
    for finding in audit.findings:
        own = finding.source.startswith(recording.SOURCE) or finding.scope.pipeline == "executed"
        if finding.quantity == "epsilon" and own:
            tight = "" if finding.lower is None else f" (true value >= {decimals.lower(finding.lower)})"
            at, method = words.conditions(finding.at), finding.method
            page.item(f"{words.statement(finding)}{tight} at {at}, {words.rigor(finding)}: {method}")
    terminal.recording(page, audit, suffix, cautions=False)
    for note in audit.notes:
        page.item(note)


def _matrix(page: Page, matrix: Matrix[AuditResult]) -> None:
    """A heading, and a row for each cell: a table where the page is wide enough, or a line of its verdicts."""
    page.line((f"{matrix.name}, {len(matrix.audits)} cells", "underline"))
    head, rows = cells.table(matrix)
    lines = text_table([head, *rows])
    if max(map(len, lines)) <= page.width - 2:
        for line in lines:
            page.line(line, indent=2)
    else:
        for audit in matrix.audits:
            page.line(f"{cell_title(matrix, audit)}: {_counted(audit)}", indent=2, hang=2)
    for note in dict.fromkeys(note for audit in matrix.audits for note in audit.notes):
        page.item(note)


def _in_one_line(page: Page, audit: AuditResult) -> None:
    page.line(f"{audit.name}: {_counted(audit)}", hang=2)


def _counted(audit: AuditResult) -> str:
    counted = Counter(words.verdict_label(audit, verdict) for verdict in audit.verdicts)
    said = ", ".join(f"{number} {label}" for label, number in counted.items()) or "no claim"
    ran = f"; {words.conformance_label(audit.conformance.status)}" if audit.executed else ""
    wrong = "as expected" if audit.as_expected else "NOT AS EXPECTED"
    return f"{said}{ran}, {wrong}"


def _as_expected(page: Page, audit: AuditResult) -> None:
    if not audit.verdicts:
        page.line("No claim was made.", indent=2)
    for verdict in audit.verdicts:
        if verdict.expected:
            _claim(page, audit, verdict)


def _claim(page: Page, audit: AuditResult, verdict: Verdict) -> None:
    claimed = words.claimed(verdict)
    wanted = "as expected" if verdict.verdict not in ("proved", "supported") else ""
    rest = [words.access(audit, verdict), f"claimed {claimed}" if claimed else "", wanted]
    told = f" {words.interval(audit, verdict)}: {', '.join([verdict.text, *filter(None, rest)])}"
    terminal.row(page, words.headline(audit, verdict), (verdict.claim, "bold"), told)


def _conformance(page: Page, audit: AuditResult) -> None:
    """Write one row, if a run was executed."""
    status, outcome = audit.conformance.status, words.conformance_outcome(audit)
    if not outcome:
        return
    label = words.conformance_label(status)
    if status != "no-deviation-found":
        terminal.row(page, label, f"{outcome}: {audit.conformance.reason}")
        return
    sharpest: dict[str, float] = {}
    for check in audit.checks:
        if check.detectable is not None and 0.0 <= check.detectable < math.inf:
            sharpest[check.assumption] = min(check.detectable, sharpest.get(check.assumption, math.inf))
    blind = dict.fromkeys(check.assumption for check in audit.checks if check.assumption not in sharpest)
    parts = [words.count(len(audit.checks), "check")]
    sizes = sorted((size, name) for name, size in sharpest.items() if size > 0.0)
    if sizes:
        sharp, blunt = (f"{decimals.upper(100 * size, digits=2)}% ({name})" for size, name in (sizes[0], sizes[-1]))
        parts.append(
            f"smallest detectable deviation {sharp if sharp == blunt else f'per kind from {sharp} to {blunt}'}"
        )
    if blind:
        parts.append(f"no detection limit for {', '.join(blind)}")
    terminal.row(page, label, "; ".join(parts))


def _not_as_expected(page: Page, audit: AuditResult, name: str) -> None:
    """Write unexpected claims with their reasons, then the rejected checks, smallest p-value first."""
    wrong = [verdict for verdict in audit.verdicts if not verdict.expected]
    deviating = not (audit.conformance.expected or words.untested(audit))
    if not wrong and not deviating:
        return
    page.heading(f"Not as expected{f': {name}' if name else ''}")
    for verdict in wrong:
        terminal.claim(page, audit, verdict)
    if deviating:
        _deviation(page, audit)


def _deviation(page: Page, audit: AuditResult) -> None:
    """The conformance, and the checks that are rejected."""
    conformance = audit.conformance
    label = words.conformance_label(conformance.status)
    terminal.row(page, label, f"{words.conformance_outcome(audit)}: {conformance.reason}")
    worst = sorted((check for check in audit.checks if rejected(check, 1)), key=lambda check: check.p_value)
    for check in worst:
        page.item(sentences.check(check), indent=4)
    rest = len(audit.checks) - len(worst)
    if rest:
        others = words.count(rest, "other check") if worst else words.count(rest, "check")
        page.item(f"{others} with p above 1e-6", indent=4)
