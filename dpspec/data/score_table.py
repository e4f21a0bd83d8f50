"""Read a table of external scores with one row per canary or run: inclusion bit (1 or 0) and score.

The user is responsible for the table's content, including fair inclusion bits.
"""

from __future__ import annotations

import hashlib
import io
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError
from dpspec.data.arrays import npy_header, npy_values, open_archive
from dpspec.data.csv_text import csv_lines, kind_of_value, no_column
from dpspec.regular_files import NotRegularError, read_regular

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

#: Maximum size of decompressed arrays in bytes.
_MAX_DECOMPRESSED_BYTES = 2**27


#: The key of the column of strings; all others are numbers.
_TEXT = "id"


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Columns (n,) by key: float64 with NaN for missing numbers, or object for strings.

    ``where`` returns the beginning of a message about a row, counted from 0.
    """

    values: dict[str, Array]
    rows: int
    where: Callable[[int], str]


def read_columns(path: Path, content: bytes, names: Mapping[str, str], most: int) -> Columns:
    """Read the columns ``names``, by key, of at most ``most`` rows; the suffix of ``path`` determines the format."""
    formats = {".csv": _csv, ".npz": _npz}
    if path.suffix.lower() not in formats:
        raise DataError(f"{path}: its name must end in .csv or .npz", "path")
    columns = formats[path.suffix.lower()](path, content, names, most)
    if columns.rows == 0:
        raise DataError(f"{path}: is empty: it has no rows", "path")
    return columns


def _too_many(path: Path, most: int) -> DataError:
    return DataError(f"{path}: more than {most} rows, which is the maximum", "path")


def _require_columns(path: Path, names: Mapping[str, str], header: Sequence[str]) -> None:
    for key, name in names.items():
        if name not in header:
            raise no_column(name, header, path, key)
        if header.count(name) > 1:
            raise DataError(f"{path}: two columns have the name {name!r}", key)


def _csv(path: Path, content: bytes, names: Mapping[str, str], most: int) -> Columns:
    import numpy as np

    numbers: dict[str, array[float]] = {key: array("d") for key in names if key != _TEXT}
    texts: list[str] = []
    numbered = array("q")
    with csv_lines(path, io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")) as (header, lines):
        _require_columns(path, names, header)
        positions = {key: header.index(name) for key, name in names.items()}
        for number, line in lines:
            if len(numbered) >= most:
                raise _too_many(path, most)
            numbered.append(number)
            for key, position in positions.items():
                text = line[position].strip()
                if key == _TEXT:
                    texts.append(text)
                else:
                    numbers[key].append(_number(text, f"{path}:{number}: column {names[key]!r}", key))
    values: dict[str, Array] = {key: np.frombuffer(column, dtype=np.float64) for key, column in numbers.items()}
    if _TEXT in names:
        values[_TEXT] = np.array(texts, dtype=object)
    return Columns(values=values, rows=len(numbered), where=lambda row: f"{path}:{numbered[row]}")


def _number(text: str, where: str, key: str) -> float:
    """Parse a number in Python's notation without underscores, or a boolean; NaN for an empty string."""
    if not text:
        return math.nan
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        if "_" not in text:
            return float(text)
    except ValueError:
        pass
    raise DataError(f"{where}: {kind_of_value(text)[0]} instead of a number", key, private=text)


def _npz(path: Path, content: bytes, names: Mapping[str, str], most: int) -> Columns:
    import numpy as np

    values: dict[str, Array] = {}
    with open_archive(path, io.BytesIO(content)) as archive:
        _require_columns(path, names, [name.removesuffix(".npy") for name in dict.fromkeys(archive.namelist())])
        for key, name in names.items():
            source, kinds = f"{path}: {name}", "fiub" + "US" * (key == _TEXT)
            shape, dtype = npy_header(archive, name, source)
            if dtype.kind not in kinds or len(shape) != 1:
                allowed = "strings or numbers" if key == _TEXT else "numbers"
                raise DataError(f"{source} must have {allowed} and 1 axis, got dtype {dtype} and shape {shape}", key)
            if shape[0] > most:
                raise _too_many(path, most)
            size = shape[0] * dtype.itemsize
            if size > _MAX_DECOMPRESSED_BYTES:
                raise DataError(f"{source}: {size} bytes; at most {_MAX_DECOMPRESSED_BYTES} are read", key)
            values[key] = npy_values(archive, name).astype(object if key == _TEXT else np.float64)
    lengths = {name: len(values[key]) for key, name in names.items()}
    if len(set(lengths.values())) > 1:
        listed_lengths = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{path}: columns must have equal lengths, got: {listed_lengths}", "path")
    return Columns(values=values, rows=next(iter(lengths.values())), where=lambda row: f"{path}: row {row}")


