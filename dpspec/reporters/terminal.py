"""The report for terminals and logs: brief, or the whole report with ``-v``.

The brief report has a line for each expected claim, and unexpected claims and deviations in full.
"""

import math
from collections.abc import Sequence

from dpspec import decimals
from dpspec.contract import Finding
from dpspec.contract.results import AuditResult, Result, Verdict
from dpspec.reporters import matrices, words
from dpspec.reporters.checked_run import checked_run
from dpspec.reporters.deviations import next_steps
from dpspec.reporters.layout import Page, constants, rounding, series_table, text_table
from dpspec.reporters.limits import large_deltas, limits, stored_trials
from dpspec.reporters.provenance import command, provenance
from dpspec.reporters.summary import answer, remedies, tally
from dpspec.results.conformance_status import missing, rejected
from dpspec.results.status import wrong_conformance
from dpspec.results.void_bounds import for_readers

_STYLE = {
    "contradicted": "bold white on red",
    "refuted": "bold red",
    "proved": "bold green",
    words.AS_DECLARED: "bold yellow",
    words.BUT_CAUTIONS: "bold red",
    "supported": "green",
    "open": "yellow",
    "no deviation found": "green",
    "deviates": "bold red",
    "checks missing": "bold red",
    "not tested": "yellow",
    "false": "bold red",
    "unchecked": "yellow",
}

#: The width of the column of verdicts; ``contradicted`` is the longest.
_VERDICT_WIDTH = 12

#: The style of the answer by its tone.
_TONES = {"good": "bold green", "bad": "bold red", "open": "bold yellow"}

_MORE = "-v shows findings, checks, assumptions and limits; it trains nothing again."

_MORE_ON_RUN = (
    "-v shows all checks, assumptions and limits. A recording finds mistakes, not malice. dpspec.replay tests whether "
    "constants of the script depend on a record."
)


def render(result: Result, *, internal: bool = False, width: int = 80, color: bool = False) -> str:
    """The whole report. Without ``internal``, data-dependent and per-record values are omitted and counted."""
    result = for_readers(result, internal=internal)
    page = Page(width, color=color)
    first_answer = answer(result)
    page.line((f"{first_answer.headline}.", _TONES[first_answer.tone]))
    _alarm(page, result)
    page.heading("Claims")
    for audit in result.audits:
        _claims(page, audit, named=len(result.audits) > 1)
    page.blank()
    page.line((tally(result), "bold"))
    for audit, family in zip(result.audits, words.families(result), strict=True):
        suffix = f": {audit.name}" if len(result.audits) > 1 else ""
        _recording(page, audit, suffix)
        _checks(page, audit, suffix, family)
        _findings(page, audit, suffix)
        page.heading(f"Assumptions{suffix}")
        tested = {(check.assumption, check.test) for check in audit.checks}
        distinct = words.assumptions_of(audit)
        if not distinct:
            page.line("None beyond those of the formulas' sources.", indent=2)
        for assumption in distinct:
            page.item(
                (assumption.status, _STYLE.get(assumption.status, "")),
                f"  {assumption.name}: " if assumption.text else "  ",
                words.assumption(assumption, tested_above=(assumption.name, assumption.test) in tested),
            )
        notes = [note for note in (*audit.notes, words.omitted(audit)) if note]
        if notes:
            page.heading(f"Notes{suffix}")
        for note in notes:
            page.item(note)
    page.heading("Limits")
    for sentence in (*result.notes, *limits(result)):
        page.item(sentence)
    page.heading("Provenance")
    page.command(command(result))
    origin = provenance(result)
    for term, text in origin.common:
        page.line(f"{term}: {text}", indent=4, hang=2)
    for name, rows in origin.differing:
        page.line(f"{name}: {'; '.join(f'{term} {text}' for term, text in rows)}", indent=4, hang=2)
    return page.text()


