"""The report for a job summary or a comment: unexpected claims first, findings and recipes folded."""

from collections.abc import Iterator, Sequence

from dpspec.contract.results import AuditResult, Result, Verdict, open_cautions
from dpspec.reporters import matrices, words
from dpspec.reporters.blocks import (
    Answer,
    Block,
    Command,
    Document,
    Droppable,
    Fold,
    Item,
    Items,
    Notice,
    Piece,
    Section,
    Sentence,
    Span,
    Table,
    Text,
    items,
)
from dpspec.reporters.documents.parts import (
    conformance_badge,
    executed_training,
    limits_section,
    notes,
    origins,
    suffix,
    verdict_badge,
    worse,
)
from dpspec.reporters.provenance import command, provenance
from dpspec.reporters.summary import answer
from dpspec.results.conformance_status import rejected
from dpspec.results.status import wrong_conformance

#: Of more claims or audits than this, the expected ones are folded.
_MANY = 30

#: The maximum number of listed claims as expected.
_MOST_EXPECTED = 150


def pull_request(result: Result) -> Document:
    return Document((Section("dpspec", tuple(_blocks(result)), level=1),))


def _blocks(result: Result) -> Iterator[Block]:
    several = len(result.audits) > 1
    outcome = answer(result)
    yield Answer(outcome.headline, outcome.tone)
    yield Sentence(f"{outcome.tally} (exit code {outcome.exit_code:d}).")
    yield from worse(result)
    cases: list[Text] = [
        (verdict.claim, ": ", verdict.reason)
        for audit in result.audits
        for verdict in audit.verdicts
        if verdict.verdict == "contradicted"
    ]
    if cases:
        yield Notice("contradicted", tuple(cases))
    gridded = matrices.large(result)
    for matrix in result.matrices:
        if len(matrix.audits) > matrices.MOST_CELLS:
            head, rows = matrices.table(matrix)
            yield Section(f"{matrix.name}: {len(matrix.audits)} cells", (Table(head, tuple(rows)),))
    single = [audit for number, audit in enumerate(result.audits) if number not in gridded]
    for audit in single:
        if unexpected := tuple(_unexpected(audit)):
            yield Section(f"Not as expected{suffix(audit, result)}", (Items(unexpected),))
    judged = [(audit, verdict) for audit in single for verdict in audit.verdicts]
    expected = [pair for pair in judged if pair[1].expected] if len(judged) > _MANY else []
    yield from _claims([pair for pair in judged if not (expected and pair[1].expected)], several=several)
    if expected:
        listed = expected[:_MOST_EXPECTED]
        title = f"{words.count(len(expected), 'claim')} as expected"
        title += f", the first {len(listed)} listed" if len(listed) < len(expected) else ""
        yield Fold(title, tuple(_claims(listed, several=several)))
    if several:
        yield _conformance(single)
    else:
        yield from (Sentence(("Conformance ", *_status(audit), ".")) for audit in single)
    for audit in result.audits:
        yield from executed_training(audit, suffix=suffix(audit, result))
    yield limits_section(result)
    details = tuple(
        Fold("Numbers and tests", (_details(audit),)) for audit in sorted(single, key=lambda audit: audit.as_expected)
    )

    def omitted(number: int) -> Block | None:
        further = ["each cell"] if gridded else []
        further += [words.count(number, "further audit")] if number else []
        return _elsewhere(further) if further else None

    yield from [Droppable(details, omitted)] if several else details
    yield Fold("Provenance", (Command(command(result)), *origins(provenance(result))))


def _elsewhere(further: Sequence[str]) -> Sentence:
    files = (Span("--report html=FILE", "code"), " and ", Span("json=FILE", "code"))
    return Sentence((*files, f" have the numbers and tests of {' and '.join(further)}."))


def _unexpected(audit: AuditResult) -> Iterator[Item]:
    for verdict in audit.verdicts:
        if not verdict.expected:
            yield Item((verdict_badge(audit, verdict), " ", verdict.claim, ": ", verdict.reason))
    if wrong_conformance(audit):
        worst = sorted((check for check in audit.checks if rejected(check, 1)), key=lambda check: check.p_value)
        yield Item((*_status(audit), ". ", audit.conformance.reason), tuple(map(words.check, worst)))
    for rule in open_cautions(audit):
        yield Item((Span("caution", "strong"), " ", f"{rule.name}: {rule.text} {rule.fix}"))


def _claims(judged: Sequence[tuple[AuditResult, Verdict]], *, several: bool) -> Iterator[Table]:
    if not judged:
        return
    claimed = any(words.claimed(verdict) for _, verdict in judged)
    rows = []
    for audit, verdict in judged:
        name = f"{audit.name}.{verdict.claim}" if several else verdict.claim
        value = (words.claimed(verdict),) if claimed else ()
        cells = (name, verdict.text, *value, str(words.bounds(audit, verdict)), words.outcome(audit, verdict))
        rows.append(((verdict_badge(audit, verdict),), *cells))
    head = ("Verdict", "Claim", "Statement", *(("Claimed",) if claimed else ()), "Bounds", "Outcome")
    yield Table(head, tuple(rows))


def _conformance(audits: Sequence[AuditResult]) -> Items:
    expected = [audit for audit in audits if not wrong_conformance(audit)]
    lines: list[Text] = [
        (f"{audit.name}: ", "conformance ", *_status(audit), ".")
        for audit in audits
        if len(audits) <= _MANY or audit not in expected
    ]
    if len(audits) > _MANY and expected:
        lines.append(f"Conformance of {words.count(len(expected), 'other audit')}: as expected.")
    return items(*lines)


def _status(audit: AuditResult) -> tuple[str | Piece, ...]:
    outcome = words.conformance_outcome(audit)
    return (conformance_badge(audit), f", {outcome}" if outcome else "")


def _details(audit: AuditResult) -> Section:
    blocks: list[Block] = [Sentence(("Conformance: ", *_status(audit), ". ", audit.conformance.reason))]
    blocks += map(Sentence, words.as_run(audit))
    if findings := words.findings(audit):
        rows = tuple(
            (words.statement(f), words.conditions(f.at), words.scope(f), words.rigor(f), f.method, f.source)
            for f in findings
        )
        blocks.append(Table(("Number", "At", "Of", "Kind", "Method", "Source"), rows))
    blocks += map(Sentence, notes(audit))
    return Section(audit.name, tuple(blocks), level=3)
