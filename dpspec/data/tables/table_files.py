"""``csv`` and ``parquet``: tables with named columns, one of them the label."""

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
from dpspec.data.files import MAX_BYTES, check_count, locate, need, sha256
from dpspec.data.options import path, schema
from dpspec.data.tables import users
from dpspec.data.tables.table import KEYS, Columns, arrow_column, is_text, no_category, rows, text_of
from dpspec.data.tables.users import TableOfUsers
from dpspec.text import shortened

if TYPE_CHECKING:
    import numpy as np


CSV = Dataset(
    kind="csv",
    summary="A table with a header: columns of numbers or categories, and one of labels.",
    schema=schema(
        {
            "path": path("The table: UTF-8, comma-separated, the first line names the columns."),
            **KEYS,
            **users.KEYS,
            "missing": {
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": {"type": "string"},
                "description": "How missing values are written in columns of numbers, an empty text for nothing at "
                "all. Such records are taken by mechanisms that impute only. Public constants.",
            },
        },
        required=["path", "label", "classes"],
    ),
    source="dpspec.data.tables.table_files:Csv",
)


@dataclass(frozen=True)
class _Layout:
    """A file, the width of its lines, and where the features, the label and other columns stand in them."""

    file: Path
    width: int
    columns: Columns
    features: Mapping[str, int]
    label: int
    places: Mapping[str, int]


