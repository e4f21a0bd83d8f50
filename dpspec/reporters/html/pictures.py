"""Series whose cells are pictures, as one inline SVG: a row for each row, its pictures side by side."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Sequence

from dpspec.contract import Json, Series
from dpspec.reporters import words
from dpspec.reporters.escape import plain
from dpspec.reporters.grid import pictures

#: Pictures of more pixels a side than this, and rows beyond so many, are not drawn.
_SIDE, _ROWS = 256, 32

#: Sizes in the drawing: a picture, the room between two, what a row's name takes, and the head.
_CELL, _GAP, _NAME, _HEAD = 40, 6, 150, 18


def svg(series: Series, name: str) -> str:
    """The pictures as an SVG element with a title; empty where there are none. ``name`` makes its ids unique.

    What is no picture of the declared shape is left out.
    """
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
    parts = [_text(_NAME + j * (_CELL + _GAP), _HEAD - 6, column) for j, column in enumerate(names)]
    for i in range(count):
        y = _HEAD + i * (_CELL + _GAP)
        about = ", ".join(f"{column} {words.value(series.columns[column][i])}" for column in others)
        parts.append(_text(0, y + _CELL // 2, about))
        for j, column in enumerate(names):
            cell, x = series.columns[column][i], _NAME + j * (_CELL + _GAP)
            picture = png(cell, shape)
            if picture is not None:
                parts.append(_image(x, y, picture, f"{column}, {about}", framed=framed[i : i + 1] == (j,)))
    title = escape(plain(series.title))
    return (
        f'<svg class="pictures" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-title">'
        f'<title id="{name}-title">{title}</title>{"".join(parts)}</svg>'
    )


def png(cell: Json, shape: tuple[int, int, int]) -> str | None:
    """The PNG of a cell, in base64; None unless it holds the bytes of a picture (height, width, channels)."""
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
    """(height, width, channels) within what is drawn, or None."""
    if not isinstance(value, Sequence) or len(value) != 3 or not all(type(size) is int for size in value):
        return None
    height, width, channels = value
    fits = 1 <= height <= _SIDE and 1 <= width <= _SIDE and channels in (1, 3)
    return (height, width, channels) if fits else None


def _text(x: int, y: int, text: str) -> str:
    from markupsafe import escape

    return f'<text x="{x}" y="{y}" font-size="8" fill="currentColor">{escape(plain(text))}</text>'


def _image(x: int, y: int, picture: str, about: str, *, framed: bool) -> str:
    from markupsafe import escape

    drawn = (
        f'<image x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{picture}"><title>{escape(plain(about))}</title></image>'
    )
    if framed:
        drawn += (
            f'<rect x="{x - 2}" y="{y - 2}" width="{_CELL + 4}" height="{_CELL + 4}" fill="none" '
            'stroke="currentColor" stroke-width="1.5"/>'
        )
    return drawn
