"""Read named columns from the bytes of a ``csv``, ``npz`` or ``parquet`` table.

The caller has read and hashed the bytes. No code in them is executed, and headers are checked before arrays are
allocated.
"""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError
from dpspec.data.arrays import npy_header, open_archive, open_member
from dpspec.data.tables.table import is_text, listed
from dpspec.data.tables.table_files import check_decompressed_size, open_parquet, parquet_column
from dpspec.text import closest, did_you_mean, shortened

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

#: Supported file name suffixes.
SUFFIXES = (".csv", ".npz", ".parquet")

#: Spellings of booleans in text.
_WORDS = {"true": 1.0, "false": 0.0}

#: Maximum size of decompressed arrays in bytes.
_MAX_DECOMPRESSED_BYTES = 2**27


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A column to read.

    Attributes:
        key: The key of the spec that names it.
        name: The column's name.
        text: True for strings, such as canary ids; False for numbers.
    """

    key: str
    name: str
    text: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Columns of equal length.

    Attributes:
        values: Arrays (n,) by key: float64 with NaN for missing numbers, or object for strings.
        rows: The number of rows n.
        where: Returns the beginning of a message about a row, counted from 0.
    """

    values: dict[str, Array]
    rows: int
    where: Callable[[int], str]


def read_columns(path: Path, content: bytes, wanted: Sequence[Wanted], most: int) -> Columns:
    """Read columns of a table.

    Args:
        path: The file's path, for its suffix and messages.
        content: The file's bytes.
        wanted: The columns to read.
        most: Maximum number of rows.

    Raises:
        DataError: The table is invalid, too large or empty, or a column is missing.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: its name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}", "path")
    read = {".csv": _csv, ".npz": _npz, ".parquet": _parquet}[suffix]
    columns = read(path, content, wanted, most)
    if columns.rows == 0:
        raise DataError(f"{path}: is empty: it has no rows", "path")
    return columns


def _too_many(path: Path, most: int) -> DataError:
    return DataError(f"{path}: more than {most} rows, which is the maximum", "path")


def _missing_column(path: Path, wanted: Wanted, names: Sequence[str]) -> DataError:
    near = did_you_mean(closest(wanted.name, names))
    return DataError(f"{path}: has no column {wanted.name!r}{near} (its columns: {listed(names)})", wanted.key)


def _csv(path: Path, content: bytes, wanted: Sequence[Wanted], most: int) -> Columns:
    import numpy as np

    numbers: dict[str, array[float]] = {column.key: array("d") for column in wanted if not column.text}
    texts: dict[str, list[str]] = {column.key: [] for column in wanted if column.text}
    lines = array("q")
    try:
        reader = csv.reader(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=""), strict=True)
        header = [name.strip() for name in next(reader, [])]
        places = _places(path, header, wanted)
        for line in reader:
            if not line:
                continue
            if len(line) != len(header):
                raise DataError(
                    f"{path}:{reader.line_num}: {len(line)} values under {len(header)} column names", "path"
                )
            if len(lines) >= most:
                raise _too_many(path, most)
            lines.append(reader.line_num)
            for column, place in zip(wanted, places, strict=True):
                text = line[place].strip()
                if column.text:
                    texts[column.key].append(text)
                else:
                    numbers[column.key].append(_number(text, column, f"{path}:{reader.line_num}"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a readable CSV file: not UTF-8 text, save it as UTF-8: {error}", "path") from None
    except csv.Error as error:
        raise DataError(f"{path}: not a readable CSV file: {error}", "path") from None
    values: dict[str, Array] = {key: np.frombuffer(found, dtype=np.float64) for key, found in numbers.items()}
    values |= {key: np.array(found, dtype=object) for key, found in texts.items()}
    return Columns(values=values, rows=len(lines), where=lambda row: f"{path}:{lines[row]}")


def _places(path: Path, header: Sequence[str], wanted: Sequence[Wanted]) -> list[int]:
    if not header:
        raise DataError(f"{path}: is empty: its first line must name the columns", "path")
    if len(header) == 1 and (found := [mark for mark in (";", "\t", "|") if mark in header[0]]):
        raise DataError(f"{path}: columns are separated by commas, its first line has {found[0]!r}", "path")
    for column in wanted:
        if column.name not in header:
            raise _missing_column(path, column, header)
        if header.count(column.name) > 1:
            raise DataError(f"{path}: two columns have the name {column.name!r}", column.key)
    return [header.index(column.name) for column in wanted]


def _number(text: str, column: Wanted, where: str) -> float:
    """Parse a number in Python's notation without underscores, or a boolean; NaN for an empty string."""
    if not text:
        return math.nan
    try:
        if "_" not in text:
            return float(text)
    except ValueError:
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
    raise DataError(f"{where}: column {column.name!r}: {shortened(text)!r} is not a number", column.key)