#: Maximum number of rows of a table.
MOST_ROWS = 10**6
#: Maximum size of a file in bytes.
MOST_BYTES = 2**27

#: Maximum group size of a row.
_MAX_GROUP = 10**9

#: Path of the block of a spec that names the table and its columns.
PLACE = "audit.scores"


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreTable:
    """Rows in the order of the file: bits (n,), int8, scores (n,), float64, and group sizes (n,), int64."""

    digest: str
    coins: Array
    scores: Array
    group_sizes: Array

    def __len__(self) -> int:
        return len(self.coins)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({int(size) for size in self.group_sizes}))

    def of_size(self, size: int) -> tuple[Array, Array]:
        of_this_size = self.group_sizes == size
        return self.coins[of_this_size], self.scores[of_this_size]


def table_digest(directory: str | Path, options: Mapping[str, Any]) -> str:
    return hashlib.sha256(_bytes(Path(directory) / str(options["path"]))).hexdigest()


def read_table(directory: str | Path, options: Mapping[str, Any], group_size: int | None) -> ScoreTable:
    """Read a table of external scores, of groups of ``group_size`` if the table has no such column.

    ``options`` are ``path``, ``coin`` and ``score``, optionally ``group_size``, ``id`` and ``rows``. The key of a
    ``DataError`` is the path in the spec.
    """
    path = Path(directory) / str(options["path"])
    content = _bytes(path)
    try:
        return _checked(path, content, options, group_size)
    except DataError as error:
        raise DataError(str(error), f"{PLACE}.{error.key or 'path'}") from None


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


def _checked(path: Path, content: bytes, options: Mapping[str, Any], group_size: int | None) -> ScoreTable:
    """The scores of a CSV or NPZ file, by its suffix."""
    import numpy as np

    keys = [key for key in ("coin", "score", "group_size", "id") if key in options]
    names = {key: str(options[key]) for key in keys}
    for i, key in enumerate(keys):
        same = next((earlier_key for earlier_key in keys[:i] if names[earlier_key] == names[key]), None)
        if same is not None:
            raise DataError(f"{same} and {key} name the same column {names[key]!r}", key)
    columns = read_columns(path, content, names, MOST_ROWS)
    rows = options.get("rows")
    if rows is not None and columns.rows != rows:
        message = f"{path}: {columns.rows} rows, but rows declares {rows}; the number must be fixed before training"
        raise DataError(message, "rows")

    def require(key: str, good: Array, message: str) -> None:
        bad = np.flatnonzero(~good)
        if bad.size:
            value = columns.values[key][bad[0]]
            fault = "is missing" if np.isnan(value) else f"is {value:g}"
            where = f"{columns.where(int(bad[0]))}: column {options[key]!r}"
            raise DataError(f"{where}: {message.format(fault)}", key)

    coins, scores = columns.values["coin"], columns.values["score"]
    require("coin", (coins == 0.0) | (coins == 1.0), "the inclusion bit {}; it must be 1 (in) or 0 (out)")
    help = "if training diverged, use one fixed score for these canaries, independent of their inclusion bits"
    require("score", ~np.isnan(scores), f"the score is missing, or is not a number (NaN); {help}")
    sizes = np.full(columns.rows, group_size or 1, dtype=np.int64)
    if "group_size" in options:
        declared = columns.values["group_size"]
        fine = (declared >= 1.0) & (declared <= _MAX_GROUP) & (declared == np.floor(declared))
        require("group_size", fine, "the group size {}; it must be an integer of at least 1")
        sizes = declared.astype(np.int64)
    first_row: dict[str, int] = {}
    for row, value in enumerate(columns.values.get("id", ())):
        where, text = f"{columns.where(row)}: column {options['id']!r}", str(value)
        if value is None or value != value or not text:
            raise DataError(f"{where}: the id is missing", "id")
        before = first_row.setdefault(text, row)
        if before != row:
            message = f"{where}: the id is also at {columns.where(before)}"
            raise DataError(f"{message}; each canary or run must have one row", "id", private=text)
    digest = hashlib.sha256(content).hexdigest()
    table = ScoreTable(digest=digest, coins=coins.astype(np.int8), scores=scores, group_sizes=sizes)
    for size in table.sizes:
        values = table.of_size(size)[1]
        if len(values) > 1 and values.min() == values.max():
            qualifier = f" of groups of {size}" if len(table.sizes) > 1 else ""
            raise DataError(f"{path}: all scores{qualifier} are {values[0]:g}, so they contain no information", "score")
    return table
