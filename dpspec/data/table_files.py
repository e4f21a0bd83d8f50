"""Data kinds ``csv`` and ``parquet``: tables with named columns, including the label."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError, Dataset, Json, fragments
from dpspec.data.options import path, schema
from dpspec.data.source import MAX_BYTES, import_optional, locate, sha256
from dpspec.data.table import (
    KEYS,
    USER_KEYS,
    Columns,
    Table,
    column_values,
    csv_lines,
    is_text,
    text_of,
    unknown_category,
)
from dpspec.text import shortened

if TYPE_CHECKING:
    import numpy as np

    from dpspec.data.source import Rows

    Array: TypeAlias = np.ndarray[Any, Any]


CSV = Dataset(
    kind="csv",
    summary="A CSV table with a header, numeric or categorical columns, and a label column.",
    schema=schema(
        {
            "path": path("The table: UTF-8, comma-separated, with column names in the first line."),
            **KEYS,
            **USER_KEYS,
            "missing": fragments.array(
                "The spellings of missing values in numeric columns; an empty string for empty cells. "
                "Only mechanisms that impute accept such records. Public constants.",
                {"type": "string"},
                least=1,
                unique=True,
            ),
        },
        required=["path", "label", "classes"],
    ),
    source="dpspec.data.table_files:Csv",
)


class Csv(Table):
    def halves(self) -> list[None]:
        return [None]

    def shape(self, half: None) -> tuple[int, ...]:
        with self._lines() as (_, columns, _, lines):
            return (sum(1 for _ in lines), columns.width)  # without parsing numbers

    def rows(self, half: None) -> Rows:
        import numpy as np

        x, y, classes = array("d"), array("q"), self.classes()
        missing = frozenset(text.strip() for text in self.options.get("missing") or ())
        with self._lines() as (file, columns, places, lines):
            for number, line in lines:
                where = f"{file}:{number}"
                for name in columns.features:
                    text, known = line[places[name]], columns.categories.get(name)
                    if known is None:
                        absent = bool(missing) and text.strip() in missing
                        x.append(math.nan if absent else _number(text, f"{where}: column {name!r}"))
                    elif text.strip() not in known:
                        raise unknown_category(name, known, text.strip(), where)
                    else:
                        x.extend(float(place == known[text.strip()]) for place in range(len(known)))
                label = line[places[columns.label]].strip()
                if label not in classes:
                    raise self.unknown_class(label, where)
                y.append(classes[label])
        return np.frombuffer(x, dtype=np.float64).reshape(len(y), columns.width), np.frombuffer(y, dtype=np.int64)

    def key(self, halves: list[None]) -> dict[str, Json]:
        with self._lines() as (file, columns, _, _):
            key = {"kind": "csv", "file": sha256(file), "columns": list(columns.features), **self.table_key()}
        if self.options.get("missing"):
            key["missing"] = sorted(self.options["missing"])
        return key

    def owners(self) -> list[str]:
        with self._lines() as (_, _, places, lines):
            return [line[places[self.options["user"]]].strip() for _, line in lines]

    @contextmanager
    def _lines(self) -> Iterator[tuple[Path, Columns, dict[str, int], Iterator[tuple[int, list[str]]]]]:
        """Yield the file, the selected columns, the index of every column, and the numbered lines."""
        path = locate(self.directory, self.options["path"])
        try:
            with path.open(encoding="utf-8-sig", newline="") as file, csv_lines(path, file) as (header, lines):
                yield path, self.columns(header, path), {name: index for index, name in enumerate(header)}, lines
        except OSError as error:
            raise DataError(f"{path}: not a readable CSV file: {error}") from error


def _number(text: str, where: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    hint = (
        "write numbers with a decimal point, convert dates to numbers, declare the values of a categorical column "
        "(categories), or exclude the column (columns)"
    )
    if not text.strip():
        hint = (
            "replace missing values by a public constant, or exclude the column (columns); for a mechanism that "
            "imputes, declare the spelling of missing values (missing)"
        )
    raise DataError(f"{where}: {shortened(text)!r} is not a finite number; {hint}")


PARQUET = Dataset(
    kind="parquet",
    summary="A Parquet table with numeric or categorical columns and a label column (needs pyarrow).",
    schema=schema(
        {
            "path": path("The table of training records."),
            "test_path": path("A table of test records with the same columns."),
            **KEYS,
            **USER_KEYS,
        },
        required=["path", "label", "classes"],
    ),
    source="dpspec.data.table_files:Parquet",
)


class Parquet(Table):
    def halves(self) -> list[Path]:
        keys = [key for key in ("path", "test_path") if key in self.options]
        files = [locate(self.directory, self.options[key], key=key) for key in keys]
        if self._columns(files[-1]) != self._columns(files[0]):
            message = f"the features differ from the features of {files[0]}; list them under columns"
            raise DataError(f"{files[-1]}: {message}")
        return files

    def shape(self, half: Path) -> tuple[int, ...]:
        with open_parquet(half) as table:
            return int(table.metadata.num_rows), self._columns(half).width

    def rows(self, half: Path) -> Rows:
        with open_parquet(half) as table:
            return self.converted(lambda name: parquet_column(table, name, half), self._columns(half), half)

    def key(self, halves: list[Path]) -> dict[str, Json]:
        files, columns = [sha256(file) for file in halves], list(self._columns(halves[0]).features)
        return {"kind": "parquet", "files": files, **self.table_key(), "columns": columns}

    def _columns(self, file: Path) -> Columns:
        with open_parquet(file) as table:
            return self.columns(table.schema_arrow.names, file)

    def owners(self) -> list[str]:
        file, name = self.halves()[0], str(self.options["user"])
        with open_parquet(file) as table:
            values = parquet_column(table, name, file)
        if values.dtype.kind not in "iuO":  # floats could merge two users by rounding
            message = f"{file}: column {name!r} of users must contain strings or integers without missing values"
            raise DataError(message, "user")
        return [text_of(value) for value in values]


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file. Every error becomes a ``DataError``.

    Columns of strings are read as dictionaries, so that memory stores repeated strings once, like the file.
    """
    parquet = import_optional("pyarrow.parquet", "pyarrow", "parquet")

    def opened(**options: Any) -> Any:  # limits of the footer: length of a string, number of row groups or columns
        limits = {"thrift_string_size_limit": 1 << 22, "thrift_container_size_limit": 1 << 16}
        return parquet.ParquetFile(path, **limits, **options)

    try:
        with opened() as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
            if size > MAX_BYTES:
                raise DataError(f"{path}: {size} decompressed bytes; the maximum is {MAX_BYTES}")
            texts = [field.name for field in file.schema_arrow if is_text(field.type)]
        with opened(read_dictionary=texts) as file:
            yield file
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def parquet_column(file: Any, name: str, path: Path) -> Array:
    values = column_values(file.read(columns=[name])[name], name, path)
    if len(values) != file.metadata.num_rows:
        raise DataError(f"{path}: not a readable Parquet file: column {shortened(name)!r} has {len(values)} values")
    return values
