"""A matrix on the page: a table of its cells, a figure across them, and its joined series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from dpspec.engine.results import decimals
from dpspec.engine.results.result import Matrix, joined_series
from dpspec.reporters import matrices
from dpspec.reporters.html.drawing import Drawing, Line, svg
from dpspec.reporters.html.figures import MOST_ROWS, Figure
from dpspec.reporters.layout import pictures, series_cell

_CAPTION = (
    "Solid: best upper bounds. Dashed: best lower bounds. Equal lines hide each other; the table has all numbers."
)


def view(matrix: Matrix, number: int, ids: Sequence[str]) -> SimpleNamespace:
    """``rows`` has for each cell the id of its part of the page, whether it is as expected, and its texts."""
    head, rows = matrices.table(matrix)
    drawn = matrices.across(matrix)
    return SimpleNamespace(
        name=matrix.name,
        description=str(matrix.audits[0].document.get("description") or ""),
        count=len(matrix.audits),
        head=head,
        rows=tuple(
            (ids[index], audit.as_expected, row)
            for index, audit, row in zip(matrix.numbers, matrix.audits, rows, strict=True)
        ),
        figure=None if drawn is None else _across(drawn, f"m{number}-across"),
        series=tuple(_series(matrix)),
    )


def _across(drawn: matrices.Across, name: str) -> Figure:
    lines: list[Line] = []
    rows = []
    for number, (others, bounds) in enumerate(drawn.curves.items()):
        label = others or drawn.claim
        upper = [(x, high) for x, _, high in bounds if high is not None]
        lower = [(x, low) for x, low, _ in bounds if low is not None]
        for points, dash, text in ((upper, 0, label), (lower, 1, f"{label}, lower")):
            if points:
                xs, ys = zip(*points, strict=True)
                lines.append(Line(text, xs, ys, colour=number, dash=dash))
        for x, low, high in bounds:
            ends = ("none" if low is None else decimals.lower(low), "none" if high is None else decimals.upper(high))
            rows.append((*((others,) if len(drawn.curves) > 1 else ()), decimals.exact(x), *ends))
    values = [x for bounds in drawn.curves.values() for x, _, _ in bounds]
    if drawn.claimed is not None:
        lines.append(Line("claimed", [min(values), max(values)], [drawn.claimed] * 2, colour=len(drawn.curves), dash=2))
    drawing = Drawing(
        title=f"{drawn.claim}: {drawn.quantity} against {drawn.x}",
        lines=lines,
        x=drawn.x,
        y=drawn.quantity,
        log_x=min(values) > 0.0 and max(values) > 20.0 * min(values),
    )
    head = (*(("cells",) if len(drawn.curves) > 1 else ()), drawn.x, "lower bound", "upper bound")
    return Figure(drawing.title, _CAPTION, svg(drawing, name), head, tuple(rows))


def _series(matrix: Matrix) -> Iterator[Figure]:
    """Series of several cells, with the axes as columns."""
    held = [series for audit in matrix.audits for series in audit.series]
    for name in dict.fromkeys(series.name for series in held):
        if sum(series.name == name for series in held) < 2:
            continue
        joined = joined_series(matrix.audits, [matrix], name)
        omitted, axes = {"audit", *pictures(joined)}, set(matrix.axes.values())
        head = tuple(column for column in joined.columns if column not in omitted)
        rows = list(zip(*(joined.columns[column] for column in head), strict=True))
        texts = tuple(
            tuple(
                matrices.cell_value(item)
                if column in axes
                else ""
                if item is None
                else series_cell(joined, column, item)
                for column, item in zip(head, row, strict=True)
            )
            for row in rows[:MOST_ROWS]
        )
        yield Figure(joined.title, joined.source, "", head, texts, max(0, len(rows) - MOST_ROWS))
