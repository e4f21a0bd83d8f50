"""Drawings of series: curves, sorted values, dots by name, or pictures; claims and attacks as points on curves."""

from __future__ import annotations

import base64
import binascii
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpspec.contract import Json, Series
from dpspec.engine.judging.evidence_weight import group_size
from dpspec.engine.results.result import AuditResult
from dpspec.language.load import claim_options
from dpspec.reporters import labels
from dpspec.reporters.drawing import Drawing, Line
from dpspec.reporters.layout import pictures
from dpspec.text import plain

if TYPE_CHECKING:
    from markupsafe import Markup

_KINDS = ("lines", "dots", "sorted")

#: The maximum number of points of sorted values.
_RANKS = 201


def drawing(series: Series, audit: AuditResult) -> Drawing | None:
    """The figure that ``series.plot`` declares; None without one, or if its columns are missing."""
    plot = series.plot
    kind, ys = str(plot.get("kind", "lines")), _names(plot.get("y"))
    x = "" if kind == "sorted" else str(plot.get("x", ""))
    needed = [*ys, *([x] if kind != "sorted" else []), *_names(plot.get("band"))]
    if kind not in _KINDS or not ys or any(name not in series.columns for name in needed):
        return None
    names = list(dict.fromkeys(labels.value(item) for item in series.columns[x])) if kind == "dots" else []
    lines = list(_lines(series, kind, x, ys, names))
    if kind == "lines":
        by_size = plot.get("by") == "group_size"
        sizes = list(dict.fromkeys(sorted(map(int, series.columns["group_size"])))) if by_size else []
        lines += marks(audit, x, ys[0], sizes, len(lines))
    log, value = _names(plot.get("log")), _axis(series, ys[0]) if len(ys) == 1 else ""
    if kind == "dots":
        y = "" if len(names) > 1 else _axis(series, x)
        return Drawing(series.title, lines, value, y, log_x="y" in log, names=tuple(names))
    return Drawing(
        title=series.title,
        lines=lines,
        x="share of the rows, in ascending order" if kind == "sorted" else _axis(series, x),
        y=value,
        log_x="x" in log,
        log_y="y" in log,
        identity=bool(plot.get("identity", False)),
    )


def _lines(series: Series, kind: str, x: str, ys: Sequence[str], names: Sequence[str]) -> Iterator[Line]:
    """A line for each column and group; of sorted values also one for all rows; dots in a row for each of ``names``."""
    band, groups = _names(series.plot.get("band")), _groups(series)
    if kind == "sorted":
        every = ("all rows", list(range(len(series.columns[ys[0]]))))
        groups = [every, *groups] if len(groups) > 1 else [every]
    for j, y in enumerate(ys):
        estimate = series.bounds and not {x, y} & set(series.bounds)
        for i, (group, rows) in enumerate(groups):
            text = ", ".join(map(label, [group, y] if group and len(ys) > 1 else [group or y]))
            values = _values(series, y, rows)
            if kind == "sorted":
                values = sorted(filter(math.isfinite, values))
                last = len(values) - 1
                ranks = sorted({round(last * k / (_RANKS - 1)) for k in range(_RANKS)})
                dash = j if len(ys) > 1 else i // 8
                if values:
                    shares = [rank / last if last else 0.5 for rank in ranks]
                    yield Line(text, shares, [values[rank] for rank in ranks], i, dash)
                continue
            text += " (no bound)" if estimate else ""
            if kind == "dots":
                number = j * len(groups) + i
                places = [float(names.index(labels.value(series.columns[x][row]))) for row in rows]
                yield Line(text, values, places, number, marker="osD^"[number % 4])
            else:
                colour = i if len(groups) > 1 else j
                edges = (_values(series, band[0], rows), _values(series, band[1], rows)) if len(band) == 2 else None
                yield Line(text, _values(series, x, rows), values, colour, dash=j, band=edges)


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
    cells = (series.columns[column][row] for row in rows)
    return [float(cell) if _is_number(cell) else math.nan for cell in cells]


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _names(value: Json) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _axis(series: Series, column: str) -> str:
    unit = series.units.get(column, "")
    return f"{label(column)} ({unit})" if unit and unit not in column else label(column)


def label(name: str) -> str:
    return name.replace("_", " ")


CAPTION = "Diamonds are claims, dots are attack results."

ATTACKS, CLAIMS = "o", "D"


def marks(audit: AuditResult, x: str, y: str, sizes: Sequence[int], lines: int) -> list[Line]:
    """Points for claims and for lower bounds by attacks whose numbers are exactly ``x`` and ``y``."""
    known: list[tuple[str, Mapping[str, Any], Any, str]] = []
    for verdict in audit.verdicts:
        block = labels.claim_block(audit, verdict)
        if block.get("record") is None:
            options = {**claim_options(block), verdict.quantity: verdict.claimed}
            known.append((f"claim {verdict.claim}", options, block.get("group_size") or 1, CLAIMS))
    for finding in audit.findings:
        if finding.bound == "lower" and finding.rigor == "statistical":
            at = {key: value for key, value in finding.at.items() if key != "group_size"}
            size = group_size(finding)
            text = f"attack{labels.groups(size, finding.scope.unit)}"
            known.append((text, {**at, finding.quantity: finding.value}, size, ATTACKS))
    found = []
    for text, numbers, size, marker in known:
        if set(numbers) == {x, y} and all(map(_is_number, numbers.values())):
            colour = sizes.index(int(size)) if int(size) in sizes else lines
            found.append(Line(text, [float(numbers[x])], [float(numbers[y])], colour, marker=marker))
    return found


#: The maximum number of pixels per side of a picture.
_SIDE = 256


def picture(series: Series, column: str, row: int) -> Markup:
    """A cell of a column of pictures; empty if it is not a picture of the declared shape."""
    from markupsafe import Markup

    shape, names = _shape(series.plot.get("shape")), pictures(series)
    data = None if shape is None else png(series.columns[column][row], shape)
    if data is None:
        return Markup("")
    framed = series.columns.get(str(series.plot.get("frame")), ())[row : row + 1] == (names.index(column),)
    about = ", ".join(
        f"{name} {labels.value(series.columns[name][row])}" for name in series.columns if name not in names
    )
    return Markup('<img{} alt="{}" src="data:image/png;base64,{}">').format(
        Markup(' class="framed"') if framed else "", plain(f"{column}, {about}"), data
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
    data = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + header, b"IDAT" + zlib.compress(rows, 9), b"IEND"):
        data += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return base64.b64encode(data).decode("ascii")


def _shape(value: Json) -> tuple[int, int, int] | None:
    if not isinstance(value, Sequence) or len(value) != 3 or not all(type(size) is int for size in value):
        return None
    height, width, channels = value
    fits = 1 <= height <= _SIDE and 1 <= width <= _SIDE and channels in (1, 3)
    return (height, width, channels) if fits else None
