"""How much memory a Parquet file takes once it is read: by its footer, and by the headers of its pages.

A footer says how large everything is, and may lie. It is read within limits that follow from its own length, since a
list of which it claims a million elements would be made room for before one of them is read. Pages say how large they
are once they are decompressed, and that is what pyarrow makes room for; their headers are read here, without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dpspec.contract import DataError
from dpspec.data.parquet.compact import Compact, CompactError, CutShortError, Struct

#: The most bytes of a footer: pyarrow takes up to 300 times as much memory for it.
MOST_FOOTER = 1 << 22

#: The most pages of a file; looking at so many takes seconds.
MOST_PAGES = 1 << 17

#: Bytes of a page's header that are read at first, and at most; and those of all headers together.
_HEADER, _LONGEST_HEADER, _ALL_HEADERS = 256, 1 << 20, 1 << 26

#: The encoding of texts by the length of the beginning that each shares with the one before it.
_SHARED_BEGINNINGS = 7

#: The fields of a page's header that say how many bytes it has once decompressed, and in the file.
_SIZE, _PACKED = 2, 3


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


def footer_limits(path: Path, stream: IO[bytes]) -> dict[str, int]:
    """Limits for pyarrow to read a footer under; raises ``DataError`` where there is none, or a too long one."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 8))
    end = stream.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > size - 12:
        raise DataError(f"{path}: not a readable Parquet file: it does not end in a footer")
    if length > MOST_FOOTER:
        raise DataError(
            f"{path}: its footer has {length} bytes; at most {MOST_FOOTER} are read: write fewer columns or larger row "
            "groups"
        )
    # No list has more elements than bytes, and no text is longer than what holds it.
    return {"thrift_container_size_limit": max(length, 1), "thrift_string_size_limit": _LONGEST_HEADER}


def require_room(file: Any, path: Path, stream: IO[bytes], most: int) -> int:
    """The number of rows of an open Parquet file; ``DataError`` where all of it takes more than ``most`` bytes, or
    where what it says of itself does not agree.

    file: pyarrow's ``ParquetFile``. stream: the same bytes.
    """
    footer = file.metadata
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    if footer.num_rows < 0 or sum(group.num_rows for group in groups) != footer.num_rows:
        raise DataError(f"{path}: not a readable Parquet file: its footer counts {footer.num_rows} rows, and others")
    # Of all columns: asked for a single one, pyarrow ends the process where a footer is damaged.
    _require(path, sum(group.total_byte_size for group in groups), most)
    flat = [file.schema.column(i).max_repetition_level == 0 for i in range(footer.num_columns)]
    size = pages = headers = 0
    for group in groups:
        for number in range(group.num_columns):
            column = group.column(number)
            if flat[number] and column.num_values != group.num_rows:
                raise DataError(
                    f"{path}: not a readable Parquet file: column {column.path_in_schema[:40]!r} has "
                    f"{column.num_values} values in {group.num_rows} rows"
                )
            for page in _pages(path, stream, column):
                pages, headers = pages + 1, headers + page.header
                if pages > MOST_PAGES or headers > _ALL_HEADERS:
                    raise DataError(f"{path}: more than {MOST_PAGES} pages, or too long headers; write larger pages")
                size += page.size * page.values if page.shared else page.size
                _require(path, size, most)
    return int(footer.num_rows)


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


#: Bytes of the widest decimal number.
_WIDEST = 32


def _require(path: Path, size: int, most: int) -> None:
    if size > most:
        raise DataError(f"{path}: {size} bytes once decompressed; at most {most} are read")


def _pages(path: Path, stream: IO[bytes], column: Any) -> Iterator[_Page]:
    """The pages of a column in a row group, as far as pyarrow reads them: until they hold as many values as told."""
    at = int(column.data_page_offset)
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = int(column.dictionary_page_offset)
    end, left = at + int(column.total_compressed_size), int(column.num_values)
    while left > 0:
        if not 0 <= at < end:
            raise _unreadable(path, at, "values are missing")
        page = _page(*_header(path, stream, at))
        if page is None:
            raise _unreadable(path, at, "its numbers cannot be")
        yield page
        left -= page.values
        at += page.header + page.packed


def _header(path: Path, stream: IO[bytes], at: int) -> tuple[Struct, int]:
    """The header of the page at a place, and its length."""
    longest = _HEADER
    while True:
        stream.seek(at)
        reader = Compact(data := stream.read(longest))
        try:
            return reader.struct(), reader.at
        except CutShortError as error:
            if len(data) < longest or longest >= _LONGEST_HEADER:
                raise _unreadable(path, at, str(error)) from None
            longest *= 16
        except CompactError as error:
            raise _unreadable(path, at, str(error)) from None


def _page(header: Struct, length: int) -> _Page | None:
    """What a header of some ``length`` says; None where a number is missing or negative."""
    first, second = header.get(5), header.get(8)  # data pages of the format's first and second version
    about, encoding = (first, 2) if isinstance(first, dict) else (second, 4)
    values, how = (about.get(1), about.get(encoding)) if isinstance(about, dict) else (0, 0)
    size, packed = header.get(_SIZE), header.get(_PACKED)
    if not (isinstance(size, int) and isinstance(packed, int) and isinstance(values, int)):
        return None
    if min(size, packed, values) < 0:
        return None
    return _Page(length, packed, size, values, shared=how == _SHARED_BEGINNINGS)


def _unreadable(path: Path, at: int, why: str) -> DataError:
    return DataError(f"{path}: not a readable Parquet file: the page at byte {at}: {why}")
