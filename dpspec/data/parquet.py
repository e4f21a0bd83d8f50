"""``parquet``: a table in Apache Parquet's format, read by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.arrow import column, is_text
from dpspec.data.columnar import rows
from dpspec.data.extras import need
from dpspec.data.files import MAX_BYTES, check_count, locate, sha256
from dpspec.data.options import path, schema
from dpspec.data.table import KEYS, Columns, Table

if TYPE_CHECKING:
    import numpy as np

DATASET = Dataset(
    kind="parquet",
    summary="A table in Parquet's format: columns of numbers or categories, and one of labels (needs pyarrow).",
    schema=schema(
        {
            "path": path("The table of training records."),
            "test_path": path("A table of test records with the same columns."),
            **KEYS,
        },
        required=["path", "label", "classes"],
    ),
    source="dpspec.data.parquet:Parquet",
)


class Parquet(Table):
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

    def _files(self) -> list[Path]:
        """The table of training records and, where the spec names it, that of test records."""
        return [
            locate(self.directory, self.options[key], key=key) for key in ("path", "test_path") if key in self.options
        ]

    def _described(self, path: Path) -> tuple[int, Columns]:
        """How many records a file holds, and its columns; refused where all of it would not fit in memory."""
        with _open(path) as file:
            found = self.columns(file.schema_arrow.names, path)
            footer = file.metadata
            # Of all columns: asked for a single one, pyarrow ends the process where a footer is damaged.
            size = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
            if size > MAX_BYTES:
                raise DataError(f"{path}: {size} bytes once decompressed; at most {MAX_BYTES} are read")
            return footer.num_rows, found

    def _rows(self, path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        with _open(path) as file:
            columns = self.columns(file.schema_arrow.names, path)
            texts = [field.name for field in file.schema_arrow if is_text(field.type)]
        with _open(path, texts) as file:
            return rows(lambda name: column(file.read(columns=[name])[name], name, path), self, columns, path)


@contextmanager
def _open(path: Path, texts: Sequence[str] = ()) -> Iterator[Any]:
    """Open a file; whatever goes wrong becomes a ``DataError``, as foreign bytes make pyarrow raise many kinds.

    texts: the columns to read as dictionaries: as a file may store a text once for many records, so does memory.
    """
    parquet = need("pyarrow.parquet", "pyarrow", "parquet")
    try:
        with parquet.ParquetFile(path, read_dictionary=list(texts)) as file:
            yield file
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error
