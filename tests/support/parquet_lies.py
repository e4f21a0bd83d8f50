"""Parquet files whose footers or pages say what is not so: small ones that would take a hundred megabytes and more.

``python tests/support/parquet_lies.py FOLDER`` describes and reads each as a data block does, where 64 MiB are the most
that is read, and prints how that ended and by how many bytes the most memory of the process grew.
"""

from __future__ import annotations

import io
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Thrift's types of the compact protocol that footers and headers of pages have, by their numbers.
_BINARY, _LIST, _STRUCT = 8, 9, 12

#: The file without a lie.
HONEST = "none"

Value = tuple[int, Any]
Fields = dict[int, Value]


def parsed(data: bytes, at: int = 0) -> tuple[Fields, int]:
    """The structure at a place: for every field its type and value, structures and lists within; and where it ends."""
    fields: Fields = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _unsigned(data, at)
            number = (number >> 1) ^ -(number & 1)
        value, at = _parsed(data, at, kind)
        fields[number] = kind, value
    return fields, at + 1


def _parsed(data: bytes, at: int, kind: int, *, in_list: bool = False) -> tuple[Any, int]:
    if kind in (1, 2):
        return (data[at : at + 1], at + 1) if in_list else (b"", at)
    if kind in (4, 5, 6):
        found, at = _unsigned(data, at)
        return (found >> 1) ^ -(found & 1), at
    if kind == 3:
        return data[at : at + 1], at + 1
    if kind == 7:
        return data[at : at + 8], at + 8
    if kind == _BINARY:
        size, at = _unsigned(data, at)
        return data[at : at + size], at + size
    if kind == _LIST:
        inner, size, at = data[at] & 15, data[at] >> 4, at + 1
        if size == 15:
            size, at = _unsigned(data, at)
        items = []
        for _ in range(size):
            item, at = _parsed(data, at, inner, in_list=True)
            items.append(item)
        return (inner, items), at
    assert kind == _STRUCT, kind
    return parsed(data, at)


def written(fields: Fields) -> bytes:
    """The bytes of a structure; of a list, a third item is the number of elements that it claims."""
    out, last = b"", 0
    for number, (kind, value) in sorted(fields.items()):
        step = number - last
        out += bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + _varint(number << 1)
        out += _written(kind, value)
        last = number
    return out + b"\0"


def _written(kind: int, value: Any) -> bytes:
    if kind in (4, 5, 6):
        return _varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind == _BINARY:
        return _varint(len(value)) + value
    if kind == _LIST:
        inner, items, *claimed = value
        size = claimed[0] if claimed else len(items)
        head = bytes([size << 4 | inner]) if size < 15 else bytes([240 | inner]) + _varint(size)
        return head + b"".join(_written(inner, item) for item in items)
    if kind == _STRUCT:
        return written(value)
    return bytes(value)


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def table(columns: dict[str, Any], **how: Any) -> bytes:
    """An honest file."""
    import pyarrow as pa
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, **{"store_schema": False, "write_statistics": False, **how})
    return out.getvalue()


def with_footer(data: bytes, change: Callable[[Fields], None]) -> bytes:
    """The file with its footer changed."""
    length = int.from_bytes(data[-8:-4], "little")
    footer, _ = parsed(data[-8 - length : -8])
    change(footer)
    new = written(footer)
    return data[: -8 - length] + new + struct.pack("<I", len(new)) + b"PAR1"


def _groups(footer: Fields) -> list[Fields]:
    return list(footer[4][1][1])


def _column(footer: Fields, number: int) -> Fields:
    """What is said of a column of the first row group."""
    found: Fields = _groups(footer)[0][1][1][1][number][3][1]
    return found


def _claimed(footer: Fields, number: int, size: int) -> None:
    """A list of the footer claims to be longer."""
    kind, (inner, items, *_) = footer[number]
    footer[number] = kind, (inner, items, size)


def _columns_claimed(footer: Fields) -> None:
    _claimed(_groups(footer)[0], 1, 999_000)


