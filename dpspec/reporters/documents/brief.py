"""The brief report: a line for each expected claim, and unexpected claims and deviations in full."""

from collections.abc import Iterator

from dpspec.contract.results import AuditResult, Matrix, Result
from dpspec.reporters import matrices, words
from dpspec.reporters.blocks import (
    Answer,
    Badge,
    Block,
    Document,
    Entry,
    Item,
    Items,
    Section,
    Sentence,
    Span,
    Table,
    items,
)
from dpspec.reporters.deviations import next_steps
from dpspec.reporters.documents.parts import (
    alarm,
    at_conditions,
    claim,
    conformance,
    conformance_badge,
    exact_value,
    unmarked,
    verdict_badge,
    worse,
)
from dpspec.reporters.documents.recorded_run import recorded_run
from dpspec.reporters.limits import large_deltas, real_numbers, stored_trials
from dpspec.reporters.series import constants
from dpspec.reporters.summary import answer, remedies
from dpspec.results.conformance_status import missing, rejected
from dpspec.results.status import wrong_conformance

_MORE = "-v shows findings, checks, assumptions and limits; it trains nothing again."

_MORE_ON_RUN = (
    "-v shows all checks, assumptions and limits. A recording finds mistakes, not malice. dpspec.replay tests whether "
    "constants of the script depend on a record."
)


def brief(result: Result, *, internal: bool = False) -> Document:
    """The outcome. ``internal``: whether to state the tests that reject a recorded run with their numbers."""
    return Document(tuple(_blocks(result, internal)))


def _blocks(result: Result, internal: bool) -> Iterator[Block]:
    recordings = [audit.recording is not None for audit in result.audits]
    if not all(recordings):  # a recorded run begins with its own answer
        outcome = answer(result)
        yield Answer(outcome.headline, outcome.tone)
        if not result.complete and outcome.detail:
            yield Sentence(outcome.detail)
    yield from worse(result)
    yield from alarm(result)
    matrix_of = {id(audit): matrix for matrix in result.matrices for audit in matrix.audits}
    for audit in result.audits:
        matrix = matrix_of.get(id(audit))
        if matrix is not None:
            if audit is matrix.audits[0]:
                title = f"{matrix.name}, {len(matrix.audits)} cells"
                yield Section(title, tuple(_cells(matrix)), level=3)
            continue
        of_audit = _expected(audit) if audit.recording is None else recorded_run(audit, internal=internal)
        if len(result.audits) > 1:
            yield Section(audit.name, tuple(of_audit), level=3)
        else:
            yield from of_audit
    for audit in result.audits:
        if audit.recording is None:
            yield from _unexpected(audit, result, matrix_of.get(id(audit)))
    yield from _remarks(result)
    yield Sentence(_MORE_ON_RUN if any(recordings) else _MORE, "apart")


def _cells(matrix: Matrix) -> Iterator[Block]:
    head, rows = matrices.table(matrix)
    titles = tuple(matrices.cell_title(matrix, audit) for audit in matrix.audits)
    yield Table(head, tuple(rows), titles, keys=len(matrix.axes))
    yield from (unmarked([statement]) for statement in matrices.statements(matrix))
    yield items(*dict.fromkeys(note for audit in matrix.audits for note in audit.notes))


def _expected(audit: AuditResult) -> Iterator[Block]:
    if not audit.verdicts:
        bounds = words.main_bounds(audit)
        about = "bounds for any data, of the declared mechanism" if bounds else "-v shows the findings"
        stated = tuple(f"{words.statement(bound)}{exact_value(bound)}{at_conditions(bound)}" for bound in bounds)
        yield Items((Item((Badge("nothing claimed", "open"), f": {about}"), stated),), marked=False)
    for verdict in audit.verdicts:
        if verdict.expected:
            claimed = words.claimed(verdict)
            expectation = "as expected" if verdict.verdict not in ("proved", "supported") else ""
            remarks = [words.access(audit, verdict), f"claimed {claimed}" if claimed else "", expectation]
            text = f": {', '.join([verdict.text, *filter(None, remarks)])}; {words.bounds(audit, verdict)}"
            yield Entry(verdict_badge(audit, verdict), (Span(verdict.claim, "strong"), text))
    if not wrong_conformance(audit):
        yield from conformance(audit)
    if assumed := real_numbers(audit):
        yield items(f"Bounds assume that {assumed}.")
    yield items(*(f"{series.title}: {text}" for series in audit.series if (text := constants(series))), *audit.notes)


def _unexpected(audit: AuditResult, result: Result, matrix: Matrix | None) -> Iterator[Block]:
    name = f"{matrix.name}, {matrices.cell_title(matrix, audit)} ({audit.name})" if matrix else audit.name
    wrong = [verdict for verdict in audit.verdicts if not verdict.expected]
    blocks: list[Block] = [claim(audit, verdict) for verdict in wrong]
    if wrong_conformance(audit):
        blocks.extend(_deviation(audit))
    changes = list(remedies(audit))
    advice = []
    if changes:
        privacy = " about privacy" if any(verdict.kind == "metric" for verdict in wrong) else ""
        advice.append(f"One of these meets the claims{privacy}: {'; '.join(changes)}.")
    elif any("proved" in verdict.expect and verdict.provable is not None for verdict in wrong):
        advice.append("dpspec calibrate finds the noise, sampling rate or steps that prove a claim.")
    if blocks:
        yield Section(f"Not as expected{f': {name}' if len(result.audits) > 1 else ''}", (*blocks, items(*advice)))
    else:
        yield items(*advice)


def _deviation(audit: AuditResult) -> Iterator[Entry]:
    worst = sorted((check for check in audit.checks if rejected(check, 1)), key=lambda check: check.p_value)
    # The rows below name the rejected checks; only the reason names missing ones.
    said = worst and audit.conformance.status == "deviates" and not missing(audit.promised, audit.checks)
    checks = [words.check(check) for check in worst]
    other_checks = len(audit.checks) - len(worst)
    if other_checks:
        checks.append(f"{words.count(other_checks, 'other check' if worst else 'check')} with p above 1e-6")
    text = f"{words.conformance_outcome(audit)}{'' if said else f': {audit.conformance.reason}'}"
    yield Entry(conformance_badge(audit), text, items=tuple(checks))
    yield from (Entry(Badge("to fix"), step) for step in next_steps(audit))


def _remarks(result: Result) -> Iterator[Items]:
    """What applies to all audits."""
    remarks = []
    untrained = [audit for audit in result.audits if not audit.planned_trials and audit.recording is None]
    if untrained:
        counted = f" for {words.count(len(untrained), 'audit')}" if len(result.audits) > 1 else ""
        remarks.append(f"No training code was run{counted}: results apply to the specification.")
    deltas = (sentence for audit in result.audits for sentence in large_deltas(audit).values())
    yield items(*remarks, *deltas, *result.notes, *stored_trials(result))
