"""Read a table of external scores with one row per canary or run: inclusion bit (1 or 0) and score.

The user is responsible for the table's content, including fair inclusion bits. This module checks columns, missing
values, inclusion bits other than 0 and 1, scores that are NaN or constant, group sizes, and duplicate ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError
from dpspec.data.scored.columns import Columns, Wanted, read_columns
from dpspec.regular_files import NotRegularError, read_regular
from dpspec.text import shortened

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

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
        group_size: The group size of all rows, if there is no column for it.

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
