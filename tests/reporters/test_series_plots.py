"""Tables of pictures: PNG that decodes to what was given, whatever else a result holds."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from support import results as factory

from dpspec.contract import Series
from dpspec.engine.results.codec import dump
from dpspec.registry.foreign_code import resolve
from dpspec.registry.loader import load_catalog
from dpspec.reporters import layout as grid
from dpspec.reporters import page as html
from dpspec.reporters import series_plots as pictures


def encoded(*pixels: int) -> str:
    return base64.b64encode(bytes(pixels)).decode()


def series(*cells: Any, shape: Any = (2, 3, 1), name: str = "a") -> Series:
    columns = {"row": list(range(len(cells))), "first": list(cells), name: [cells[0]] * len(cells)}
    columns["place"] = [1, 7, "1"][: len(cells)]
    plot = {"kind": "pictures", "y": ["first", name, "absent"], "shape": shape, "frame": "place"}
    return factory.series(columns, plot, title="<Titles> & more", rigor="statistical", source="")


def decoded(png: str) -> tuple[int, int, int, bytes]:
    """Width, height, channels and pixels of a PNG, read chunk by chunk."""
    data = base64.b64decode(png)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, rest) == (8, [0, 0, 0])
    channels = {0: 1, 2: 3}[colour]
    rows = zlib.decompress(chunks[b"IDAT"])
    stride = width * channels + 1
    assert all(rows[i] == 0 for i in range(0, len(rows), stride))
    return width, height, channels, b"".join(rows[i + 1 : i + stride] for i in range(0, len(rows), stride))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_very_pixels(channels: int) -> None:
    pixels = [(37 * i) % 256 for i in range(6 * channels)]
    png = pictures.png(encoded(*pixels), (2, 3, channels))
    assert png is not None
    assert decoded(png) == (3, 2, channels, bytes(pixels))


def images(shown: Series) -> list[dict[str, str]]:
    """The attributes of the pictures in the table of the page."""
    page = html.render(factory.result(factory.audit(series=(shown,))))
    elements = [ET.fromstring(f"{tag[:-1]}/>") for tag in re.findall(r"<img [^>]*>", page)]
    return [dict(element.attrib) for element in elements]


def test_the_picture_that_a_column_names_is_framed_and_text_is_text() -> None:
    one, other = encoded(1, 2, 3, 4, 5, 6), encoded(6, 5, 4, 3, 2, 1)
    found = images(series(one, other, one, name="<b>"))
    assert [image["alt"] for image in found] == [
        *("first, row 0, place 1", "<b>, row 0, place 1"),
        *("first, row 1, place 7", "<b>, row 1, place 7"),
        *("first, row 2, place 1", "<b>, row 2, place 1"),
    ]
    assert all(image["src"].startswith("data:image/png;base64,") for image in found)
    assert [image.get("class") for image in found] == [None, "framed", None, None, None, None]


@pytest.mark.parametrize("cell", [None, 7, "", "not base64!", encoded(1, 2), ["x"], "\u00fc"])
def test_what_is_no_picture_is_left_out(cell: Any) -> None:
    assert len(images(series(encoded(1, 2, 3, 4, 5, 6), cell))) == 3


@pytest.mark.parametrize(
    "shape", [None, 3, "231", (2, 3), (0, 3, 1), (2, 3, 2), (2, 3, 1.0), (10**6, 10**6, 1), (True, 3, 1)]
)
def test_a_shape_that_is_none_draws_nothing(shape: Any) -> None:
    assert images(series(encoded(1, 2, 3, 4, 5, 6), shape=shape)) == []


def test_pictures_are_printed_as_text_in_no_table() -> None:
    tiny = series(encoded(1, 2, 3, 4, 5, 6), encoded(6, 5, 4, 3, 2, 1))
    assert grid.pictures(tiny) == ("first", "a")
    assert grid.series_table(tiny, 80) == ("row  place", "0        1", "1        7")
    shown = factory.result(factory.audit(series=(tiny,)))
    page = html.render(shown)
    texts = re.sub(r"<script.*?</script>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert '<td class="number">7</td>' in texts
    offers = load_catalog().reporters
    for name in sorted(offers.keys() - {"json", "html"}):
        texts += resolve(offers[name].provider.render)(shown, internal=True)
    assert "first, a as pictures in the HTML report" in " ".join(texts.split())
    assert encoded(1, 2, 3, 4, 5, 6) not in texts
    assert encoded(1, 2, 3, 4, 5, 6) in dump(shown)
