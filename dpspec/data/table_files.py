"""Data kinds ``csv`` and ``parquet``: tables with named columns, including the label."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data import users
from dpspec.data.files import MAX_BYTES, check_count, import_optional, locate, sha256
from dpspec.data.options import path, schema
from dpspec.data.table import KEYS, Columns, column_values, is_text, rows, text_of, unknown_category
from dpspec.data.users import TableOfUsers
from dpspec.text import shortened

if TYPE_CHECKING:
    import numpy as np


CSV = Dataset(
    kind="csv",
    summary="A CSV table with a header, numeric or categorical columns, and a label column.",
    schema=schema(
        {
            "path": path("The table: UTF-8, comma-separated, with column names in the first line."),
            **KEYS,
            **users.KEYS,
            "missing": {
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": {"type": "string"},
                "description": "The spellings of missing values in numeric columns; an empty string for empty cells. "
                "Only mechanisms that impute accept such records. Public constants.",
            },
        },
        required=["path", "label", "classes"],
    ),
    source="dpspec.data.table_files:Csv",
)


@dataclass(frozen=True)
class _Layout:
    """A file, the number of its columns, and the indices of features, label and all columns."""

    file: Path
    width: int
    columns: Columns
    features: Mapping[str, int]
    label: int
    places: Mapping[str, int]


class Csv(TableOfUsers):
    """Records (features,): every column a number or one of its categories, every label one of the classes."""

    def describe(self) -> Facts:
        """Count the lines without parsing numbers."""
        with self._lines() as (table, lines):
            records = sum(1 for _ in lines)
        shape = (table.columns.width,)
        if not records:
            raise DataError(f"{table.file}: is empty: no record follows the header")
        check_count(table.file, (records, *shape))
        key = {"kind": "csv", "file": sha256(table.file), "columns": list(table.features), **self.table_key()}
        if self.options.get("missing"):
            key["missing"] = sorted(self.options["missing"])
        return Facts(records=records, features=shape[0], classes=len(self.classes()), shape=shape, digest=digest(key))

    def read(self) -> LoadedData:
        """Read all values. Raises ``DataError`` with line and column of the first invalid value."""
        import numpy as np

        x, y, classes = array("d"), array("q"), self.classes()
        missing = frozenset(text.strip() for text in self.options.get("missing") or ())
        with self._lines() as (table, lines):
            for number, line in lines:
                where = f"{table.file}:{number}"
                for name, index in table.features.items():
                    known = table.columns.categories.get(name)
                    if known is None:
                        absent = bool(missing) and line[index].strip() in missing
                        x.append(math.nan if absent else _number(line[index], f"{where}: column {name!r}"))
                    else:
                        x.extend(_one_hot(line[index].strip(), name, known, where))
                label = line[table.label].strip()
                if label not in classes:
                    raise self.unknown_class(label, where)
                y.append(classes[label])
        features = np.frombuffer(x, dtype=np.float64).reshape(len(y), table.columns.width)
        labels = np.frombuffer(y, dtype=np.int64)
        return LoadedData(train_x=features, train_y=labels, test_x=features[:0], test_y=labels[:0])

    def owners(self) -> list[str]:
        """Return the user of each record."""
        name = str(self.options["user"])
        with self._lines() as (table, lines):
            return [line[table.places[name]].strip() for _, line in lines]

    @contextmanager
    def _lines(self) -> Iterator[tuple[_Layout, Iterator[tuple[int, list[str]]]]]:
        """Yield the table's layout and its numbered lines. Read errors become ``DataError``."""
        path = locate(self.directory, self.options["path"])
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, strict=True)
                table = self._layout(path, [name.strip() for name in next(reader, [])])
                yield (
                    table,
                    (
                        (reader.line_num, _check_width(line, table.width, f"{path}:{reader.line_num}"))
                        for line in reader
                        if line
                    ),
                )
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not a readable CSV file: not UTF-8 text, save it as UTF-8: {error}") from error
        except (OSError, csv.Error) as error:
            raise DataError(f"{path}: not a readable CSV file: {error}") from error

    def _layout(self, path: Path, header: list[str]) -> _Layout:
        if not header:
            raise DataError(f"{path}: is empty: its first line must name the columns")
        if len(header) == 1 and (found := [mark for mark in (";", "\t", "|") if mark in header[0]]):
            raise DataError(f"{path}: columns are separated by commas, its first line has {found[0]!r}")
        columns = self.columns(header, path)
        return _Layout(
            file=path,
            width=len(header),
            columns=columns,
            features={name: header.index(name) for name in columns.features},
            label=header.index(columns.label),
            places={name: place for place, name in enumerate(header)},
        )


def _check_width(line: list[str], width: int, where: str) -> list[str]:
    if len(line) != width:
        raise DataError(f"{where}: {len(line)} values under {width} column names")
    return line


def _one_hot(text: str, name: str, known: Mapping[str, int], where: str) -> list[float]:
    if text not in known:
        raise unknown_category(text, name, known, where)
    return [float(place == known[text]) for place in range(len(known))]


#: Common values that Python does not parse as numbers: dates, and numbers in other conventions.
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_GROUPED = re.compile(r"[+-]?\d+(?:[.,' ]\d{3})*(?:[.,]\d+)?")