class Csv(TableOfUsers):
    """Records (features,): every column a number or one of its categories, every label one of the classes."""

    def describe(self) -> Facts:
        """Counts the lines; reads no number."""
        with self._lines() as (table, lines):
            records = sum(1 for _ in lines)
        shape = (table.columns.width,)
        if not records:
            raise DataError(f"{table.file}: is empty: no record follows the line of column names")
        check_count(table.file, (records, *shape))
        key = {"kind": "csv", "file": sha256(table.file), "columns": list(table.features), **self.table_key()}
        if self.options.get("missing"):
            key["missing"] = sorted(self.options["missing"])
        return Facts(records=records, features=shape[0], classes=len(self.classes()), shape=shape, digest=digest(key))

    def read(self) -> LoadedData:
        """All values; raises ``DataError`` naming the line and the column of the first that cannot be used."""
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
                    raise self.no_class(label, where)
                y.append(classes[label])
        features = np.frombuffer(x, dtype=np.float64).reshape(len(y), table.columns.width)
        labels = np.frombuffer(y, dtype=np.int64)
        return LoadedData(train_x=features, train_y=labels, test_x=features[:0], test_y=labels[:0])

    def owners(self) -> list[str]:
        """The texts of the column of users."""
        name = str(self.options["user"])
        with self._lines() as (table, lines):
            return [line[table.places[name]].strip() for _, line in lines]

    @contextmanager
    def _lines(self) -> Iterator[tuple[_Layout, Iterator[tuple[int, list[str]]]]]:
        """The table, and its lines with their numbers; whatever is wrong with the text becomes a ``DataError``."""
        path = locate(self.directory, self.options["path"])
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, strict=True)
                table = self._layout(path, [name.strip() for name in next(reader, [])])
                yield (
                    table,
                    (
                        (reader.line_num, _of_width(line, table.width, f"{path}:{reader.line_num}"))
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


def _of_width(line: list[str], width: int, where: str) -> list[str]:
    if len(line) != width:
        raise DataError(f"{where}: {len(line)} values under {width} column names")
    return line


def _one_hot(text: str, name: str, known: Mapping[str, int], where: str) -> list[float]:
    """1.0 at the place of a category, 0.0 elsewhere."""
    if text not in known:
        raise no_category(text, name, known, where)
    return [float(place == known[text]) for place in range(len(known))]


#: What is no number to Python and often stands where one should: a date, and numbers of other conventions.
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_GROUPED = re.compile(r"[+-]?\d+(?:[.,' ]\d{3})*(?:[.,]\d+)?")


def _hint(text: str) -> str:
    """What to do about a value that is no number."""
    if not text.strip():
        return (
            "; write a public constant there beforehand, or leave the column out (columns); for a mechanism that "
            "imputes, declare how missing values are written (missing)"
        )
    if _DATE.search(text):
        return "; of a date make a number beforehand, as the days since a public one, or leave the column out (columns)"
    if _GROUPED.fullmatch(text.strip()):
        return "; write numbers with a point and without separators of thousands"
    return "" if _like_a_number(text) else "; declare the values of a column of words (categories), or leave it out"


def _like_a_number(text: str) -> bool:
    return text.strip().lower().lstrip("+-")[:3] in ("nan", "inf") or any(c.isdigit() for c in text)


def _number(text: str, where: str) -> float:
    """A finite number in Python's notation, without its underscores."""
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {shortened(text)!r} is not a finite number{_hint(text)}")
    return value


PARQUET = Dataset(
    kind="parquet",
    summary="A table in Parquet's format: columns of numbers or categories, and one of labels (needs pyarrow).",
    schema=schema(
        {
            "path": path("The table of training records."),
            "test_path": path("A table of test records with the same columns."),
            **KEYS,
            **users.KEYS,
        },
        required=["path", "label", "classes"],
    ),
    source="dpspec.data.tables.table_files:Parquet",
)


class Parquet(TableOfUsers):
    """Records (features,): every column a number or one of its categories, every label one of the classes."""

    def describe(self) -> Facts:
        """Counts and names from the files' footers, digest from the files."""
        files = self._files()
        counts, layouts = zip(*map(self._described, files), strict=True)
        if layouts[-1] != layouts[0]:
            raise DataError(f"{files[-1]}: has not the features of {files[0]}; name them under columns")
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
        """The chosen columns, one after the other."""
        (x, y), *test = [self._rows(file) for file in self._files()]
        test_x, test_y = test[0] if test else (x[:0], y[:0])
        return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)

    def what(self, test: bool = False) -> str:
        """The file of training or of test records."""
        return str(self.directory / self.options["test_path" if test and "test_path" in self.options else "path"])

    def owners(self) -> list[str]:
        """The column of users of the training records: texts, or whole numbers as specs write them."""
        file, name = self._files()[0], str(self.options["user"])
        with open_parquet(file) as opened:
            require_room(opened, file, MAX_BYTES)
            values = parquet_column(opened, name, file)
        if values.dtype.kind not in "iuO":  # as floats, two users could round to one
            raise DataError(f"{file}: users must be texts or whole numbers, without gaps: column {name!r}", "user")
        return [text_of(value) for value in values]

    def _files(self) -> list[Path]:
        """The table of training records and, where the spec names it, that of test records."""
        return [
            locate(self.directory, self.options[key], key=key) for key in ("path", "test_path") if key in self.options
        ]

    def _described(self, path: Path) -> tuple[int, Columns]:
        """How many records a file holds, and its columns; refused where all of it would not fit in memory."""
        with open_parquet(path) as file:
            found = self.columns(file.schema_arrow.names, path)
            return require_room(file, path, MAX_BYTES), found

    def _rows(self, path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        with open_parquet(path) as file:
            columns = self.columns(file.schema_arrow.names, path)
            require_room(file, path, MAX_BYTES)
            texts = [field.name for field in file.schema_arrow if is_text(field.type)]
        with open_parquet(path, texts) as file:
            return rows(lambda name: parquet_column(file, name, path), self, columns, path)


#: Limits of pyarrow for the footer: the length of a text, and the number of row groups or columns.
_LONGEST_TEXT, _MOST_ITEMS = 1 << 22, 1 << 16


@contextmanager
def open_parquet(path: Path, texts: Sequence[str] = (), content: IO[bytes] | None = None) -> Iterator[Any]:
    """Open a file; whatever goes wrong becomes a ``DataError``, as foreign bytes make pyarrow raise many kinds.

    texts: the columns to read as dictionaries: as a file may store a text once for many records, so does memory.
    content: what the file held when it was read.
    """
    parquet = need("pyarrow.parquet", "pyarrow", "parquet")
    try:
        with parquet.ParquetFile(
            content or path,
            read_dictionary=list(texts),
            thrift_string_size_limit=_LONGEST_TEXT,
            thrift_container_size_limit=_MOST_ITEMS,
        ) as file:
            yield file
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def require_room(file: Any, path: Path, most: int) -> int:
    """Return the number of rows of an open file.

    Raises ``DataError`` if the footer states more than ``most`` bytes of decompressed data.
    """
    metadata = file.metadata
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if size > most:
        raise DataError(f"{path}: {size} bytes once decompressed; at most {most} are read")
    return int(metadata.num_rows)


def parquet_column(file: Any, name: str, path: Path) -> np.ndarray[Any, Any]:
    """Read a column of an open file as :func:`~dpspec.data.tables.table.arrow_column` does.

    Raises ``DataError`` if its length is not the number of rows that the footer states.
    """
    values = arrow_column(file.read(columns=[name])[name], name, path)
    if len(values) != file.metadata.num_rows:
        raise DataError(f"{path}: not a readable Parquet file: column {shortened(name)!r} has {len(values)} values")
    return values
