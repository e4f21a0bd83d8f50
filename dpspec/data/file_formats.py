"""Formats of files by their first bytes, for messages about files of another kind than declared."""

from __future__ import annotations

import re
from pathlib import Path

from dpspec.contract import DataError

#: Number of bytes of a file that are inspected.
HEAD = 512

IDX_BEGIN = b"\x00\x00\x08"

#: First bytes of formats, their name, and what to do with such a file.
_BINARY = (
    (b"\x1f\x8b", "a gzip file", "decompress it"),
    (b"BZh", "a bzip2 file", "decompress it"),
    (b"\xfd7zXZ", "an xz file", "decompress it"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "decompress it"),
    (
        b"PK\x03\x04",
        "a zip archive, like .npz and .xlsx",
        "write kind: npz, extract its file, or save its sheet as CSV",
    ),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook", "save its sheet as CSV"),
    (b"PAR1", "a Parquet file", "write kind: parquet"),
    (b"\x93NUMPY", "one NumPy array", "save x and y in one file by numpy.savez, and write kind: npz"),
    (b"ARROW1", "an Arrow file", "save it as Parquet"),
    (b"\x89HDF", "an HDF5 file", "save it as Parquet or .npz"),
    (IDX_BEGIN, "an IDX file", "write kind: idx"),
    (b"\x89PNG", "a PNG image", "write kind: images with the folder of the class folders"),
    (b"\x80\x04", "a pickle, which is never read", "save it as Parquet or .npz"),
    (b"\x80\x05", "a pickle, which is never read", "save it as Parquet or .npz"),
    (b"%PDF", "a PDF file", "save its table as CSV"),
    (b"version https://git-lfs", "a pointer of Git LFS", "fetch the file by git lfs pull"),
)

_TEXT = (
    (re.compile(rb"\s*(\[\s*)?[{\[]\s*[\"\[{}\]]"), "JSON", "convert it to a table; for token ids write kind: tokens"),
    (re.compile(rb"\s*<(!doctype|html|\?xml)", re.IGNORECASE), "a web page or XML", "download the data themselves"),
    (re.compile(rb"\s*(%[^\n]*\n\s*)*@relation", re.IGNORECASE), "an ARFF file", "save it as CSV"),
)


def other_format(head: bytes, expected: bytes = b"") -> str:
    """Describe the format that the first bytes of a file show, with advice; empty if none, or if it is ``expected``."""
    for begin, name, advice in _BINARY:
        if head.startswith(begin) and begin != expected:
            return f"is {name}; {advice}"
    for pattern, name, advice in _TEXT:
        if pattern.match(head):
            return f"is {name}; {advice}"
    return ""


def check_text(path: object, head: bytes, encoding: str | None) -> None:
    """Raise ``DataError`` if a file is not text in the declared encoding; None if the spec has no key for it."""
    described = other_format(head)
    if described:
        raise DataError(f"{path}: {described}", "path")
    marked = head.startswith((b"\xff\xfe", b"\xfe\xff")) and not head.startswith(b"\xff\xfe\0\0")
    if marked and encoding != "utf-16":
        advice = "save it as UTF-8" if encoding is None else "write encoding: utf-16"
        raise DataError(f"{path}: begins with the byte-order mark of UTF-16; {advice}", "path")
    if encoding == "utf-16" and not marked:
        raise DataError(f"{path}: has no byte-order mark of UTF-16; remove encoding, or save it as UTF-8", "encoding")
    if encoding != "utf-16" and b"\0" in head:
        raise DataError(f"{path}: contains bytes 0, which are not text in UTF-8; save it as UTF-8", "path")


def head_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}", "path") from error
