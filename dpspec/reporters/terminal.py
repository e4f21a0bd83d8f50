"""The report for people at a terminal or in a log: claims first, and everything that a verdict rests on below them."""

from __future__ import annotations

from dataclasses import replace

from dpspec.contract import Finding
from dpspec.engine.redact import redact
from dpspec.engine.results import decimals
from dpspec.engine.results.joined import sources
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.reporters import labels, phrases
from dpspec.reporters import recording as view
from dpspec.reporters.layout import Page, text_table
from dpspec.reporters.limits import limits, recipes
from dpspec.reporters.number_tables import grid, pictures, rounding, series_table
from dpspec.reporters.tally import tally

_STYLE = {
    "contradicted": "bold white on red",
    "refuted": "bold red",
    "proved": "bold green",
    labels.AS_DECLARED: "bold yellow",
    "supported": "green",
    "open": "yellow",
    "no deviation found": "green",
    "deviates": "bold red",
    "checks missing": "bold red",
    "not tested": "yellow",
    "false": "bold red",
    "unchecked": "yellow",
}

#: The row of an unexpected conformance among the claims.
_CONFORMANCE = {
    "deviates": "the executed run deviates from its declaration",
    "checks-missing": "planned checks of the executed run are missing",
    "not-run": "no executed run was tested",
}

#: The width of the column of verdicts; ``contradicted`` is the longest.
_VERDICT_WIDTH = 12


def render(result: Result, *, internal: bool = False, width: int = 80, color: bool = False) -> str:
    """The report as text of at most ``width`` columns (a single long word of a command may pass it).

    internal: keep data-dependent and per-record values, which are otherwise left out and counted.
    """
    if not internal:
        result = redact(result)
    page = Page(width, color=color)
    alarm(page, result)
    page.heading("Claims")
    shown_source = ""
    for source, audit in zip(sources(result), result.audits, strict=True):
        if source != shown_source:
            page.line(f"From {source}", indent=2, hang=2)
            shown_source = source
        _claims(page, audit, named=len(result.audits) > 1)
    page.blank()
    page.line((tally(result), "bold"))
    for audit, family in zip(result.audits, phrases.families(result), strict=True):
        suffix = f": {audit.name}" if len(result.audits) > 1 else ""
        recording(page, audit, suffix)
        _conformance(page, audit, suffix, family)
        _findings(page, audit, suffix)
        _assumptions(page, audit, suffix)
        _notes(page, audit, suffix)
    page.heading("What this does not show")
    for sentence in (*result.notes, *limits(result)):
        page.item(sentence)
    _reproduce(page, result)
    return page.text()


def alarm(page: Page, result: Result) -> None:
    """Write an alarm for each upper bound that an attack exceeds."""
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


def _claims(page: Page, audit: AuditResult, *, named: bool) -> None:
    if named:
        page.line((audit.name, "underline"), indent=2)
    if not audit.verdicts:
        page.line("The spec has no claims; the findings are below.", indent=2)
    for verdict in audit.verdicts:
        claim(page, audit, verdict)
    conformance = audit.conformance
    unexpected = not (conformance.expected or labels.untested(audit))
    if conformance.status in _CONFORMANCE and (conformance.status == "deviates" or unexpected):
        label, outcome = labels.conformance_label(conformance.status), labels.conformance_outcome(audit)
        row(page, label, f"{_CONFORMANCE[conformance.status]}, {outcome}; see Conformance")


def claim(page: Page, audit: AuditResult, verdict: Verdict) -> None:
    """A verdict with its interval and its reason."""
    indent = 2 + _VERDICT_WIDTH + 2
    seen = labels.access(audit, verdict)
    row(
        page, labels.headline(audit, verdict), (verdict.claim, "bold"), f": {verdict.text}{f', {seen}' if seen else ''}"
    )
    claimed = labels.claimed(verdict)
    page.line(
        f"{f'claimed {claimed}, ' if claimed else ''}interval {labels.interval(audit, verdict)}, ",
        (labels.outcome(audit, verdict), "" if verdict.expected else "bold red"),
        indent=indent,
        hang=2,
    )
    if verdict.reason:
        page.line(verdict.reason, indent=indent)


def row(page: Page, word: str, *parts: str | tuple[str, str]) -> None:
    """A line that begins with a verdict in its column, in capitals up to the first comma."""
    gap = " " * max(2, _VERDICT_WIDTH + 2 - len(word))
    name, comma, rest = word.partition(",")
    style = _STYLE.get(word, _STYLE.get(name, ""))
    page.line((f"{name.upper()}{comma}{rest}", style), gap, *parts, indent=2, hang=_VERDICT_WIDTH + 2)


def recording(page: Page, audit: AuditResult, suffix: str, *, cautions: bool = True) -> None:
    """What a recorded training executed, its channels, and its accountant's figure; nothing for other audits."""
    found = audit.recording
    if found is None:
        return
    page.heading(f"{view.EXECUTED}{suffix}")
    for line in view.executed(found):
        page.item(line)
    page.heading(f"{view.CHANNELS}{suffix}")
    for line in text_table([view.COLUMNS, *view.channel_rows(found)], page.width - 2, folded=2):
        page.line(line, indent=2)
    if said := view.declared(found):
        page.line(said, indent=2)
    page.heading(f"{view.ACCOUNTANT}{suffix}")
    page.line(view.accountant(found.accountant), indent=2)
    notes = [*found.advice, *(f"not recognized: {one}" for one in found.unrecognized)]
    for note in [*(found.cautions if cautions else ()), *notes]:
        page.item(("Note: ", "bold"), note)


