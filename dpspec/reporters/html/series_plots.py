"""Drawings of series: curves, sorted values, dots by name, or pictures."""

from __future__ import annotations

import base64
import binascii
import math
import struct
import zlib
from collections.abc import Iterator, Sequence

from dpspec.contract import Json, Series
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import labels
from dpspec.reporters.html.curves import marks
from dpspec.reporters.html.drawing import Drawing, Line
from dpspec.reporters.layout import pictures
from dpspec.text import plain

_KINDS = ("lines", "dots", "sorted")

_RANKS = 201


def drawing(series: Series, audit: AuditResult) -> Drawing | None:
    """The figure that ``series.plot`` declares; None without one, or if its columns are missing."""
    plot = series.plot
    kind, ys = str(plot.get("kind", "lines")), _names(plot.get("y"))
    x = "" if kind == "sorted" else str(plot.get("x", ""))
    needed = [*ys, *([x] if kind != "sorted" else []), *_names(plot.get("band"))]
    if kind not in _KINDS or not ys or any(name not in series.columns for name in needed):
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
    log = _names(plot.get("log"))
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
                f"{', '.join(map(label, parts))}{_no_bound(series, x, y)}",
                _values(series, x, rows),
                _values(series, y, rows),
                colour=i if len(groups) > 1 else j,
                dash=j,
                band=(_values(series, band[0], rows), _values(series, band[1], rows)) if len(band) == 2 else None,
            )


def _sorted(series: Series, ys: Sequence[str]) -> Iterator[Line]:
    """Values in ascending order, of all rows and of each group."""
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
    """A row for each name in column ``x``."""
    names = list(dict.fromkeys(labels.value(item) for item in series.columns[x]))
    lines: list[Line] = []
    for y in ys:
        for group, rows in _groups(series):
            parts = [group, y] if group and len(ys) > 1 else [group or y]
            places = [float(names.index(labels.value(series.columns[x][row]))) for row in rows]
            values = _values(series, y, rows)
            lines.append(
                Line(
                    f"{', '.join(map(label, parts))}{_no_bound(series, x, y)}",
                    values,
                    places,
                    colour=len(lines),
                    marker="osD^"[len(lines) % 4],
                )
            )
    return Drawing(
        title=series.title,
        lines=lines,
        x=_axis(series, ys[0]) if len(ys) == 1 else "",
        y="" if len(names) > 1 else _axis(series, x),
        log_x="y" in _names(series.plot.get("log")),
        names=tuple(names),
    )


def _groups(series: Series) -> list[tuple[str, list[int]]]:
    """The rows of each value of the column ``by``; all rows without such a column."""
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
        rows.setdefault(item if isinstance(item, str) else f"{by} {labels.value(item)}", []).append(row)
    return list(rows.items())


def _values(series: Series, column: str, rows: Sequence[int]) -> list[float]:
    return [_number(series.columns[column][row]) for row in rows]


def _no_bound(series: Series, x: str, y: str) -> str:
    """Marks lines of estimates in a series that also has bounds."""
    return " (no bound)" if series.bounds and not {x, y} & set(series.bounds) else ""


def _names(value: Json) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _axis(series: Series, column: str) -> str:
    unit = series.units.get(column, "")
    return f"{label(column)} ({unit})" if unit and unit not in column else label(column)


def label(name: str) -> str:
    return name.replace("_", " ")


def _number(item: Json) -> float:
    return float(item) if isinstance(item, int | float) and not isinstance(item, bool) else math.nan


#: The maximum number of pixels per side of a picture, and of rows.
_SIDE, _ROWS = 256, 32

#: Sizes in the drawing: a picture, a gap, a row's name, and the head.
_CELL, _GAP, _NAME, _HEAD = 40, 6, 150, 18


def svg(series: Series, name: str) -> str:
    """Cells that are not pictures of the declared shape are omitted."""
    from markupsafe import escape

    names = pictures(series)
    shape = _shape(series.plot.get("shape"))
    if not names or shape is None:
        return ""
    framed = series.columns.get(str(series.plot.get("frame")), ())
    others = [column for column in series.columns if column not in names]
    count = min(_ROWS, len(series.columns[names[0]]))
    height = _HEAD + count * (_CELL + _GAP)
    width = _NAME + len(names) * (_CELL + _GAP)

    def text(x: int, y: int, content: str) -> str:
        return f'<text x="{x}" y="{y}" font-size="8" fill="currentColor">{escape(plain(content))}</text>'

    parts = [text(_NAME + j * (_CELL + _GAP), _HEAD - 6, column) for j, column in enumerate(names)]
    for i in range(count):
        y = _HEAD + i * (_CELL + _GAP)
        about = ", ".join(f"{column} {labels.value(series.columns[column][i])}" for column in others)
        parts.append(text(0, y + _CELL // 2, about))
        for j, column in enumerate(names):
            x, picture = _NAME + j * (_CELL + _GAP), png(series.columns[column][i], shape)
            if picture is None:
                continue
            parts.append(
                f'<image x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" style="image-rendering:pixelated" '
                f'href="data:image/png;base64,{picture}">'
                f"<title>{escape(plain(f'{column}, {about}'))}</title></image>"
            )
            if framed[i : i + 1] == (j,):
                parts.append(
                    f'<rect x="{x - 2}" y="{y - 2}" width="{_CELL + 4}" height="{_CELL + 4}" fill="none" '
                    'stroke="currentColor" stroke-width="1.5"/>'
                )
    title = escape(plain(series.title))
    return (
        f'<svg class="pictures" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-title">'
        f'<title id="{name}-title">{title}</title>{"".join(parts)}</svg>'
    )


def png(cell: Json, shape: tuple[int, int, int]) -> str | None:
    """In base64; None unless the cell has the bytes of a (height, width, channels) picture."""
    height, width, channels = shape
    try:
        pixels = base64.b64decode(cell if isinstance(cell, str) else "", validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(pixels) != height * width * channels:
        return None
    stride = width * channels
    rows = b"".join(b"\0" + pixels[i : i + stride] for i in range(0, len(pixels), stride))
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = [_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, 9)), _chunk(b"IEND", b"")]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _shape(value: Json) -> tuple[int, int, int] | None:
    if not isinstance(value, Sequence) or len(value) != 3 or not all(type(size) is int for size in value):
        return None
    height, width, channels = value
    fits = 1 <= height <= _SIDE and 1 <= width <= _SIDE and channels in (1, 3)
    return (height, width, channels) if fits else None