def render_brief(result: Result, *, internal: bool = False, width: int = 80, color: bool = False) -> str:
    result = for_readers(result, internal=internal)
    page = Page(width, color=color)
    several = len(result.audits) > 1
    if any(audit.recording is None for audit in result.audits):  # a recorded run begins with its own answer
        first_answer = answer(result)
        page.line((f"{first_answer.headline}.", _TONES[first_answer.tone]))
        if not result.complete and first_answer.detail:
            page.line(first_answer.detail)
    _alarm(page, result)
    cells = {id(cell_audit): matrix for matrix in result.matrices for cell_audit in matrix.audits}
    for audit in result.audits:
        matrix = cells.get(id(audit))
        if matrix is not None:
            if audit is not matrix.audits[0]:
                continue
            page.line((f"{matrix.name}, {len(matrix.audits)} cells", "underline"))
            head, rows = matrices.table(matrix)
            lines = text_table([head, *rows])
            if max(map(len, lines)) > page.width - 2:  # a line for each cell instead of a table
                first = len(matrix.axes)
                lines = tuple(
                    f"{matrices.cell_title(matrix, cell_audit)}: {_named_cells(head[first:], row[first:])}"
                    for cell_audit, row in zip(matrix.audits, rows, strict=True)
                )
            for line in lines:
                page.line(line, indent=2, hang=2)
            for claim in matrices.claims_of(matrix):
                texts = {
                    verdict.text for cell_audit in matrix.audits if (verdict := matrices.verdict_of(cell_audit, claim))
                }
                if len(texts) == 1:  # the same in all cells
                    page.line(f"{claim}: {texts.pop()}", indent=2, hang=2)
            for note in dict.fromkeys(note for cell_audit in matrix.audits for note in cell_audit.notes):
                page.item(note)
            continue
        if several:
            page.line((audit.name, "underline"))
        if audit.recording is not None:
            checked_run(page, audit, internal=internal)
        else:
            _expected(page, audit)
    for audit in result.audits:
        if audit.recording is None:
            matrix = cells.get(id(audit))
            name = f"{matrix.name}, {matrices.cell_title(matrix, audit)} ({audit.name})" if matrix else audit.name
            wrong = [verdict for verdict in audit.verdicts if not verdict.expected]
            deviating = wrong_conformance(audit)
            if wrong or deviating:
                page.heading(f"Not as expected{f': {name}' if several else ''}")
            for verdict in wrong:
                _claim(page, audit, verdict)
            if deviating:
                _deviation(page, audit)
            changes = list(remedies(audit))
            if changes:
                page.item(f"One of these meets the claims: {'; '.join(changes)}.")
            elif any("proved" in verdict.expect and verdict.provable is not None for verdict in wrong):
                page.item("dpspec calibrate finds the noise, sampling rate or steps that prove a claim.")
    untrained = [audit for audit in result.audits if not audit.planned_trials and audit.recording is None]
    if untrained:
        counted = f" for {words.count(len(untrained), 'audit')}" if several else ""
        page.item(f"No training code was run{counted}: results apply to the specification.")
    deltas = [sentence for audit in result.audits for sentence in large_deltas(audit).values()]
    for sentence in (*deltas, *result.notes, *stored_trials(result)):
        page.item(sentence)
    page.blank()
    if any(audit.recording is not None for audit in result.audits):
        page.line(_MORE_ON_RUN)
    else:
        page.line(_MORE)
    return page.text()


def _named_cells(names: Sequence[str], cells: Sequence[str]) -> str:
    """``epsilon-2: proved [1, 2]; conformance: not tested``"""
    return "; ".join(f"{name}: {cell}" for name, cell in zip(names, cells, strict=True) if cell)


