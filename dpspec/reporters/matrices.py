"""A matrix of cells: one table, and its joined series."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from dpspec import decimals
from dpspec.contract import Json
from dpspec.contract.results import AuditResult, Matrix, Result, Verdict, joined_series
from dpspec.reporters import words
from dpspec.reporters.figures import MOST_ROWS, Figure, curve_points, overlaid, power_of_cells, series_chart
from dpspec.reporters.series import series_cell
from dpspec.results.evidence_weight import TRADE_OFF
from dpspec.results.status import wrong_conformance
from dpspec.text import shortened, spaced

#: A matrix of more cells has one grid; its cells are not in the tables of claims.
MOST_CELLS = 8

#: The maximum number of characters of an axis value.
_VALUE = 40


def cell_value(item: Json) -> str:
    if item is None:
        return "as in the spec"
    return shortened(decimals.exact(item) if isinstance(item, float) else words.value(item), _VALUE)


def cell_title(matrix: Matrix, audit: AuditResult) -> str:
    return ", ".join(f"{spaced(name)}={cell_value(item)}" for name, item in matrix.values(audit).items())


def is_alone(result: Result) -> bool:
    """Whether all audits are cells of one matrix, so that a cell needs no name of its matrix."""
    return len(result.matrices) == 1 and len(result.matrices[0].audits) == len(result.audits)


def large(result: Result) -> frozenset[int]:
    """The audits that are cells of matrices with more than :data:`MOST_CELLS` cells."""
    return frozenset(i for matrix in result.matrices if len(matrix.audits) > MOST_CELLS for i in matrix.numbers)


def titles(result: Result) -> tuple[str, ...]:
    names = [audit.name for audit in result.audits]
    for matrix in result.matrices:
        for number, audit in zip(matrix.numbers, matrix.audits, strict=True):
            title = cell_title(matrix, audit)
            names[number] = title if is_alone(result) else f"{matrix.name} ({title})"
    return tuple(names)


def claims_of(matrix: Matrix) -> tuple[str, ...]:
    return tuple(dict.fromkeys(verdict.claim for audit in matrix.audits for verdict in audit.verdicts))


def statements(matrix: Matrix) -> tuple[str, ...]:
    """Each claim in words, if it is the same in all cells: ``main: epsilon <= 3 at delta = 1e-06``."""
    stated = []
    for name in claims_of(matrix):
        texts = {verdict.text for audit in matrix.audits if (verdict := verdict_of(audit, name))}
        if len(texts) == 1:
            stated.append(f"{name}: {texts.pop()}")
    return tuple(stated)


def verdict_of(audit: AuditResult, claim: str) -> Verdict | None:
    return next((verdict for verdict in audit.verdicts if verdict.claim == claim), None)


def table(matrix: Matrix) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A column for each axis and each claim, and for the conformance of executed runs."""
    claims, executed = claims_of(matrix), any(audit.executed for audit in matrix.audits)
    head = (*map(spaced, matrix.axes.values()), *claims, *(("conformance",) if executed else ()))
    rows = []
    for audit in matrix.audits:
        row = list(map(cell_value, matrix.values(audit).values()))
        verdicts = (verdict_of(audit, claim) for claim in claims)
        row.extend("" if verdict is None else claim_text(audit, verdict) for verdict in verdicts)
        if executed:
            wrong = ", NOT AS EXPECTED" if wrong_conformance(audit) else ""
            row.append(words.conformance_label(audit.conformance.status) + wrong)
        rows.append(tuple(row))
    return head, rows


def claim_text(audit: AuditResult, verdict: Verdict) -> str:
    """The verdict with its bounds; theory's lower bound only of a refuted claim, which it may decide."""
    bounds = words.bounds(audit, verdict)
    shown = str(bounds) if verdict.verdict == "refuted" else bounds.brief
    return f"{words.verdict_label(audit, verdict)}, {shown}{'' if verdict.expected else ', NOT AS EXPECTED'}"


@dataclass(frozen=True)
class Cell:
    """A cell of a grid: the value of an axis, a verdict with its numbers, or a conformance.

    Attributes:
        text: The value or the numbers.
        label: The verdict or the conformance in words, and its status; empty for others.
        is_expected: Whether the verdict or the conformance is the expected one.
    """

    text: str
    label: str = ""
    status: str = ""
    is_expected: bool = True


def grid_row(matrix: Matrix, audit: AuditResult) -> Iterator[Cell]:
    """The values of the axes, the verdict and the numbers of each claim, and the conformance of an executed run."""
    yield from (Cell(cell_value(item)) for item in matrix.values(audit).values())
    for claim in claims_of(matrix):
        verdict = verdict_of(audit, claim)
        if verdict is None:
            yield Cell("")
            continue
        label, status = words.verdict_label(audit, verdict), words.verdict_status(audit, verdict)
        yield Cell(_numbers(audit, verdict), label, status, verdict.expected)
    if any(cell_audit.executed for cell_audit in matrix.audits):
        status = audit.conformance.status
        yield Cell("", words.conformance_label(status), status, not wrong_conformance(audit))


def _numbers(audit: AuditResult, verdict: Verdict) -> str:
    """The bounds of a claim in few characters: ``<= 2.349, attack >= 0.61``; of a refuted one ``10.15 > 10``."""
    bounds = words.bounds(audit, verdict)
    texts = []
    if verdict.lower is not None and verdict.claimed is not None and words.refuted_by_bound(audit, verdict):
        return f"{decimals.lower(verdict.lower, against=verdict.claimed)} > {decimals.exact(verdict.claimed)}"
    if verdict.upper is not None and bounds.upper:
        number = decimals.upper(verdict.upper, against=verdict.claimed)
        texts.append(number if bounds.is_approximate else f"<= {number}")
    elif verdict.lower is not None and bounds.lower:
        texts.append(f">= {decimals.lower(verdict.lower, against=verdict.claimed)}")
    if bounds.attacked is not None:
        texts.append(f"attack >= {decimals.lower(bounds.attacked, against=verdict.claimed)}")
    return ", ".join(texts)


def _merged(matrix: Matrix, key: Callable[[AuditResult], Hashable]) -> list[tuple[str, AuditResult]]:
    """The first cell of each group of cells with equal keys, named by the values that its cells share."""
    groups: dict[Hashable, list[AuditResult]] = {}
    for audit in matrix.audits:
        groups.setdefault(key(audit), []).append(audit)
    names = []
    for cells in groups.values():
        values = [matrix.values(audit) for audit in cells]
        shared = {name: item for name, item in values[0].items() if all(of_cell[name] == item for of_cell in values)}
        title = ", ".join(f"{spaced(name)}={cell_value(item)}" for name, item in shared.items())
        names.append((title or f"all {len(cells)} cells", cells[0]))
    return names


def figures_of(matrix: Matrix) -> Iterator[Figure]:
    """One picture for the cells: the power of attacks, and each series of several cells with the axes as columns."""
    if (power := power_of_cells(_merged(matrix, curve_points))) is not None:
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

        def columns_of(audit: AuditResult, name: str = name) -> Hashable:
            return tuple(repr(series.columns) for series in audit.series if series.name == name)

        charts = [
            (title, series_chart(series))
            for title, audit in _merged(matrix, columns_of)
            for series in audit.series
            if series.name == name
        ]
        yield Figure(joined.title, joined.source, overlaid(charts), head, texts, max(0, len(rows) - MOST_ROWS))
