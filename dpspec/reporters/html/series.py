"""How a series says that it is drawn, as lines: curves, sorted values, or dots beside names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dpspec.contract import Json, Series
from dpspec.engine.result import AuditResult
from dpspec.reporters import words
from dpspec.reporters.html.drawing import Drawing, Line
from dpspec.reporters.html.marks import marks

_KINDS = ("lines", "dots", "sorted")

#: Sorted values are drawn at so many ranks at most.
_RANKS = 201


def drawing(series: Series, audit: AuditResult) -> Drawing | None:
    """The figure that ``series.plot`` asks for; None where it asks for none, or for columns that are not there.

    Lines of one number against another come with the audit's claims of these two numbers, and what attacks showed.
    """
    plot = series.plot
    kind, ys = str(plot.get("kind", "lines")), _names(plot.get("y"))
    x = "" if kind == "sorted" else str(plot.get("x", ""))
    asked = [*ys, *([x] if kind != "sorted" else []), *_names(plot.get("band"))]
    if kind not in _KINDS or not ys or any(name not in series.columns for name in asked):
        return None
    if kind == "dots":
        return _dots(series, x, ys)
    if kind == "sorted":
        lines = list(_sorted(series, ys))
    else:
        lines = list(_curves(series, x, ys))
        by_size = plot.get("by") == "group_size"
        sizes = list(dict.fromkeys(sorted(map(int, series.columns["group_size"])))) if by_size else []
        lines += marks(audit, x, ys[0], sizes, len(lines))
    log = plot.get("log", ())
    return Drawing(
        title=series.title,
        lines=lines,
        x="share of the rows, in ascending order" if kind == "sorted" else _axis(series, x),
        y=_axis(series, ys[0]) if len(ys) == 1 else "",
        log_x="x" in log,
        log_y="y" in log,
        identity=bool(plot.get("identity", False)),
    )


def _curves(series: Series, x: str, ys: Sequence[str]) -> Iterator[Line]:
    band = _names(series.plot.get("band"))
    groups = _groups(series)
    for j, y in enumerate(ys):
        for i, (group, rows) in enumerate(groups):
            parts = [group, y] if group and len(ys) > 1 else [group or y]
            yield Line(
                ", ".join(map(label, parts)),
                _values(series, x, rows),
                _values(series, y, rows),
                colour=i if len(groups) > 1 else j,
                dash=j,
                band=(_values(series, band[0], rows), _values(series, band[1], rows)) if len(band) == 2 else None,
            )


def _sorted(series: Series, ys: Sequence[str]) -> Iterator[Line]:
    """Every column's values in ascending order: of all rows, and of every group."""
    every = [("", list(range(len(series.columns[ys[0]]))))]
    groups = _groups(series)
    for j, y in enumerate(ys):
        for i, (group, rows) in enumerate([*every, *groups] if len(groups) > 1 else every):
            values = sorted(value for value in _values(series, y, rows) if math.isfinite(value))
            if values:
                last = len(values) - 1
                ranks = sorted({round(last * k / (_RANKS - 1)) for k in range(_RANKS)})
                parts = [group or "all rows", *([y] if len(ys) > 1 else [])]
                yield Line(
                    ", ".join(map(label, parts)),
                    [rank / last if last else 0.5 for rank in ranks],
                    [values[rank] for rank in ranks],
                    colour=i,
                    dash=j if len(ys) > 1 else i // 8,
                )


def _dots(series: Series, x: str, ys: Sequence[str]) -> Drawing:
    """A row for every name in column ``x``, its values as dots on one axis."""
    names = list(dict.fromkeys(words.value(item) for item in series.columns[x]))
    lines: list[Line] = []
    for y in ys:
        for group, rows in _groups(series):
            parts = [group, y] if group and len(ys) > 1 else [group or y]
            places = [float(names.index(words.value(series.columns[x][row]))) for row in rows]
            values = _values(series, y, rows)
            lines.append(
                Line(
                    ", ".join(map(label, parts)),
                    values,
                    places,
                    colour=len(lines),
                    marker="osD^vP*X"[len(lines) % 8],
                )
            )
    return Drawing(
        title=series.title,
        lines=lines,
        x=_axis(series, ys[0]) if len(ys) == 1 else "",
        y="" if len(names) > 1 else _axis(series, x),
        log_x="y" in series.plot.get("log", ()),
        names=tuple(names),
    )


def _groups(series: Series) -> list[tuple[str, list[int]]]:
    """The rows of every value of the column ``by``, told by its name; all rows where there is none."""
    by = str(series.plot.get("by", ""))
    if by not in series.columns:
        return [("", list(range(len(next(iter(series.columns.values()))))))]
    column = series.columns[by]
    rows: dict[str, list[int]] = {}
    order = list(range(len(column)))
    if all(isinstance(item, int | float) for item in column):
        order = sorted(order, key=lambda row: column[row])
    for row in order:
        item = column[row]
        rows.setdefault(item if isinstance(item, str) else f"{by} {words.value(item)}", []).append(row)
    return list(rows.items())


def _values(series: Series, column: str, rows: Sequence[int]) -> list[float]:
    return [_number(series.columns[column][row]) for row in rows]


def _names(value: Json) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _axis(series: Series, column: str) -> str:
    unit = series.units.get(column, "")
    return f"{label(column)} ({unit})" if unit and unit not in column else label(column)


def label(name: str) -> str:
    """A column's name as a legend says it."""
    return name.replace("_", " ")


def _number(item: Json) -> float:
    return float(item) if isinstance(item, int | float) and not isinstance(item, bool) else math.nan