def _alarm(page: Page, result: Result) -> None:
    broken = [(audit, v) for audit in result.audits for v in audit.verdicts if v.verdict == "contradicted"]
    for audit, verdict in broken:
        expected = ", as expected" if verdict.expected else ""
        page.line((f"!! CONTRADICTED: {audit.name} / {verdict.claim}{expected}", _STYLE["contradicted"]), hang=3)
    if broken:
        page.line(
            "The attack exceeds the best upper bound. The theory, the implementation or the attack is wrong: "
            "resolve this before you use any result.",
            indent=3,
        )
    if broken and all(audit.conformance.status == "deviates" for audit, _ in broken):
        page.line("The executed run deviates from its declaration, which can explain it; see Conformance.", indent=3)


def _tight(finding: Finding) -> str:
    return "" if finding.lower is None else f" (exact value >= {decimals.lower(finding.lower)})"


def _expected(page: Page, audit: AuditResult) -> None:
    if not audit.verdicts:
        bounds = words.main_bounds(audit)
        about = "bounds for any data, of the declared mechanism" if bounds else "-v shows the findings"
        page.line(("NOTHING CLAIMED", "bold yellow"), f": {about}", indent=2)
        for finding in bounds:
            position = f" at {words.conditions(finding.at)}" if finding.at else ""
            page.item(f"{words.statement(finding)}{_tight(finding)}{position}", indent=4)
    for verdict in audit.verdicts:
        if verdict.expected:
            claimed = words.claimed(verdict)
            expectation = "as expected" if verdict.verdict not in ("proved", "supported") else ""
            remarks = [words.access(audit, verdict), f"claimed {claimed}" if claimed else "", expectation]
            text = f": {', '.join([verdict.text, *filter(None, remarks)])}; {words.bounds(audit, verdict)}"
            _row(page, words.headline(audit, verdict), (verdict.claim, "bold"), text)
    if not wrong_conformance(audit):
        _conformance(page, audit)
    for series in audit.series:
        if text := constants(series):
            page.item(f"{series.title}: {text}")
    for note in audit.notes:
        page.item(note)


def _conformance(page: Page, audit: AuditResult) -> None:
    status, outcome = audit.conformance.status, words.conformance_outcome(audit)
    if not outcome:
        return
    label = words.conformance_label(status)
    if status != "no-deviation-found":
        _row(page, label, f"{outcome}: {audit.conformance.reason}")
        return
    limit: dict[str, float] = {}
    for check in audit.checks:
        if check.detectable is not None and 0.0 <= check.detectable < math.inf:
            limit[check.assumption] = min(check.detectable, limit.get(check.assumption, math.inf))
    unlimited = dict.fromkeys(check.assumption for check in audit.checks if check.assumption not in limit)
    clauses = [words.count(len(audit.checks), "check")]
    sizes = sorted((size, name) for name, size in limit.items() if size > 0.0)
    if sizes:
        low, high = (f"{decimals.upper(100 * size, digits=2)}% ({name})" for size, name in (sizes[0], sizes[-1]))
        limits = f"detection limit {low}" if low == high else f"detection limits from {low} to {high}"
        clauses.append(f"{limits} of the declared value")
    if unlimited:
        clauses.append(f"no detection limit for {', '.join(unlimited)}")
    _row(page, label, "; ".join(clauses))


def _deviation(page: Page, audit: AuditResult) -> None:
    conformance = audit.conformance
    label = words.conformance_label(conformance.status)
    worst = sorted((check for check in audit.checks if rejected(check, 1)), key=lambda check: check.p_value)
    # The rows below name the rejected checks; only the reason names missing ones.
    said = worst and conformance.status == "deviates" and not missing(audit.promised, audit.checks)
    _row(page, label, words.conformance_outcome(audit), "" if said else f": {conformance.reason}")
    for check in worst:
        page.item(words.check(check), indent=4)
    other_checks = len(audit.checks) - len(worst)
    if other_checks:
        page.item(f"{words.count(other_checks, 'other check' if worst else 'check')} with p above 1e-6", indent=4)
    for step in next_steps(audit):
        _row(page, "to fix", step)


