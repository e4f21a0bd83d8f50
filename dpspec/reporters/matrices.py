"""A matrix of cells: one table, and its joined series."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from dpspec import decimals
from dpspec.contract import Json
from dpspec.contract.results import AuditResult, Matrix, Result, Verdict, joined_series
from dpspec.reporters import words
from dpspec.reporters.figures import MOST_ROWS, Figure, overlaid, power_of_cells, series_chart
from dpspec.reporters.layout import series_cell
from dpspec.results.evidence_weight import TRADE_OFF
from dpspec.results.status import wrong_conformance
from dpspec.text import shortened

#: The maximum number of characters of an axis value.
_VALUE = 40


def cell_value(item: Json) -> str:
    if item is None:
        return "as in the spec"
    return shortened(decimals.exact(item) if isinstance(item, float) else words.value(item), _VALUE)


def cell_title(matrix: Matrix, audit: AuditResult) -> str:
    return ", ".join(f"{name}={cell_value(item)}" for name, item in matrix.values(audit).items())


def titles(result: Result) -> tuple[str, ...]:
    names = [audit.name for audit in result.audits]
    for matrix in result.matrices:
        for number, audit in zip(matrix.numbers, matrix.audits, strict=True):
            names[number] = f"{matrix.name} ({cell_title(matrix, audit)})"
    return tuple(names)


def claims_of(matrix: Matrix) -> tuple[str, ...]:
    return tuple(dict.fromkeys(verdict.claim for audit in matrix.audits for verdict in audit.verdicts))


def verdict_of(audit: AuditResult, claim: str) -> Verdict | None:
    return next((verdict for verdict in audit.verdicts if verdict.claim == claim), None)


def table(matrix: Matrix) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A column for each axis and each claim, and for the conformance of executed runs."""
    claims, executed = claims_of(matrix), any(audit.executed for audit in matrix.audits)
    head = (*matrix.axes.values(), *claims, *(("conformance",) if executed else ()))
    rows = []
    for audit in matrix.audits:
        row = list(map(cell_value, matrix.values(audit).values()))
        verdicts = (verdict_of(audit, claim) for claim in claims)
        row.extend("" if verdict is None else _cell(audit, verdict) for verdict in verdicts)
        if executed:
            wrong = ", NOT AS EXPECTED" if wrong_conformance(audit) else ""
            row.append(words.conformance_label(audit.conformance.status) + wrong)
        rows.append(tuple(row))
    return head, rows


def _cell(audit: AuditResult, verdict: Verdict) -> str:
    """The verdict with its bounds; theory's lower bound only of a refuted claim, which it may decide."""
    bounds = words.bounds(audit, verdict)
    shown = str(bounds) if verdict.verdict == "refuted" else bounds.brief
    return f"{words.verdict_label(audit, verdict)}, {shown}{'' if verdict.expected else ', NOT AS EXPECTED'}"


def view(matrix: Matrix, ids: Sequence[str]) -> SimpleNamespace:
    """``rows`` has for each cell the id of its part of the page, whether it is as expected, and its texts."""
    head, rows = table(matrix)
    return SimpleNamespace(
        name=matrix.name,
        description=str(matrix.audits[0].document.get("description") or ""),
        count=len(matrix.audits),
        head=head,
        rows=tuple(
            (ids[index], audit.as_expected, row)
            for index, audit, row in zip(matrix.numbers, matrix.audits, rows, strict=True)
        ),
        series=tuple(_figures(matrix)),
    )


def _figures(matrix: Matrix) -> Iterator[Figure]:
    """One picture for the cells: the power of attacks, and each series of several cells with the axes as columns."""
    names = [cell_title(matrix, audit) for audit in matrix.audits]
    if (power := power_of_cells(list(zip(names, matrix.audits, strict=True)))) is not None:
        yield power
    all_series = [series for audit in matrix.audits for series in audit.series]
    for name in dict.fromkeys(series.name for series in all_series):
        if sum(series.name == name for series in all_series) < 2 or (name == TRADE_OFF and power is not None):
            continue
        joined = joined_series(matrix.audits, [matrix], name)
        axes = set(matrix.axes.values())
        head = tuple(column for column in joined.columns if column != "audit")
        rows = list(zip(*(joined.columns[column] for column in head), strict=True))
        texts = tuple(
            tuple(
                cell_value(item) if column in axes else "" if item is None else series_cell(joined, column, item)
                for column, item in zip(head, row, strict=True)
            )
            for row in rows[:MOST_ROWS]
        )
        charts = [
            (title, series_chart(series))
            for title, audit in zip(names, matrix.audits, strict=True)
            for series in audit.series
            if series.name == name
        ]
        yield Figure(joined.title, joined.source, overlaid(charts), head, texts, max(0, len(rows) - MOST_ROWS))