def _hint(text: str) -> str:
    if not text.strip():
        return (
            "; replace missing values by a public constant, or exclude the column (columns); for a mechanism that "
            "imputes, declare the spelling of missing values (missing)"
        )
    if _DATE.search(text):
        return "; convert dates to numbers, such as days since a public date, or exclude the column (columns)"
    if _GROUPED.fullmatch(text.strip()):
        return "; write numbers with a decimal point and without thousands separators"
    return "" if _like_a_number(text) else "; declare the values of a categorical column (categories), or exclude it"


def _like_a_number(text: str) -> bool:
    return text.strip().lower().lstrip("+-")[:3] in ("nan", "inf") or any(c.isdigit() for c in text)


def _number(text: str, where: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {shortened(text)!r} is not a finite number{_hint(text)}")
    return value


PARQUET = Dataset(
    kind="parquet",
    summary="A Parquet table with numeric or categorical columns and a label column (needs pyarrow).",
    schema=schema(
        {
            "path": path("The table of training records."),
            "test_path": path("A table of test records with the same columns."),
            **KEYS,
            **users.KEYS,
        },
        required=["path", "label", "classes"],
    ),
    source="dpspec.data.table_files:Parquet",
)


class Parquet(TableOfUsers):
    """Records (features,): every column a number or one of its categories, every label one of the classes."""

    def describe(self) -> Facts:
        """Read counts and names from the files' footers, and hash the files."""
        files = self._files()
        counts, layouts = zip(*map(self._described, files), strict=True)
        if layouts[-1] != layouts[0]:
            raise DataError(
                f"{files[-1]}: the features differ from the features of {files[0]}; list them under columns"
            )
        shape = (layouts[0].width,)
        for file, count in zip(files, counts, strict=True):
            check_count(file, (count, *shape))
        key = {"kind": "parquet", "files": [sha256(file) for file in files], **self.table_key()}
        return Facts(
            records=counts[0],
            features=shape[0],
            classes=len(self.classes()),
            shape=shape,
            test_records=sum(counts[1:]),
            digest=digest({**key, "columns": list(layouts[0].features)}),
        )

    def read(self) -> LoadedData:
        """Read the selected columns one at a time."""
        (x, y), *test = [self._rows(file) for file in self._files()]
        test_x, test_y = test[0] if test else (x[:0], y[:0])
        return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)

    def what(self, test: bool = False) -> str:
        """Return the file of training or test records."""
        return str(self.directory / self.options["test_path" if test and "test_path" in self.options else "path"])

    def owners(self) -> list[str]:
        """Return the user of each training record. Integers are formatted as in specs."""
        file, name = self._files()[0], str(self.options["user"])
        with open_parquet(file) as opened:
            check_decompressed_size(opened, file, MAX_BYTES)
            values = parquet_column(opened, name, file)
        if values.dtype.kind not in "iuO":  # floats could merge two users by rounding
            message = f"{file}: column {name!r} of users must contain strings or integers without missing values"
            raise DataError(message, "user")
        return [text_of(value) for value in values]

    def _files(self) -> list[Path]:
        return [
            locate(self.directory, self.options[key], key=key) for key in ("path", "test_path") if key in self.options
        ]

    def _described(self, path: Path) -> tuple[int, Columns]:
        """Return the number of records and the columns of a file. Raises ``DataError`` if it is too large."""
        with open_parquet(path) as file:
            found = self.columns(file.schema_arrow.names, path)
            return check_decompressed_size(file, path, MAX_BYTES), found

    def _rows(self, path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        with open_parquet(path) as file:
            columns = self.columns(file.schema_arrow.names, path)
            check_decompressed_size(file, path, MAX_BYTES)
            texts = [field.name for field in file.schema_arrow if is_text(field.type)]
        with open_parquet(path, texts) as file:
            return rows(lambda name: parquet_column(file, name, path), self, columns, path)


#: Limits of pyarrow for the footer: length of a string, and number of row groups or columns.
_MAX_STRING, _MAX_ITEMS = 1 << 22, 1 << 16


@contextmanager
def open_parquet(path: Path, texts: Sequence[str] = (), content: IO[bytes] | None = None) -> Iterator[Any]:
    """Open a Parquet file. Every error becomes a ``DataError``, because pyarrow raises many kinds.

    Args:
        path: The file.
        texts: Columns to read as dictionaries, so that memory stores repeated strings once, like the file.
        content: The file's bytes, if they were read before.
    """
    parquet = import_optional("pyarrow.parquet", "pyarrow", "parquet")
    try:
        with parquet.ParquetFile(
            content or path,
            read_dictionary=list(texts),
            thrift_string_size_limit=_MAX_STRING,
            thrift_container_size_limit=_MAX_ITEMS,
        ) as file:
            yield file
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def check_decompressed_size(file: Any, path: Path, most: int) -> int:
    """Return the number of rows of an open file.

    Raises:
        DataError: The footer declares more than ``most`` bytes of decompressed data.
    """
    metadata = file.metadata
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if size > most:
        raise DataError(f"{path}: {size} decompressed bytes; the maximum is {most}")
    return int(metadata.num_rows)


def parquet_column(file: Any, name: str, path: Path) -> np.ndarray[Any, Any]:
    """Read a column of an open file with :func:`~dpspec.data.table.column_values`.

    Raises:
        DataError: The length differs from the number of rows in the footer.
    """
    values = column_values(file.read(columns=[name])[name], name, path)
    if len(values) != file.metadata.num_rows:
        raise DataError(f"{path}: not a readable Parquet file: column {shortened(name)!r} has {len(values)} values")
    return values
