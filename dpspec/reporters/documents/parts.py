"""Parts that several documents share: claims, conformance, the executed training, limits and provenance."""

import math
from collections.abc import Iterator, Sequence

from dpspec import decimals
from dpspec.contract import Finding
from dpspec.contract.results import AuditResult, Result, Verdict
from dpspec.reporters import words
from dpspec.reporters.blocks import (
    Badge,
    Block,
    Entry,
    Items,
    Mark,
    Meaning,
    Notice,
    Section,
    Span,
    State,
    Table,
    Terms,
    Text,
    items,
)
from dpspec.reporters.limits import limits
from dpspec.reporters.provenance import Provenance
from dpspec.results.regressions import subject
from dpspec.text import joined

#: The sentence for findings without assumptions.
NO_ASSUMPTIONS = "None beyond those of the formulas' sources."

#: The meaning of a contradiction for the reader.
CONTRADICTION = (
    "The attack exceeds the best upper bound. The theory, the implementation or the attack is wrong: "
    "resolve this before you use any result."
)


def verdict_badge(audit: AuditResult, verdict: Verdict) -> Badge:
    return Badge(words.headline(audit, verdict), words.verdict_status(audit, verdict))


def conformance_badge(audit: AuditResult) -> Badge:
    return Badge(words.conformance_label(audit.conformance.status), audit.conformance.status)


def suffix(audit: AuditResult, result: Result) -> str:
    """``: name`` after the title of a part about one of several audits."""
    return f": {audit.name}" if len(result.audits) > 1 else ""


def alarm(result: Result) -> Iterator[Notice]:
    """The contradicted claims, and the meaning of a contradiction."""
    broken = [(audit, v) for audit in result.audits for v in audit.verdicts if v.verdict == "contradicted"]
    if not broken:
        return
    cases = tuple(
        f"{audit.name} / {verdict.claim}{', as expected' if verdict.expected else ''}" for audit, verdict in broken
    )
    meaning = [CONTRADICTION]
    if all(audit.conformance.status == "deviates" for audit, _ in broken):
        meaning.append("The executed run deviates from its declaration, which can explain it; see Conformance.")
    yield Notice("contradicted", cases, tuple(meaning))


def worse(result: Result) -> Iterator[Section]:
    """What got worse since the earlier result: numbers before and after, and the changes of the declaration."""
    if not result.regressions:
        return
    rows = [
        (subject(regression), joined(regression.changes) or regression.name, joined(regression.because) or "-")
        for regression in result.regressions
    ]
    head = ("Claim or audit", "Before and after", "Changes of the declaration")
    yield Section("Worse than the earlier result", (Table(head, tuple(rows)),))


def claim(audit: AuditResult, verdict: Verdict) -> Entry:
    """A claim with its number, bounds, outcome and reason."""
    access, claimed = words.access(audit, verdict), words.claimed(verdict)
    return Entry(
        verdict_badge(audit, verdict),
        (Span(verdict.claim, "strong"), f": {verdict.text}{f', {access}' if access else ''}"),
        numbers=(
            f"{f'claimed {claimed}, ' if claimed else ''}{words.bounds(audit, verdict)}, ",
            Span(words.outcome(audit, verdict), "" if verdict.expected else "unexpected"),
        ),
        reason=verdict.reason,
    )


def conformance(audit: AuditResult) -> Iterator[Entry]:
    """The outcome of the tests of the executed run, with their detection limits; nothing without an executed run."""
    outcome = words.conformance_outcome(audit)
    if not outcome:
        return
    label = conformance_badge(audit)
    if audit.conformance.status != "no-deviation-found":
        yield Entry(label, f"{outcome}: {audit.conformance.reason}")
        return
    limits = [
        (check.detectable, check.assumption)
        for check in audit.checks
        if check.detectable is not None and 0.0 <= check.detectable < math.inf
    ]
    limited = {name for _, name in limits}
    unlimited = dict.fromkeys(check.assumption for check in audit.checks if check.assumption not in limited)
    clauses = [words.count(len(audit.checks), "check")]
    sizes = sorted((size, name) for size, name in limits if size > 0.0)
    if sizes:
        low, high = (f"{decimals.upper(100 * size, digits=2)}% ({name})" for size, name in (sizes[0], sizes[-1]))
        limits_text = f"detection limit {low}" if low == high else f"detection limits from {low} to {high}"
        clauses.append(f"{limits_text} of the declared value")
    if unlimited:
        clauses.append(f"no detection limit for {', '.join(unlimited)}")
    yield Entry(label, "; ".join(clauses))


def exact_value(finding: Finding) -> str:
    """`` (exact value >= 2.955)``; empty without one."""
    return "" if finding.lower is None else f" (exact value >= {decimals.lower(finding.lower)})"


def at_conditions(finding: Finding, before: str = " at ") -> str:
    return f"{before}{words.conditions(finding.at)}" if finding.at else ""


def executed_training(audit: AuditResult, *, suffix: str = "", level: int = 2) -> Iterator[Section]:
    """The groups of the section that a plugin filled."""
    for group in () if audit.recording is None else audit.recording.groups:
        blocks: list[Block] = []
        if group.rows:
            rows = tuple((row.name, (State(row.status),), row.text) for row in group.rows)
            marks: list[Mark] = ["rejected" if row.status == "violated" else "" for row in group.rows]
            title = f"{group.title} of the executed training"
            meanings: tuple[Meaning, ...] = ("", "", "says")
            blocks.append(
                Table(group.columns, rows, prose=2, title=title, kind="overview", meanings=meanings, marks=tuple(marks))
            )
        if group.sentences:
            blocks.append(items(*group.sentences))
        yield Section(f"{group.title}{suffix}", tuple(blocks), level)


def limits_section(result: Result) -> Section:
    return Section("Limits", (items(*result.notes, *limits(result)),))


def origins(origin: Provenance) -> Iterator[Terms]:
    """The rows of all audits, and one of each audit with its own values."""
    differing = tuple((name, "; ".join(f"{term} {text}" for term, text in rows)) for name, rows in origin.differing)
    yield Terms((*origin.common, *differing))


def notes(audit: AuditResult) -> list[str]:
    return [note for note in (*audit.notes, words.omitted(audit)) if note]


def unmarked(texts: Sequence[Text]) -> Items:
    return items(*texts, marked=False)
