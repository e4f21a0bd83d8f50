"""What the page shows of a matrix as one: a table of its cells, a figure across them, and its series joined.

The figure is lines where an axis holds numbers and at most eight lines come of the others; a table with shades where
two axes vary and that does not fit; nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpspec.engine.results import decimals
from dpspec.engine.results.matrices import Matrix, joined_series
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import matrices
from dpspec.reporters.html.drawing import Drawing, Line, svg
from dpspec.reporters.html.figures import Figure
from dpspec.reporters.number_tables import cell, pictures

#: A joined table is cut here; the JSON in the page has the whole.
_MOST_ROWS = 500

_CAPTION = (
    "Solid: best upper bounds. Dashed: best lower bounds. A line may hide one of equal numbers; the table has all."
)


@dataclass(frozen=True)
class MatrixView:
    """One matrix. rows: for each cell the id of its part of the page, whether it is as expected, and its texts.

    shaded: the table with shades, where that is the figure. series: joined across cells.
    """

    name: str
    description: str
    count: int
    head: tuple[str, ...]
    rows: tuple[tuple[str, bool, tuple[str, ...]], ...]
    figure: Figure | None
    shaded: matrices.Shaded | None
    series: tuple[Figure, ...]


def view(matrix: Matrix[AuditResult], number: int, ids: Sequence[str]) -> MatrixView:
    """``number``: of the matrix on the page. ids: those of all the result's audits."""
    head, rows = matrices.table(matrix)
    drawn = matrices.across(matrix)
    return MatrixView(
        name=matrix.name,
        description=str(matrix.audits[0].document.get("description") or ""),
        count=len(matrix.audits),
        head=head,
        rows=tuple(
            (ids[index], audit.as_expected, row)
            for index, audit, row in zip(matrix.numbers, matrix.audits, rows, strict=True)
        ),
        figure=None if drawn is None else _across(drawn, f"m{number}-across"),
        shaded=matrices.shaded(matrix) if drawn is None else None,
        series=tuple(_series(matrix)),
    )


def titles(found: Sequence[Matrix[AuditResult]]) -> dict[int, str]:
    """By the number of an audit: what its cell is called."""
    return {
        index: matrices.cell_title(matrix, audit)
        for matrix in found
        for index, audit in zip(matrix.numbers, matrix.audits, strict=True)
    }


def _across(drawn: matrices.Across, name: str) -> Figure:
    lines: list[Line] = []
    for number, curve in enumerate(drawn.curves):
        label = curve.label or drawn.claim
        upper = [(x, high) for x, _, high in curve.points if high is not None]
        lower = [(x, low) for x, low, _ in curve.points if low is not None]
        for points, dash, what in ((upper, 0, label), (lower, 1, f"{label}, lower")):
            if points:
                xs, ys = zip(*points, strict=True)
                lines.append(Line(what, xs, ys, colour=number, dash=dash))
    values = [x for curve in drawn.curves for x, _, _ in curve.points]
    if drawn.claimed is not None:
        lines.append(Line("claimed", [min(values), max(values)], [drawn.claimed] * 2, colour=len(drawn.curves), dash=2))
    drawing = Drawing(
        title=f"{drawn.claim}: {drawn.quantity} against {drawn.x}",
        lines=lines,
        x=drawn.x,
        y=drawn.quantity,
        log_x=min(values) > 0.0 and max(values) > 20.0 * min(values),
    )
    rows = [
        (
            *((curve.label,) if len(drawn.curves) > 1 else ()),
            decimals.exact(x),
            _number(low, "lower"),
            _number(high, "upper"),
        )
        for curve in drawn.curves
        for x, low, high in curve.points
    ]
    head = (*(("cells",) if len(drawn.curves) > 1 else ()), drawn.x, "lower bound", "upper bound")
    return Figure(drawing.title, _CAPTION, svg(drawing, name), head, tuple(rows))


def _number(value: float | None, side: str) -> str:
    if value is None:
        return "none"
    return decimals.lower(value) if side == "lower" else decimals.upper(value)


def _series(matrix: Matrix[AuditResult]) -> Iterator[Figure]:
    """Every series that at least two cells have, with the axes as columns."""
    held = [series for audit in matrix.audits for series in audit.series]
    for name in dict.fromkeys(series.name for series in held):
        if sum(series.name == name for series in held) < 2:
            continue
        joined = joined_series(matrix.audits, [matrix], name)
        left_out = {"audit", *pictures(joined)}
        head = tuple(column for column in joined.columns if column not in left_out)
        rows = list(zip(*(joined.columns[column] for column in head), strict=True))
        axes = set(matrix.axes.values())
        texts = tuple(
            tuple(
                matrices.cell_value(item) if column in axes else "" if item is None else cell(joined, column, item)
                for column, item in zip(head, row, strict=True)
            )
            for row in rows[:_MOST_ROWS]
        )
        yield Figure(joined.title, joined.source, "", head, texts, max(0, len(rows) - _MOST_ROWS))
