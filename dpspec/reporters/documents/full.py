"""The full report: claims, the executed training, tests, findings, assumptions, limits and provenance."""

from collections.abc import Iterator

from dpspec.contract.results import AuditResult, Result
from dpspec.reporters import words
from dpspec.reporters.blocks import (
    Answer,
    Badge,
    Block,
    Command,
    Document,
    Figure,
    Item,
    Items,
    Section,
    Sentence,
    Span,
    State,
    Text,
    Values,
    items,
)
from dpspec.reporters.documents.parts import (
    NO_ASSUMPTIONS,
    alarm,
    at_conditions,
    claim,
    conformance,
    conformance_badge,
    exact_value,
    executed_training,
    limits_section,
    notes,
    origins,
    suffix,
    unmarked,
    worse,
)
from dpspec.reporters.provenance import command, provenance
from dpspec.reporters.series import MOST_ROWS, rounding, series_rows
from dpspec.reporters.summary import answer, tally
from dpspec.results.status import wrong_conformance


def full(result: Result) -> Document:
    """All that a result says, except data-dependent values that it omits."""
    return Document(tuple(_blocks(result)))


def _blocks(result: Result) -> Iterator[Block]:
    outcome = answer(result)
    yield Answer(outcome.headline, outcome.tone)
    yield from worse(result)
    yield from alarm(result)
    yield Section("Claims", tuple(block for audit in result.audits for block in _claims(audit, result)))
    yield Sentence((Span(tally(result), "strong"),), "apart")
    for audit, family in zip(result.audits, words.families(result), strict=True):
        yield from executed_training(audit, suffix=suffix(audit, result))
        yield Section(f"Conformance{suffix(audit, result)}", tuple(_checks(audit, family)))
        yield Section(f"Findings{suffix(audit, result)}", tuple(_findings(audit)))
        yield Section(f"Assumptions{suffix(audit, result)}", (_assumptions(audit),))
        if stated := notes(audit):
            yield Section(f"Notes{suffix(audit, result)}", (items(*stated),))
    yield limits_section(result)
    yield Section("Provenance", (Command(command(result)), *origins(provenance(result))))


def _claims(audit: AuditResult, result: Result) -> Iterator[Block]:
    claims: list[Block] = [claim(audit, verdict) for verdict in audit.verdicts]
    if not claims:
        claims = [Sentence("The spec has no claims; the findings are below.")]
    if audit.conformance.status == "deviates" or wrong_conformance(audit):
        claims.extend(conformance(audit))
    if len(result.audits) > 1:
        yield Section(audit.name, tuple(claims), level=3)
    else:
        yield from claims


def _checks(audit: AuditResult, family: int) -> Iterator[Block]:
    outcome, reason = words.conformance_outcome(audit), audit.conformance.reason
    status = (conformance_badge(audit), f", {outcome}" if outcome else "", f": {reason}" if reason else "")
    checks: list[Text] = [
        (Badge("rejected", "rejected"), f"  {words.check(check)}") if is_rejected else words.check(check)
        for check, is_rejected in words.ranked(audit.checks, family)
    ]
    yield Items((Item(status, tuple(checks)),), marked=False)
    yield unmarked(words.as_run(audit))


def _findings(audit: AuditResult) -> Iterator[Block]:
    groups = words.alike(words.findings(audit))
    if not groups:
        yield Sentence("None.")
    for group in groups:
        first = group[0]
        printed = [(Span(words.printed(first.printed), "warning"),)] if first.printed is not None else []
        yield Values(
            words.rigor(first),
            (f"by {first.method}; {first.source}", f"of {words.scope(first)}", *printed),
            tuple(
                (
                    Span(words.statement(finding), "value"),
                    f"{exact_value(finding)}{at_conditions(finding, '  at ')}"
                    f"{'' if finding.privacy == 'public' else f'  [{finding.privacy}]'}",
                )
                for finding in group
            ),
        )
    if audit.series:
        yield Sentence((Span("series", "strong"),))
    for series in audit.series:
        rows = series_rows(series)
        shown = rows if series.columns and len(rows) <= MOST_ROWS else None
        columns = f"{', '.join(series.columns)}, in the JSON"
        caption, otherwise = (
            "; ".join(filter(None, (kind, series.rigor, series.source))) for kind in (rounding(series), columns)
        )
        yield Figure(series.title, tuple(series.columns), shown, caption, otherwise)


def _assumptions(audit: AuditResult) -> Block:
    tested = {(check.assumption, check.test) for check in audit.checks}
    stated: list[Text] = [
        (
            State(assumption.status),
            f"  {assumption.name}: " if assumption.text else "  ",
            words.assumption(assumption, tested_above=(assumption.name, assumption.test) in tested),
        )
        for assumption in words.assumptions_of(audit)
    ]
    return items(*stated) if stated else Sentence(NO_ASSUMPTIONS)
