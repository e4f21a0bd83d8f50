"""Read a table of external scores with one row per canary or run: inclusion bit (1 or 0) and score.

The user is responsible for the table's content, including fair inclusion bits. This module checks columns, missing
values, inclusion bits other than 0 and 1, scores that are NaN or constant, group sizes, and duplicate ids.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError
from dpspec.data.arrays import npy_header, open_archive, open_member
from dpspec.data.table import is_text, listed
from dpspec.data.table_files import check_decompressed_size, open_parquet, parquet_column
from dpspec.regular_files import NotRegularError, read_regular
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


#: Maximum number of rows of a table.
MOST_ROWS = 10**6
#: Maximum size of a file in bytes.
MOST_BYTES = 2**27

#: Maximum group size of a row.
_MAX_GROUP = 10**9

#: Path of the block of a spec that names the table and its columns.
PLACE = "audit.scores"

#: The last tables read, by digest and columns. Checks, plans and trials read the same table.
_READ: dict[tuple[str, ...], ScoreTable] = {}
_KEPT = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreTable:
    """Rows in the order of the file.

    Attributes:
        digest: SHA-256 of the file's bytes in hexadecimal.
        coins: Inclusion bits (n,), int8, 1 for included.
        scores: Scores (n,), float64 without NaN, higher for included canaries.
        group_sizes: Group sizes (n,), int64.
    """

    digest: str
    coins: Array
    scores: Array
    group_sizes: Array

    def __len__(self) -> int:
        return len(self.coins)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The distinct group sizes, ascending."""
        return tuple(sorted({int(size) for size in self.group_sizes}))

    def of_size(self, size: int) -> tuple[Array, Array]:
        """Return the inclusion bits and scores of groups of one size, in the order of the file."""
        at = self.group_sizes == size
        return self.coins[at], self.scores[at]


def table_digest(directory: str | Path, options: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the table's bytes. Raises ``DataError`` if the file cannot be read."""
    return hashlib.sha256(_bytes(_path(directory, options))).hexdigest()


def read_table(directory: str | Path, options: Mapping[str, Any], group_size: int | None) -> ScoreTable:
    """Read a table of external scores.

    Args:
        directory: The folder that the path is relative to.
        options: ``path``, ``coin`` and ``score``, optionally ``group_size``, ``id`` and ``rows``.
        group_size: The group size of all rows, if the table has no such column.

    Raises:
        DataError: The table is invalid. The error's key is the path in the spec.
    """
    path = _path(directory, options)
    content = _bytes(path)
    digest = hashlib.sha256(content).hexdigest()
    known = (digest, str(path), repr(sorted(options.items())), str(group_size))
    if known not in _READ:
        try:
            table = _checked(path, content, digest, options, group_size)
        except DataError as error:
            raise DataError(str(error), f"{PLACE}.{error.key or 'path'}") from None
        while len(_READ) >= _KEPT:
            del _READ[next(iter(_READ))]
        _READ[known] = table
    return _READ[known]


def _path(directory: str | Path, options: Mapping[str, Any]) -> Path:
    return Path(directory) / str(options["path"])


def _bytes(path: Path) -> bytes:
    try:
        content = read_regular(path, MOST_BYTES)
    except NotRegularError as error:
        raise DataError(f"{path}: {error.strerror}", f"{PLACE}.path") from error
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", f"{PLACE}.path") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened: {error}", f"{PLACE}.path") from error
    if not content:
        raise DataError(f"{path}: is empty", f"{PLACE}.path")
    return content


def _checked(path: Path, content: bytes, digest: str, options: Mapping[str, Any], group_size: int | None) -> ScoreTable:
    import numpy as np

    keys = [key for key in ("coin", "score", "group_size", "id") if key in options]
    wanted = [Wanted(key=key, name=str(options[key]), text=key == "id") for key in keys]
    named: dict[str, str] = {}
    for column in wanted:
        if column.name in named:
            both = f"{named[column.name]} and {column.key}"
            raise DataError(f"{both} name the same column {column.name!r}", column.key)
        named[column.name] = column.key
    columns = read_columns(path, content, wanted, MOST_ROWS)
    rows = options.get("rows")
    if rows is not None and columns.rows != rows:
        message = f"{path}: {columns.rows} rows, but rows declares {rows}; the number must be fixed before training"
        raise DataError(message, "rows")
    coins, scores = _coins(columns, options), _scores(columns, options)
    sizes = np.full(columns.rows, group_size or 1, dtype=np.int64)
    if "group_size" in options:
        sizes = _sizes(columns, options)
    if "id" in options:
        _check_unique_ids(columns, options)
    table = ScoreTable(digest=digest, coins=coins, scores=scores, group_sizes=sizes)
    for size in table.sizes:
        values = table.of_size(size)[1]
        if len(values) > 1 and values.min() == values.max():
            of = f" of groups of {size}" if len(table.sizes) > 1 else ""
            raise DataError(f"{path}: all scores{of} are {values[0]:g}, so they contain no information", "score")
    return table


def _first(columns: Columns, bad: Array, key: str, name: str) -> tuple[str, float] | None:
    """Return the beginning of a message about the first ``bad`` row, and its value."""
    import numpy as np

    rows = np.flatnonzero(bad)
    if not rows.size:
        return None
    return f"{columns.where(int(rows[0]))}: column {name!r}", float(columns.values[key][rows[0]])


def _coins(columns: Columns, options: Mapping[str, Any]) -> Array:
    import numpy as np

    values = columns.values["coin"]
    found = _first(columns, (values != 0.0) & (values != 1.0), "coin", options["coin"])
    if found is not None:
        what = "is missing" if found[1] != found[1] else f"is {found[1]:g}"
        raise DataError(f"{found[0]}: the inclusion bit {what}; it must be 1 (in) or 0 (out)", "coin")
    return values.astype(np.int8)


def _scores(columns: Columns, options: Mapping[str, Any]) -> Array:
    import numpy as np

    values = columns.values["score"]
    found = _first(columns, np.isnan(values), "score", options["score"])
    if found is not None:
        help = "if training diverged, use one fixed score for these canaries, independent of their inclusion bits"
        raise DataError(f"{found[0]}: the score is missing, or is not a number (NaN); {help}", "score")
    return values


def _sizes(columns: Columns, options: Mapping[str, Any]) -> Array:
    import numpy as np

    values = columns.values["group_size"]
    fine = (values >= 1.0) & (values <= _MAX_GROUP) & (values == np.floor(values))
    found = _first(columns, ~fine, "group_size", options["group_size"])
    if found is not None:
        what = "is missing" if found[1] != found[1] else f"is {found[1]:g}"
        raise DataError(f"{found[0]}: the group size {what}; it must be an integer of at least 1", "group_size")
    return values.astype(np.int64)


def _check_unique_ids(columns: Columns, options: Mapping[str, Any]) -> None:
    """Raise ``DataError`` if two rows have the same id."""
    seen: dict[str, int] = {}
    for row, value in enumerate(columns.values["id"]):
        text = "" if value is None or value != value else str(value)
        if not text:
            raise DataError(f"{columns.where(row)}: column {options['id']!r}: the id is missing", "id")
        before = seen.setdefault(text, row)
        if before != row:
            first = columns.where(before)
            message = f"{columns.where(row)}: column {options['id']!r}: {shortened(text)!r} is also at {first}"
            raise DataError(f"{message}; each canary or run must have one row", "id")