def _less(footer: Fields) -> None:
    """All sizes once decompressed are said to be small."""
    for group in _groups(footer):
        group[2] = 6, 100
        for column in group[1][1][1]:
            column[3][1][6] = 6, 100


def _rows(footer: Fields, *, all_rows: bool) -> None:
    if all_rows:
        footer[3] = 6, 2**33
    _groups(footer)[0][3] = 6, 2**33
    for column in _groups(footer)[0][1][1][1]:
        column[3][1][5] = 6, 2**33


def _deep(footer: Fields) -> None:
    """A schema of groups in groups."""
    kind, (inner, items) = footer[2]
    nested = [{3: (5, 1), 4: (_BINARY, b"n"), 5: (5, 1)} for _ in range(50_000)]
    footer[2] = kind, (inner, [items[0], *nested, *items[1:]])


def _many(footer: Fields) -> None:
    """Row groups without columns, and one with columns of which nothing is said."""
    kind, (inner, items) = footer[4]
    empty: Fields = {1: (_LIST, (_STRUCT, [])), 2: (6, 0), 3: (6, 0)}
    bare: Fields = {1: (_LIST, (_STRUCT, [{2: (6, 0)} for _ in range(40_000)])), 2: (6, 0), 3: (6, 0)}
    footer[4] = kind, (inner, [*items, bare, *[empty] * 40_000])


def _honest() -> dict[str, Any]:
    return {"a": [float(i) for i in range(20)], "y": [i % 2 for i in range(20)]}


def lies() -> dict[str, Callable[[], bytes]]:
    """Every lie by its name: how to make the file."""
    import numpy as np
    import pyarrow as pa

    def text(size: int, count: int, **how: Any) -> bytes:
        words = pa.array(["q" * size + str(i) for i in range(count)])
        columns = {"a": words, "y": [0] * count}
        return table(columns, use_dictionary=False, data_page_size=1 << 30, compression="zstd", **how)

    return {
        HONEST: lambda: table(_honest()),
        "row groups that are not there": lambda: with_footer(table(_honest()), lambda f: _claimed(f, 4, 999_000)),
        "columns that are not there": lambda: with_footer(table(_honest()), _columns_claimed),
        "a schema that is not there": lambda: with_footer(table(_honest()), lambda f: _claimed(f, 2, 999_000)),
        "a deep schema": lambda: with_footer(table(_honest()), _deep),
        "many empty row groups": lambda: with_footer(table(_honest()), _many),
        "rows of a group": lambda: with_footer(table(_honest()), lambda f: _rows(f, all_rows=False)),
        "rows of all": lambda: with_footer(table(_honest()), lambda f: _rows(f, all_rows=True)),
        "long texts": lambda: with_footer(text(1_200_000, 100), _less),
        "texts that share a beginning": lambda: with_footer(
            text(10_000, 12_000, column_encoding={"a": "DELTA_BYTE_ARRAY", "y": "PLAIN"}), _less
        ),
        "numbers in one page": lambda: with_footer(
            table(
                {"a": np.zeros(15_000_000), "y": np.zeros(15_000_000, np.int8)},
                use_dictionary=False,
                data_page_size=1 << 31,
                row_group_size=1 << 30,
                compression="zstd",
            ),
            _less,
        ),
        "one row of many numbers": lambda: with_footer(
            table({"a": pa.array([np.zeros(15_000_000)]), "y": [0]}, compression="zstd"), _less
        ),
    }


def peak() -> int:
    """The most memory that this program has held, in bytes."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def main(folder: Path) -> None:
    """Read all files as a source of data does, first the one without a lie."""
    from dpspec.contract import DataError, FrozenMap
    from dpspec.data.tables import table_files

    table_files.MAX_BYTES = 2**26
    for path in sorted(folder.glob("*.parquet"), key=lambda path: (path.stem != HONEST, path)):
        before, ended = peak(), "read"
        source = table_files.Parquet(FrozenMap({"path": path.name, "label": "y", "classes": 2}), folder)
        for ask in (source.facts, source.load):
            try:
                ask()
            except DataError as error:
                ended = str(error)
        print(json.dumps([path.stem, ended, peak() - before]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