def _npz(path: Path, content: bytes, wanted: Sequence[Wanted], most: int) -> Columns:
    import numpy as np

    values: dict[str, Array] = {}
    with open_archive(path, io.BytesIO(content)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        for column in wanted:
            if column.name not in names:
                raise _missing_column(path, column, names)
            what = f"{path}: {column.name}"
            with open_member(archive, column.name) as member:
                shape, dtype = npy_header(member, what)
            kinds = "fiubUS" if column.text else "fiub"
            if dtype.kind not in kinds:
                allowed = "strings or numbers" if column.text else "numbers"
                raise DataError(f"{what} must contain {allowed}, got dtype {dtype}", column.key)
            if len(shape) != 1:
                raise DataError(f"{what} must have 1 axis, got shape {shape}", column.key)
            if shape[0] > most:
                raise _too_many(path, most)
            if shape[0] * dtype.itemsize > _MAX_DECOMPRESSED_BYTES:
                raise DataError(
                    f"{what}: {shape[0] * dtype.itemsize} bytes; at most {_MAX_DECOMPRESSED_BYTES} are read", column.key
                )
            with open_member(archive, column.name) as member:
                read = np.lib.format.read_array(member, allow_pickle=False)
            values[column.key] = read.astype(object) if column.text else read.astype(np.float64)
    return Columns(values=values, rows=_equal_length(path, wanted, values), where=_row(path))


def _parquet(path: Path, content: bytes, wanted: Sequence[Wanted], most: int) -> Columns:
    import numpy as np

    values: dict[str, Array] = {}
    with open_parquet(path, content=io.BytesIO(content)) as file:
        names = list(file.schema_arrow.names)
        for column in wanted:
            if column.name not in names:
                raise _missing_column(path, column, names)
        rows = check_decompressed_size(file, path, _MAX_DECOMPRESSED_BYTES)
        if rows > most:
            raise _too_many(path, most)
        if rows == 0:
            return Columns(values={}, rows=0, where=_row(path))
        texts = [field.name for field in file.schema_arrow if is_text(field.type)]
    with open_parquet(path, texts, io.BytesIO(content)) as file:
        for column in wanted:
            found = parquet_column(file, column.name, path)
            if column.text:
                values[column.key] = found.astype(object)
            elif found.dtype.kind in "fiub":
                values[column.key] = found.astype(np.float64)
            else:
                message = f"{path}: column {column.name!r} is not numeric or has missing values"
                raise DataError(message, column.key)
    return Columns(values=values, rows=_equal_length(path, wanted, values), where=_row(path))


def _equal_length(path: Path, wanted: Sequence[Wanted], values: dict[str, Array]) -> int:
    lengths = {column.name: len(values[column.key]) for column in wanted}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{path}: columns must have equal lengths, got: {found}", "path")
    return next(iter(lengths.values()))


def _row(path: Path) -> Callable[[int], str]:
    return lambda row: f"{path}: row {row}"