def _conformance(page: Page, audit: AuditResult, suffix: str, family: int) -> None:
    page.heading(f"Conformance{suffix}")
    conformance, outcome = audit.conformance, labels.conformance_outcome(audit)
    label = labels.conformance_label(conformance.status)
    page.line(
        (label.upper(), _STYLE[label]),
        f", {outcome}" if outcome else "",
        f": {conformance.reason}" if conformance.reason else "",
        indent=2,
        hang=2,
    )
    for check, is_rejected in phrases.ranked(audit.checks, family):
        mark = (("REJECTED", "bold red"), "  ") if is_rejected else ()
        page.item(*mark, phrases.check(check), indent=4)
    for said in phrases.as_run(audit):
        page.line(said, indent=2, hang=2)


def _findings(page: Page, audit: AuditResult, suffix: str) -> None:
    page.heading(f"Findings{suffix}")
    told = phrases.findings(audit)
    if not told:
        page.line("None.", indent=2)
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in told:
        scope = replace(finding.scope, direction="both")
        key = (finding.method, finding.source, scope, labels.rigor(finding), finding.printed)
        groups.setdefault(key, []).append(finding)
    for group in groups.values():
        _group(page, group)
    if audit.series:
        page.line(("series", "bold"), indent=2)
    for series in audit.series:
        table = series_table(series, page.width - 6)
        columns = rounding(series) if table else f"{', '.join(series.columns)}, in the JSON"
        shown = f"{', '.join(pictures(series))} as pictures in the HTML report" if pictures(series) else ""
        about = "; ".join(part for part in (columns, shown, series.rigor, series.source) if part)
        page.line(f"{series.title}: {about}", indent=4, hang=2)
        for line in table:
            page.line(line, indent=6)


def _group(page: Page, group: list[Finding]) -> None:
    """Findings that share method, source, rigor and, but for the direction, scope: said once, the numbers below."""
    directions = sorted({finding.scope.direction for finding in group}, key=lambda one: (one != "both", one))
    first = group[0] if len(directions) == 1 else replace(group[0], scope=replace(group[0].scope, direction="both"))
    page.line((labels.rigor(first), "bold"), indent=2, hang=2)
    page.line(f"by {first.method}; {first.source}", indent=4, hang=2)
    page.line(f"of {labels.scope(first)}", indent=4, hang=2)
    if first.printed is not None:
        state = "known to be wrong, backs no verdict" if first.printed.refuted else "not known to be wrong"
        reason = f": {first.printed.reason}" if first.printed.reason else ""
        page.line((f"the formula as printed, {state}{reason}", "yellow"), indent=4, hang=2)
    for direction in directions:
        if len(directions) > 1:
            said = "either direction" if direction == "both" else f"direction: {direction}"
            page.line(said, indent=4)
        _numbers(page, [finding for finding in group if finding.scope.direction == direction])


def _numbers(page: Page, group: list[Finding]) -> None:
    """The values of findings that differ in their conditions only: a table where they make one."""
    first = group[0]
    grid_table = grid(group, page.width - 6)
    if grid_table is not None:
        privacy = "" if first.privacy == "public" else f"  [{first.privacy}]"
        if grid_table.title or privacy:
            page.line(grid_table.title, privacy, indent=6, hang=2)
        for line in grid_table.lines():
            page.line((line, "cyan"), indent=6)
        return
    for finding in group:
        tight = "" if finding.lower is None else f" (true value >= {decimals.lower(finding.lower)})"
        at = f"  at {labels.conditions(finding.at)}" if finding.at else ""
        privacy = "" if finding.privacy == "public" else f"  [{finding.privacy}]"
        page.line((labels.statement(finding), "cyan"), tight, at, privacy, indent=6, hang=2)


def _assumptions(page: Page, audit: AuditResult, suffix: str) -> None:
    page.heading(f"Assumptions{suffix}")
    distinct = phrases.assumptions_of(audit)
    tested = {(check.assumption, check.test) for check in audit.checks}
    if not distinct:
        page.line("None beyond those of the formulas' sources.", indent=2)
    for assumption in distinct:
        page.item(
            (assumption.status, _STYLE.get(assumption.status, "")),
            f"  {assumption.name}: " if assumption.text else "  ",
            phrases.assumption(assumption, tested_above=(assumption.name, assumption.test) in tested),
        )


def _notes(page: Page, audit: AuditResult, suffix: str) -> None:
    notes = [note for note in (*audit.notes, labels.left_out(audit)) if note]
    if notes:
        page.heading(f"Notes{suffix}")
    for note in notes:
        page.item(note)


def _reproduce(page: Page, result: Result) -> None:
    page.heading("How to reproduce")
    for recipe in recipes(result):
        if recipe.of:
            page.line((recipe.of, "underline"), indent=2, hang=2)
        page.command(recipe.command)
        for name, text in recipe.facts:
            page.line(f"{name}: {text}", indent=4, hang=2)
