"""How much memory a Parquet file takes once it is read: by its footer, and by the headers of its pages.

A footer says how large everything is, and may lie. pyarrow makes room for a list of a million elements that a footer
claims before it reads one of them, and ends the process where columns are missing: so the footer is read here first.
Pages say how large they are once they are decompressed, and that is what pyarrow makes room for then; their headers are
read here, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dpspec.contract import DataError
from dpspec.data.tables.parquet.compact import Compact, CompactError, CutShortError, Struct, Value

#: The most bytes of a footer; what is made of it takes many times as much memory.
MOST_FOOTER = 1 << 22

#: The most pages of a file; looking at so many takes seconds.
MOST_PAGES = 1 << 17

#: Bytes of a page's header that are read at first, and at most; and those of all headers together.
_HEADER, _LONGEST_HEADER, _ALL_HEADERS = 256, 1 << 20, 1 << 26

#: Fields of a page's header and of all within it; those that are written have thirty.
_MOST_FIELDS = 100

#: The encoding of texts by the length of the beginning that each shares with the one before it.
_SHARED_BEGINNINGS = 7

#: Bytes of the widest decimal number.
_WIDEST = 32


@dataclass(frozen=True)
class _Chunk:
    """A column in a row group: how many values it has, and from where to where in the file its pages are."""

    values: int
    start: int
    end: int


@dataclass(frozen=True)
class _Group:
    """A row group: its rows, the bytes that it claims to take once decompressed, and its columns."""

    rows: int
    size: int
    columns: tuple[_Chunk, ...]


@dataclass(frozen=True)
class _Page:
    """What a page's header says: its bytes in the file and once they are decompressed, and its values.

    header: the bytes of the header itself. values: 0 of a page that holds only a dictionary. shared: whether texts are
    written by what they share with the one before.
    """

    header: int
    packed: int
    size: int
    values: int
    shared: bool


def require_footer(path: Path, stream: IO[bytes]) -> int:
    """The length of a footer; raises ``DataError`` where there is none, or one that is too long or no structure."""
    length = len(_footer_bytes(path, stream))
    if length > MOST_FOOTER:
        raise DataError(
            f"{path}: its footer has {length} bytes; at most {MOST_FOOTER} are read: write fewer columns or larger row "
            "groups"
        )
    _footer(path, stream)
    return length


def require_room(file: Any, path: Path, stream: IO[bytes], most: int) -> int:
    """The number of rows of an open Parquet file; ``DataError`` where all of it takes more than ``most`` bytes, or
    where what it says of itself does not agree.

    file: pyarrow's ``ParquetFile``. stream: the same bytes.
    """
    rows, groups = _footer(path, stream)
    flat = [file.schema.column(i).max_repetition_level == 0 for i in range(len(file.schema))]
    if rows < 0 or sum(group.rows for group in groups) != rows:
        raise _unreadable(path, f"its footer counts {rows} rows, and others in its row groups")
    if any(len(group.columns) != len(flat) for group in groups):
        raise _unreadable(path, f"a row group has not the {len(flat)} columns of the file")
    _require(path, sum(group.size for group in groups), most)
    size = pages = headers = 0
    for group in groups:
        for number, column in enumerate(group.columns):
            if flat[number] and column.values != group.rows:
                raise _unreadable(path, f"column {number} has {column.values} values in {group.rows} rows")
            for page in _pages(path, stream, column):
                pages, headers = pages + 1, headers + page.header
                if pages > MOST_PAGES or headers > _ALL_HEADERS:
                    raise DataError(f"{path}: more than {MOST_PAGES} pages, or too long headers; write larger pages")
                size += page.size * page.values if page.shared else page.size
                _require(path, size, most)
    return rows


def require_flat(file: Any, name: str, where: object) -> None:
    """Raise ``DataError`` unless a column holds one number, truth value or text for each row.

    What one row of another kind takes is said nowhere but in its pages.
    """
    import pyarrow.types as kinds

    kind = file.schema_arrow.field(name).type
    value = kind.value_type if kinds.is_dictionary(kind) else kind
    number = kinds.is_boolean(value) or kinds.is_integer(value) or kinds.is_floating(value) or kinds.is_decimal(value)
    text = kinds.is_string(value) or kinds.is_large_string(value)
    columns = [file.schema.column(i) for i in range(len(file.schema))]
    of = [column for column in columns if column.path == name or column.path.startswith(f"{name}.")]
    if not (number or text) or len(of) != 1 or of[0].max_repetition_level or of[0].length > _WIDEST:
        raise DataError(f"{where}: column {name[:40]!r} is of type {kind}, neither number, truth value nor text")


def _require(path: Path, size: int, most: int) -> None:
    if size > most:
        raise DataError(f"{path}: {size} bytes once decompressed; at most {most} are read")


def _footer_bytes(path: Path, stream: IO[bytes]) -> bytes:
    """The footer, up to a byte more than is read of it."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 8))
    end = stream.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > size - 12:
        raise _unreadable(path, "it does not end in a footer")
    stream.seek(size - 8 - length)
    return stream.read(min(length, MOST_FOOTER + 1))


