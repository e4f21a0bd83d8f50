"""Folders of pictures: what they become, in which order, and what is refused."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refused import refused

from dpspec.contract import DataSource
from dpspec.data import images as kind

Image = pytest.importorskip("PIL.Image")

Make = Callable[..., DataSource]

FOLDER: dict[str, Any] = {"path": "pictures", "classes": ["cat", "dog"], "shape": [3, 6, 5]}


def test_pixels_classes_and_order(source: Make, pictures: Path) -> None:
    made = source("images", pictures.parent, **FOLDER)
    facts, rows = made.facts(), made.load()
    assert (facts.records, facts.shape, facts.classes, facts.test_records) == (9, (3, 6, 5), 2, 0)
    assert rows.train_y.tolist() == [0] * 5 + [1] * 4
    for record, file in ((0, "cat/0.png"), (8, "dog/3.png")):
        pixels = np.asarray(Image.open(pictures / file), dtype=np.float32) / np.float32(255)
        assert np.array_equal(rows.train_x[record], pixels.transpose(2, 0, 1))
    swapped = source("images", pictures.parent, **{**FOLDER, "classes": ["dog", "cat"]})
    assert np.array_equal(swapped.load().train_x[:4], rows.train_x[5:])
    assert swapped.facts().digest != facts.digest
    (pictures / "cat" / ".hidden").write_bytes(b"")
    (pictures / "README").write_text("no folder")
    assert source("images", pictures.parent, **FOLDER).facts() == facts


def test_grey_and_colour(source: Make, pictures: Path, picture_bytes: Callable[..., bytes]) -> None:
    grey = np.arange(30).reshape(6, 5) * 8
    (pictures / "cat" / "0.png").write_bytes(picture_bytes(grey))
    rows = source("images", pictures.parent, **FOLDER).load()
    wanted = grey.astype(np.float32) / np.float32(255)
    assert np.array_equal(rows.train_x[0], np.stack([wanted] * 3))
    made = source("images", pictures.parent, **{**FOLDER, "shape": [1, 6, 5]})
    assert np.array_equal(made.load().train_x[0, 0], wanted)
    assert made.facts().shape == (1, 6, 5)


def test_jpeg_and_resize(source: Make, pictures: Path, picture_bytes: Callable[..., bytes]) -> None:
    (pictures / "cat" / "big.JPG").write_bytes(picture_bytes(np.full((12, 20, 3), 128), "JPEG"))
    refused(source("images", pictures.parent, **FOLDER), "big.JPG: 12 x 20 pixels, but shape declares 6 x 5")
    made = source("images", pictures.parent, **FOLDER, resize=True)
    x = made.load().train_x
    assert np.abs(x[5] - 128 / 255).max() < 0.02
    assert made.facts().digest != source("images", pictures.parent, **FOLDER).facts().digest


def test_test_pictures(source: Make, pictures: Path, picture_bytes: Callable[..., bytes]) -> None:
    for name in ("cat", "dog"):
        (pictures.parent / "held" / name).mkdir(parents=True)
    (pictures.parent / "held" / "dog" / "a.png").write_bytes(picture_bytes(np.zeros((6, 5, 3))))
    made = source("images", pictures.parent, **FOLDER, test_path="held")
    assert made.facts().test_records == 1
    rows = made.load()
    assert rows.test_y.tolist() == [1]
    assert not rows.test_x.any()
    (pictures.parent / "held" / "dog" / "a.png").unlink()
    refused(made, "held: is empty")


def _png(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((width + 1) * height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("resize", [False, True])
def test_pictures_that_would_fill_the_memory(resize: bool, source: Make, pictures: Path) -> None:
    (pictures / "cat" / "bomb.png").write_bytes(_png(5000, 4000))
    made = source("images", pictures.parent, **FOLDER, resize=resize)
    refused(made, f"bomb.png: 5000 x 4000 pixels; at most {kind.MAX_PIXELS} are decoded")
    (pictures / "cat" / "bomb.png").write_bytes(_png(100_000, 3)[:60] + b"\xff" * 40)
    refused(made, "bomb.png")


def test_headers_that_promise_more_than_pillow_itself_allows(source: Make, pictures: Path) -> None:
    head = bytearray(_png(2, 2))
    body = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    head[12:33] = body + struct.pack(">I", zlib.crc32(body))
    (pictures / "cat" / "bomb.png").write_bytes(bytes(head))
    refused(source("images", pictures.parent, **FOLDER, resize=True), "bomb.png: not a readable PNG or JPEG picture")


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda p: (p / "cat" / "notes.txt").write_text("x"), ["notes.txt: not a picture: its name must end in"]),
        (lambda p: (p / "cat" / "a.png").write_bytes(b""), ["a.png: is empty"]),
        (lambda p: (p / "cat" / "a.png").write_bytes(b"GIF89a"), ["a.png: not a readable PNG or JPEG picture"]),
        (
            lambda p: (p / "cat" / "a.png").write_bytes((p / "cat" / "0.png").read_bytes()[:-40]),
            ["a.png: not a readable PNG or JPEG picture"],
        ),
        (
            lambda p: Image.fromarray(np.zeros((6, 5), np.uint16)).save(p / "cat" / "a.png"),
            ["a.png: pictures must have 8 bits per channel, got mode"],
        ),
        (lambda p: Image.new("RGB", (5, 6)).save(p / "cat" / "a.png", "BMP"), ["a.png: not a readable PNG or JPEG"]),
        (lambda p: (p / "cat" / "a.png").mkdir(), ["a.png: not a regular file"]),
        (lambda p: (p / "cow").mkdir(), ["folder 'cow' is not a declared class"]),
        (lambda p: (p / "cat").rename(p.parent / "gone"), ["cat: not a readable folder"]),
        (lambda p: (p / "cat" / "a.png").symlink_to(p / "dog" / "0.png"), ["a.png: is a symbolic link"]),
        (
            lambda p: ((p / "dog").rename(p.parent / "elsewhere"), (p / "dog").symlink_to(p.parent / "elsewhere")),
            ["dog: is a symbolic link"],
        ),
    ],
)
def testrefused(make: Callable[[Path], Any], parts: list[str], source: Make, pictures: Path) -> None:
    make(pictures)
    refused(source("images", pictures.parent, **FOLDER), str(pictures), *parts)


def test_options_that_do_not_fit(source: Make, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(source("images", pictures.parent, **{**FOLDER, "shape": [2, 6, 5]}), "[1 or 3, height, width]")
    refused(source("images", pictures.parent, **{**FOLDER, "path": "absent"}), "absent: not a readable folder")
    refused(source("images", pictures.parent, **{**FOLDER, "path": "a\0b"}), "not a readable folder")
    refused(source("images", pictures.parent, **{**FOLDER, "shape": [3, 4096, 4096]}), "values; at most")
    monkeypatch.setattr(kind, "MAX_BYTES", 500)
    refused(source("images", pictures.parent, **FOLDER), "pictures exceed the limit of 500 bytes")


def test_the_schema_keeps_classes_inside_the_folder() -> None:
    import jsonschema

    schema = dict(kind.DATASET.schema)
    jsonschema.validate(FOLDER, schema)
    for name in ("..", ".", "../dog", "a/b", "a\\b", ".git", ""):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**FOLDER, "classes": ["cat", name]}, schema)


def test_without_pillow(source: Make, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    made = source("images", pictures.parent, **FOLDER)
    assert made.facts().records == 9
    refused(made, "needs pillow", "pip install 'dpspec[images]'")