def _claims(page: Page, audit: AuditResult, *, named: bool) -> None:
    if named:
        page.line((audit.name, "underline"), indent=2)
    if not audit.verdicts:
        page.line("The spec has no claims; the findings are below.", indent=2)
    for verdict in audit.verdicts:
        _claim(page, audit, verdict)
    conformance = audit.conformance
    if conformance.status == "deviates" or wrong_conformance(audit):
        _conformance(page, audit)


def _claim(page: Page, audit: AuditResult, verdict: Verdict) -> None:
    indent = 2 + _VERDICT_WIDTH + 2
    access = words.access(audit, verdict)
    text = f": {verdict.text}{f', {access}' if access else ''}"
    _row(page, words.headline(audit, verdict), (verdict.claim, "bold"), text)
    claimed = words.claimed(verdict)
    page.line(
        f"{f'claimed {claimed}, ' if claimed else ''}{words.bounds(audit, verdict)}, ",
        (words.outcome(audit, verdict), "" if verdict.expected else "bold red"),
        indent=indent,
        hang=2,
    )
    if verdict.reason:
        page.line(verdict.reason, indent=indent)


def _row(page: Page, word: str, *texts: str | tuple[str, str]) -> None:
    """A line that begins with a label in capitals, in the column of verdicts."""
    gap = " " * max(2, _VERDICT_WIDTH + 2 - len(word))
    name, comma, qualifier = word.partition(",")
    style = _STYLE.get(word, _STYLE.get(name, ""))
    page.line((f"{name.upper()}{comma}{qualifier}", style), gap, *texts, indent=2, hang=_VERDICT_WIDTH + 2)


def _recording(page: Page, audit: AuditResult, suffix: str) -> None:
    for group in () if audit.recording is None else audit.recording.groups:
        page.heading(f"{group.title}{suffix}")
        if group.rows:
            page.table([group.columns, *((row.name, row.status, row.text) for row in group.rows)], indent=2, folded=2)
        for sentence in group.sentences:
            page.item(sentence)


def _checks(page: Page, audit: AuditResult, suffix: str, family: int) -> None:
    page.heading(f"Conformance{suffix}")
    conformance, outcome = audit.conformance, words.conformance_outcome(audit)
    label = words.conformance_label(conformance.status)
    page.line(
        (label.upper(), _STYLE[label]),
        f", {outcome}" if outcome else "",
        f": {conformance.reason}" if conformance.reason else "",
        indent=2,
        hang=2,
    )
    for check, is_rejected in words.ranked(audit.checks, family):
        mark = (("REJECTED", "bold red"), "  ") if is_rejected else ()
        page.item(*mark, words.check(check), indent=4)
    for sentence in words.as_run(audit):
        page.line(sentence, indent=2, hang=2)


def _findings(page: Page, audit: AuditResult, suffix: str) -> None:
    page.heading(f"Findings{suffix}")
    groups = words.alike(words.findings(audit))
    if not groups:
        page.line("None.", indent=2)
    for group in groups:
        first = group[0]
        page.line((words.rigor(first), "bold"), indent=2, hang=2)
        page.line(f"by {first.method}; {first.source}", indent=4, hang=2)
        page.line(f"of {words.scope(first)}", indent=4, hang=2)
        if first.printed is not None:
            page.line((words.printed(first.printed), "yellow"), indent=4, hang=2)
        for finding in group:
            position = f"  at {words.conditions(finding.at)}" if finding.at else ""
            privacy = "" if finding.privacy == "public" else f"  [{finding.privacy}]"
            page.line((words.statement(finding), "cyan"), _tight(finding), position, privacy, indent=6, hang=2)
    if audit.series:
        page.line(("series", "bold"), indent=2)
    for series in audit.series:
        table = series_table(series, page.width - 6)
        columns = rounding(series) if table else f"{', '.join(series.columns)}, in the JSON"
        about = "; ".join(part for part in (columns, series.rigor, series.source) if part)
        page.line(f"{series.title}: {about}", indent=4, hang=2)
        for line in table:
            page.line(line, indent=6)