def _footer(path: Path, stream: IO[bytes]) -> tuple[int, list[_Group]]:
    """The rows and the row groups that a footer tells of."""
    data = _footer_bytes(path, stream)
    try:
        footer = Compact(data, len(data)).struct()
        return _whole(footer, 3), [_group(item) for item in _list(footer, 4)]
    except CompactError as error:
        raise _unreadable(path, f"its footer: {error}") from None


def _group(given: Value) -> _Group:
    group = _struct(given)
    return _Group(_whole(group, 3), _whole(group, 2), tuple(_chunk(item) for item in _list(group, 1)))


def _chunk(given: Value) -> _Chunk:
    about = _struct(_struct(given).get(3))
    start, dictionary = _whole(about, 9), about.get(11)
    if isinstance(dictionary, int) and 0 < dictionary < start:
        start = dictionary
    return _Chunk(_whole(about, 5), start, start + _whole(about, 7))


def _struct(value: Value) -> Struct:
    if not isinstance(value, dict):
        raise CompactError("it lacks a structure, or has another kind of value in its place")
    return value


def _list(of: Mapping[int, Value], number: int) -> list[Value]:
    value = of.get(number)
    if not isinstance(value, list):
        raise CompactError("it lacks a list, or has another kind of value in its place")
    return value


def _whole(of: Mapping[int, Value], number: int) -> int:
    value = of.get(number)
    if not isinstance(value, int):
        raise CompactError("it lacks a number, or has another kind of value in its place")
    return value


def _pages(path: Path, stream: IO[bytes], column: _Chunk) -> Iterator[_Page]:
    """The pages of a column in a row group, as far as pyarrow reads them: until they hold as many values as told."""
    at, left = column.start, column.values
    while left > 0:
        if not 0 <= at < column.end:
            raise _unreadable(path, f"the pages of a column end at byte {at}, and values are missing")
        page = _page(*_header(path, stream, at))
        yield page
        left -= page.values
        at += page.header + page.packed


def _header(path: Path, stream: IO[bytes], at: int) -> tuple[Struct, int]:
    """The header of the page at a place, and its length."""
    longest = _HEADER
    while True:
        stream.seek(at)
        reader = Compact(data := stream.read(longest), _MOST_FIELDS)
        try:
            return _sound(reader.struct()), reader.at
        except CompactError as error:
            if not isinstance(error, CutShortError) or len(data) < longest or longest >= _LONGEST_HEADER:
                raise _unreadable(path, f"the page at byte {at}: {error}") from None
            longest *= 16


def _sound(header: Struct) -> Struct:
    """The header of a page that says its sizes and, unless it holds a dictionary or an index, its values."""
    of_values = [value for value in (header.get(5), header.get(8)) if isinstance(value, dict)]
    if min(_whole(header, 2), _whole(header, 3), *(_whole(about, 1) for about in of_values)) < 0:
        raise CompactError("a size or a number of values is negative")
    return header


def _page(header: Struct, length: int) -> _Page:
    """What a sound header of some ``length`` says."""
    first, second = header.get(5), header.get(8)  # data pages of the format's first and second version
    about, encoding = (first, 2) if isinstance(first, dict) else (second, 4)
    values, how = (_whole(about, 1), about.get(encoding)) if isinstance(about, dict) else (0, 0)
    return _Page(length, _whole(header, 3), _whole(header, 2), values, shared=how == _SHARED_BEGINNINGS)


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(f"{path}: not a readable Parquet file: {why}")
