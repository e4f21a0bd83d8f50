"""Data kinds ``csv`` and ``parquet``: tables with named columns, including the label."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError, Dataset, Json, fragments
from dpspec.data.csv_text import DATE_ADVICE, MISSING_ADVICE, SEPARATORS, csv_lines, number
from dpspec.data.file_formats import head_of, other_format
from dpspec.data.source import MAX_BYTES, locate, path, schema, sha256
from dpspec.data.table import KEYS, USER_KEYS, Columns, Table, unknown_category
from dpspec.text import shortened

if TYPE_CHECKING:
    import numpy as np

    from dpspec.data.source import Rows

    Array: TypeAlias = np.ndarray[Any, Any]


#: Python's codecs of encodings. A byte-order mark is skipped.
ENCODINGS = {"utf-8": "utf-8-sig", "utf-16": "utf-16", "cp1252": "cp1252", "latin-1": "latin-1"}

CSV = Dataset(
    kind="csv",
    summary="A CSV table with a header, numeric or categorical columns, and a label column.",
    schema=schema(
        *("path", "label", "classes"),
        path=path("The table, with column names in the first line."),
        separator=fragments.choice("The separator of columns. Default: a comma.", *SEPARATORS),
        decimal=fragments.choice("The decimal mark of numbers. Default: a point.", ".", ","),
        encoding=fragments.choice("The text encoding of the file. Default: utf-8.", *ENCODINGS),
        **KEYS,
        **USER_KEYS,
        missing=fragments.array(
            "The spellings of missing values in numeric columns; an empty string for empty cells. "
            "Only mechanisms that impute accept such records. Public constants.",
            {"type": "string"},
            least=1,
            unique=True,
        ),
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

        x, y, classes, decimal = array("d"), array("q"), self.classes(), self.options.get("decimal", ".")
        missing = frozenset(text.strip() for text in self.options.get("missing") or ())
        with self._lines() as (file, columns, positions, lines):
            for line_number, line in lines:
                where = f"{file}:{line_number}"
                for name in columns.features:
                    text, categories = line[positions[name]], columns.categories.get(name)
                    if categories is None:
                        absent = bool(missing) and text.strip() in missing
                        x.append(math.nan if absent else number(text, f"{where}: column {name!r}", decimal))
                    elif text.strip() not in categories:
                        raise unknown_category(name, categories, text.strip(), where)
                    else:
                        x.extend(float(position == categories[text.strip()]) for position in range(len(categories)))
                label = line[positions[columns.label]].strip()
                if label not in classes:
                    raise self.unknown_class(label, where)
                y.append(classes[label])
        return np.frombuffer(x, dtype=np.float64).reshape(len(y), columns.width), np.frombuffer(y, dtype=np.int64)

    def key(self, halves: list[None]) -> dict[str, Json]:
        with self._lines() as (file, columns, _, _):
            key = {"kind": "csv", "file": sha256(file), "columns": list(columns.features), **self.table_key()}
        if self.options.get("missing"):
            key["missing"] = sorted(self.options["missing"])
        for name, default in (("separator", ","), ("decimal", "."), ("encoding", "utf-8")):
            if self.options.get(name, default) != default:
                key[name] = self.options[name]
        return key

    def header(self) -> tuple[list[str], list[str]]:
        with self._lines() as (_, _, positions, _):
            return [*positions], []

    def owners(self) -> list[str]:
        with self._lines() as (_, _, positions, lines):
            return [line[positions[self.options["user"]]].strip() for _, line in lines]

    @contextmanager
    def _lines(self) -> Iterator[tuple[Path, Columns, dict[str, int], Iterator[tuple[int, list[str]]]]]:
        """Yield the file, the selected columns, the index of every column, and the numbered lines."""
        path = locate(self.directory, self.options["path"])
        try:
            encoding, separator = self.options.get("encoding", "utf-8"), self.options.get("separator", ",")
            with (
                path.open(encoding=ENCODINGS[encoding], newline="") as file,
                csv_lines(path, file, separator, encoding) as (header, lines),
            ):
                yield path, self.columns(header, path), {name: index for index, name in enumerate(header)}, lines
        except OSError as error:
            raise DataError(f"{path}: not a readable CSV file: {error}") from error


PARQUET = Dataset(
    kind="parquet",
    summary="A Parquet table with numeric or categorical columns and a label column (needs pyarrow).",
    schema=schema(
        *("path", "label", "classes"),
        path=path("The table of training records."),
        test_path=path("A table of test records with the same columns."),
        **KEYS,
        **USER_KEYS,
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
        columns = self._columns(half)
        with open_parquet(half) as table:
            for name in (columns.label, *columns.features):  # as ``rows`` does, so that validate reports it too
                kind = _value_type(table.schema_arrow.field(name).type)
                _require_readable(kind, name, half)
                if _is_text(kind) and name != columns.label and name not in columns.categories:
                    raise _not_numeric(name, half)
            return int(table.metadata.num_rows), columns.width

    def rows(self, half: Path) -> Rows:
        import numpy as np

        columns, start = self._columns(half), 0
        with open_parquet(half) as table:  # with one column in memory at a time; records in messages count from 0
            y = _places(parquet_column(table, columns.label, half), self.classes(), self.unknown_class, half)
            x = np.zeros((len(y), columns.width), dtype=np.float64)
            for name in columns.features:
                values, categories = parquet_column(table, name, half), columns.categories.get(name)
                if categories is not None:
                    codes = _places(values, categories, partial(unknown_category, name, categories), half)
                    for code in range(len(categories)):
                        x[:, start + code] = codes == code
                elif values.dtype.kind not in "fiub":
                    raise _not_numeric(name, half)
                else:
                    x[:, start] = values
                    bad = np.flatnonzero(~np.isfinite(x[:, start]))
                    if bad.size:
                        value = x[bad[0], start]
                        message = f"column {name!r}: an infinite number instead of a finite one"
                        if np.isnan(value):
                            message = f"column {name!r}: the value is missing; {MISSING_ADVICE}"
                        raise DataError(f"{half}: record {bad[0]}: {message}", private=str(value))
                start += 1 if categories is None else len(categories)
        return x, y

    def key(self, halves: list[Path]) -> dict[str, Json]:
        files, columns = [sha256(file) for file in halves], list(self._columns(halves[0]).features)
        return {"kind": "parquet", "files": files, **self.table_key(), "columns": columns}

    def _columns(self, file: Path) -> Columns:
        with open_parquet(file) as table:
            return self.columns(table.schema_arrow.names, file)

    def header(self) -> tuple[list[str], list[str]]:
        with open_parquet(locate(self.directory, self.options["path"])) as table:
            schema = table.schema_arrow
            return schema.names, _pandas_index(schema.metadata or {})

    def owners(self) -> list[str]:
        file, name = self.halves()[0], str(self.options["user"])
        with open_parquet(file) as table:
            values = parquet_column(table, name, file)
        if values.dtype.kind not in "iuO":  # floats could merge two users by rounding
            message = f"{file}: column {name!r} of users must contain strings or integers without missing values"
            raise DataError(message, "user")
        return [_text_of(value) for value in values]


def _places(
    values: Array, index_by_text: Mapping[str, int], unknown: Callable[[str, str], DataError], where: Path
) -> Array:
    """Return the index of each value (n,) by its text; ``unknown`` returns the error for a text and its record."""
    import numpy as np

    if values.dtype.kind == "b":  # true in Parquet, and True or TRUE in a CSV that the categories are from
        index_by_text = {text.strip().lower(): index for text, index in index_by_text.items()}
    indices, index_by_value = np.empty(len(values), dtype=np.int32), dict[Any, int]()
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        if block.dtype.kind in "fiub":
            different, inverse = np.unique(block, return_inverse=True)
            of_different = np.array([index_by_text.get(_text_of(v), -1) for v in different], dtype=np.int32)
            block_indices = of_different[inverse.reshape(-1)]
        else:
            new_values = set(block) - index_by_value.keys()
            index_by_value |= {value: index_by_text.get(_text_of(value), -1) for value in new_values}
            block_indices = np.fromiter(map(index_by_value.__getitem__, block), dtype=np.int32, count=len(block))
        bad = np.flatnonzero(block_indices < 0)
        if bad.size:
            raise unknown(_text_of(block[bad[0]]), f"{where}: record {start + bad[0]}")
        indices[start : start + _BLOCK] = block_indices
    return indices


#: Number of values whose indices are found together, which bounds the memory of temporary arrays.
_BLOCK = 2**20


def _text_of(value: Any) -> str:
    """Format a value as in specs: integers without a point, true and false, an empty string if missing."""
    import numpy as np

    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file. Every error becomes a ``DataError``.

    Columns of strings are read as dictionaries, so that memory stores repeated strings once, like the file.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(
            f"data of kind 'parquet' needs pyarrow, which cannot be imported ({error}); "
            "install it with: pip install 'dpspec[parquet]'"
        ) from None

    def opened(**options: Any) -> Any:  # limits of the footer: length of a string, number of row groups or columns
        limits = {"thrift_string_size_limit": 1 << 22, "thrift_container_size_limit": 1 << 16}
        return parquet.ParquetFile(path, **limits, **options)

    try:
        with opened() as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
            if size > MAX_BYTES:
                raise DataError(f"{path}: {size} decompressed bytes; the maximum is {MAX_BYTES}")
            texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
        with opened(read_dictionary=texts) as file:
            yield file
    except DataError:
        raise
    except Exception as error:
        message = other_format(head_of(path), b"PAR1") or f"not a readable Parquet file: {error}"
        raise DataError(f"{path}: {message}", "path") from error


def parquet_column(file: Any, name: str, path: Path) -> Array:
    """Read a column as numbers, booleans or strings; missing numbers become NaN, missing strings None."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.types as kinds

    values = file.read(columns=[name])[name]
    if len(values) != file.metadata.num_rows:
        raise DataError(f"{path}: not a readable Parquet file: column {shortened(name)!r} has {len(values)} values")
    kind = values.type
    if kinds.is_dictionary(kind):
        if _is_text(kind.value_type):  # each distinct string is stored once to bound memory
            chunks = values.unify_dictionaries().chunks
            different = np.array([*(chunks[0].dictionary.to_pylist() if chunks else ()), None], dtype=object)
            chunk_codes = [chunk.indices.cast("int32").fill_null(len(different) - 1).to_numpy() for chunk in chunks]
            texts: Array = different[np.concatenate([np.empty(0, dtype=np.int32), *chunk_codes])]
            return texts
        kind = kind.value_type
        values = values.cast(kind)
    if kinds.is_decimal(kind):
        kind = pa.float64()
        values = values.cast(kind)
    if _is_text(kind):
        return np.array(values.to_pylist(), dtype=object)
    if kinds.is_boolean(kind) and values.null_count:
        return np.array([None if v is None else str(v).lower() for v in values.to_pylist()], dtype=object)
    _require_readable(kind, name, path)
    array: Array = values.to_numpy()
    return array


def _value_type(kind: Any) -> Any:
    """The type of a column's values, which may be stored as a dictionary."""
    import pyarrow.types as kinds

    return kind.value_type if kinds.is_dictionary(kind) else kind


def _require_readable(kind: Any, name: str, path: Path) -> None:
    """Raise ``DataError`` for a type of values that no feature or label has."""
    import pyarrow.types as kinds

    readable = (kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal, _is_text)
    if not any(accepts(kind) for accepts in readable):
        advice = f"; {DATE_ADVICE}" if kinds.is_temporal(kind) else "; exclude it (columns)"
        message = f"column {shortened(name)!r} has type {kind}; it must be numeric, boolean or string{advice}"
        raise DataError(f"{path}: {message}")


def _not_numeric(name: str, path: Path) -> DataError:
    message = f"{path}: column {name!r} is not numeric; list its values under categories, or exclude it"
    return DataError(message, "categories")


def _pandas_index(metadata: Mapping[bytes, bytes]) -> list[str]:
    """Return the columns that pandas declares to be the index; none if the metadata are damaged."""
    try:
        index = json.loads(metadata.get(b"pandas", b"{}")).get("index_columns", [])
        return [name for name in index if isinstance(name, str)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))
