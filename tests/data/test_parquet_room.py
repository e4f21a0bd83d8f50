"""Parquet files that lie about what they hold: each is refused before memory is made room for."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from support import parquet_lies as lies

from dpspec.contract import DataError
from dpspec.data.tables.parquet import room
from dpspec.data.tables.parquet.compact import Compact, CompactError
from dpspec.data.tables.table_files import open_parquet, require_room

WHOLE = st.integers(-(2**63), 2**63 - 1)

#: What a refusal says of each lie.
SAID = {
    "row groups that are not there": "its footer: it is cut short",
    "columns that are not there": "its footer: it is cut short",
    "a schema that is not there": "its footer: it is cut short",
    "a deep schema": "too deeply nested",
    "many empty row groups": "its footer: it lacks a structure",
    "rows of a group": "its footer counts 20 rows, and others in its row groups",
    "rows of all": "values are missing",
    "long texts": "bytes once decompressed",
    "texts that share a beginning": "bytes once decompressed",
    "numbers in one page": "bytes once decompressed",
    "one row of many numbers": "is of type list",
}


def _structs(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    value = st.one_of(
        WHOLE.map(lambda number: (6, number)),
        st.binary(max_size=30).map(lambda text: (8, text)),
        inner.map(lambda fields: (12, fields)),
        st.lists(WHOLE, max_size=20).map(lambda numbers: (9, (6, numbers))),
        st.lists(inner, max_size=3).map(lambda items: (9, (12, items))),
    )
    return st.dictionaries(st.integers(1, 60), value, max_size=5)


def _plain(kind: int, value: Any) -> Any:
    """What is kept of a value: numbers, structures and lists."""
    if kind == 12:
        return {number: _plain(*field) for number, field in value.items()}
    if kind == 9:
        return [_plain(value[0], item) for item in value[1]]
    return value if kind == 6 else None


@given(st.recursive(st.just({}), _structs, max_leaves=6))
def test_structures_are_read_as_they_were_written(fields: lies.Fields) -> None:
    reader = Compact(data := lies.written(fields), 1000)
    assert reader.struct() == _plain(12, fields)
    assert reader.at == len(data)
    assert lies.parsed(data) == (fields, len(data))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_structure_are_told(data: bytes) -> None:
    reader = Compact(data, 100)
    try:
        reader.struct()
    except CompactError:
        return
    assert reader.at <= len(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x1c" * 40, "nested more than 16"),
        (b"\x19" * 40, "nested more than 16|cut short"),
        (b"\x16\x00" * 200 + b"\x00", "too many parts"),
        (b"\x16" + b"\x80" * 20, "more than 64 bits"),
        (b"\x1b\x00\x00", "of type 11"),
        (b"\x18\xff\xff\xff\xff\x0f", "cut short"),
        (b"\x19\xfc\xff\xff\xff\x0f\x00", "cut short"),
    ],
)
def test_structures_that_claim_too_much(data: bytes, said: str) -> None:
    with pytest.raises(CompactError, match=said):
        Compact(data, 100).struct()


@pytest.mark.ci
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs to be told the most memory that it had")
def test_each_lie_is_refused_and_takes_no_memory(tmp_path: Path) -> None:
    made = lies.lies()
    assert set(made) == {lies.HONEST, *SAID}
    for name, make in made.items():
        (tmp_path / f"{name}.parquet").write_bytes(make())
    done = subprocess.run([sys.executable, lies.__file__, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ended = {name: (said, grew) for name, said, grew in map(json.loads, done.stdout.splitlines())}
    assert ended.pop(lies.HONEST)[0] == "read"
    assert ended.keys() == SAID.keys()
    for name, (said, grew) in ended.items():
        assert SAID[name] in said, (name, said)
        assert grew < 60 << 20, (name, grew)


def _refused(data: bytes, tmp_path: Path, most: int = 2**20) -> str:
    path = tmp_path / "t.parquet"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught, open_parquet(path) as file:
        require_room(file, path, most)
    return str(caught.value)


def test_footers_that_are_none_or_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = lies.table({"a": [1.0], "y": [0]})
    assert "does not end in a footer" in _refused(honest[:-1], tmp_path)
    assert "does not end in a footer" in _refused(honest[:-8] + struct.pack("<I", 2**31) + b"PAR1", tmp_path)
    assert "its footer: it lacks a list" in _refused(lies.with_footer(honest, lambda f: f.pop(4)), tmp_path)
    monkeypatch.setattr(room, "MOST_FOOTER", 50)
    assert "at most 50 are read: write fewer columns" in _refused(honest, tmp_path)


def test_pages_that_are_too_many_or_negative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = lies.table({"a": [1.0], "y": [0]})
    header, length = lies.parsed(honest, 4)
    assert header[2][0] == 5
    changed = lies.written({**header, 2: (5, -1)})
    assert "is negative" in _refused(honest[:4] + changed + honest[4 + length :], tmp_path)
    monkeypatch.setattr(room, "MOST_PAGES", 1)
    assert "more than 1 pages" in _refused(honest, tmp_path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("packed", ["none", "snappy", "zstd"])
def test_what_honest_files_take_is_what_their_footers_say(version: str, dictionary: bool, packed: str) -> None:
    how = {"data_page_version": version, "use_dictionary": dictionary, "compression": packed}
    columns = {"a": [i / 7 for i in range(5000)], "c": [f"{i % 90}-{'x' * 30}" for i in range(5000)]}
    data = lies.table(columns, row_group_size=1700, data_page_size=2000, write_statistics=True, **how)
    from pyarrow import parquet

    with parquet.ParquetFile(io.BytesIO(data)) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        told = sum(group.column(i).total_uncompressed_size for group in groups for i in range(2))
        assert room.require_room(file, Path("t"), io.BytesIO(data), told) == 5000
        headers = 0.2 * told
        with pytest.raises(DataError, match="once decompressed"):
            room.require_room(file, Path("t"), io.BytesIO(data), int(told - headers))
