"""A matrix of cells: one table, one figure of bounds along an axis, and its joined series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from dpspec.contract import Json
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Matrix, Result, Verdict, joined_series
from dpspec.reporters import labels
from dpspec.reporters.drawing import Drawing, Line, svg
from dpspec.reporters.figures import MOST_ROWS, Figure
from dpspec.reporters.layout import pictures, series_cell
from dpspec.text import shortened

#: The maximum number of characters of an axis value.
_VALUE = 40

#: The maximum number of lines in one figure.
_LINES = 8

_CAPTION = (
    "Solid: best upper bounds. Dashed: best lower bounds. Equal lines hide each other; the table has all numbers."
)


def cell_value(item: Json) -> str:
    if item is None:
        return "as in the spec"
    return shortened(decimals.exact(item) if isinstance(item, float) else labels.value(item), _VALUE)


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
        for verdict in (verdict_of(audit, claim) for claim in claims):
            shown = verdict and f"{labels.verdict_label(audit, verdict)} {labels.interval(audit, verdict)}"
            row.append(f"{shown or ''}{'' if verdict is None or verdict.expected else ', NOT AS EXPECTED'}")
        if executed:
            wrong = ", NOT AS EXPECTED" if labels.wrong_conformance(audit) else ""
            row.append(labels.conformance_label(audit.conformance.status) + wrong)
        rows.append(tuple(row))
    return head, rows


def view(matrix: Matrix, number: int, ids: Sequence[str]) -> SimpleNamespace:
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
        figure=across(matrix, f"m{number}-across"),
        series=tuple(_series(matrix)),
    )


def across(matrix: Matrix, name: str) -> Figure | None:
    """The first claim with a bound in two cells, against the numeric axis with most values, a line per other value."""
    counted = {axis: _numbers([matrix.values(audit)[axis] for audit in matrix.audits]) for axis in matrix.axes.values()}
    axis = max(counted, key=lambda one: counted[one], default="")
    for claim in claims_of(matrix):
        verdicts = [(audit, verdict) for audit in matrix.audits if (verdict := verdict_of(audit, claim)) is not None]
        if sum(_finite(verdict.upper) is not None for _, verdict in verdicts) > 1:
            break
    else:
        return None
    if counted.get(axis, 0) < 2:
        return None
    curves: dict[str, list[tuple[float, float | None, float | None]]] = {}
    for audit, verdict in verdicts:
        values = matrix.values(audit)
        others = ", ".join(f"{key}={cell_value(item)}" for key, item in values.items() if key != axis)
        curves.setdefault(others, []).append((float(values[axis]), _finite(verdict.lower), _finite(verdict.upper)))
    if len(curves) > _LINES:
        return None
    lines: list[Line] = []
    rows = []
    for number, (others, points) in enumerate(curves.items()):
        points.sort(key=lambda point: point[0])
        text = others or claim
        upper = [(x, high) for x, _, high in points if high is not None]
        lower = [(x, low) for x, low, _ in points if low is not None]
        for ends, dash, name_of in ((upper, 0, text), (lower, 1, f"{text}, lower")):
            if ends:
                xs, ys = zip(*ends, strict=True)
                lines.append(Line(name_of, xs, ys, colour=number, dash=dash))
        for x, low, high in points:
            bounds = ("none" if low is None else decimals.lower(low), "none" if high is None else decimals.upper(high))
            rows.append((*((others,) if len(curves) > 1 else ()), decimals.exact(x), *bounds))
    least, most = (choose(x for points in curves.values() for x, _, _ in points) for choose in (min, max))
    claimed, *other = {verdict.claimed for _, verdict in verdicts}
    if claimed is not None and not other:
        lines.append(Line("claimed", [least, most], [claimed] * 2, colour=len(curves), dash=2))
    quantity = verdicts[0][1].quantity
    title, log = f"{claim}: {quantity} against {axis}", least > 0.0 and most > 20.0 * least
    head = (*(("cells",) if len(curves) > 1 else ()), axis, "lower bound", "upper bound")
    return Figure(title, _CAPTION, svg(Drawing(title, lines, axis, quantity, log_x=log), name), head, tuple(rows))


def _numbers(values: Sequence[Json]) -> int:
    """The number of distinct values; 0 if one is not a finite number."""
    finite = all(
        isinstance(item, int | float) and not isinstance(item, bool) and _finite(item) is not None for item in values
    )
    return len(set(values)) if finite else 0


def _finite(number: float | None) -> float | None:
    return number if number is not None and abs(number) <= 1e300 and math.isfinite(number) else None


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
                cell_value(item) if column in axes else "" if item is None else series_cell(joined, column, item)
                for column, item in zip(head, row, strict=True)
            )
            for row in rows[:MOST_ROWS]
        )
        yield Figure(joined.title, joined.source, "", head, texts, max(0, len(rows) - MOST_ROWS))
