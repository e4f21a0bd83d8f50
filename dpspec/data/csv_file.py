"""``csv``: a table of numbers with a header, one column of it the label."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpspec.contract import DataError, Dataset, Facts, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.files import check_count, locate, sha256
from dpspec.data.options import CLASSES, path, schema
from dpspec.data.source import Source

DATASET = Dataset(
    kind="csv",
    summary="A table with a header: numeric columns and one column of labels.",
    schema=schema(
        {
            "path": path("The table: UTF-8, comma-separated, the first line names the columns."),
            "label": {"type": "string", "minLength": 1, "description": "The name of the column that holds the labels."},
            "classes": {
                "type": ["integer", "array"],
                "minimum": CLASSES["minimum"],
                "maximum": CLASSES["maximum"],
                "minItems": 2,
                "uniqueItems": True,
                "items": {"type": "string"},
                "description": "How many classes there are, if labels are written 0, 1, ...; otherwise the list of all "
                "labels as they are written, class 0 first. A public constant.",
            },
            "columns": {
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": {"type": "string", "minLength": 1},
                "description": "The columns to use as features, in this order; by default all but the label.",
            },
        },
        required=["path", "label", "classes"],
    ),
    source="dpspec.data.csv_file:Csv",
)


#: Names that a message lists at most.
_SHOWN = 20


@dataclass(frozen=True)
class _Table:
    """A file, the width of its lines, and where the features and the label stand in them."""

    file: Path
    width: int
    features: Mapping[str, int]
    label: int


class Csv(Source):
    """Records (columns,): every feature a number, every label one of the declared classes."""

    def describe(self) -> Facts:
        """Counts the lines; reads no number."""
        with self._lines() as (table, lines):
            records = sum(1 for _ in lines)
        shape = (len(table.features),)
        if not records:
            raise DataError(f"{table.file}: is empty: no record follows the line of column names")
        check_count(table.file, (records, *shape))
        key = {"kind": "csv", "file": sha256(table.file), "columns": list(table.features), "label": table.label}
        return Facts(
            records=records,
            features=shape[0],
            classes=len(self._classes()),
            shape=shape,
            digest=digest({**key, "classes": list(self._classes())}),
        )

    def read(self) -> LoadedData:
        """All numbers; raises ``DataError`` naming the line and the column of the first that is none."""
        import numpy as np

        x, y, classes = array("d"), array("q"), self._classes()
        with self._lines() as (table, lines):
            for number, line in lines:
                for name, index in table.features.items():
                    x.append(_number(line[index], f"{table.file}:{number}: column {name!r}"))
                label = line[table.label].strip()
                if label not in classes:
                    raise DataError(f"{table.file}:{number}: label {label!r} is not one of {self._said(classes)}")
                y.append(classes[label])
        features = np.frombuffer(x, dtype=np.float64).reshape(len(y), len(table.features))
        labels = np.frombuffer(y, dtype=np.int64)
        return LoadedData(train_x=features, train_y=labels, test_x=features[:0], test_y=labels[:0])

    def _classes(self) -> dict[str, int]:
        """The number of each label as the file writes it."""
        declared = self.options["classes"]
        names = declared if isinstance(declared, tuple) else [str(c) for c in range(int(declared))]
        return {name.strip(): number for number, name in enumerate(names)}

    def _said(self, classes: Mapping[str, int]) -> str:
        """The declared classes, and what to declare instead where a mere number of them may have been a mistake."""
        names = ", ".join([*classes][:_SHOWN]) + (", ..." if len(classes) > _SHOWN else "")
        hint = "" if isinstance(self.options["classes"], tuple) else "; list labels that are words: classes: [no, yes]"
        return f"the declared classes ({names}){hint}"

    @contextmanager
    def _lines(self) -> Iterator[tuple[_Table, Iterator[tuple[int, list[str]]]]]:
        """The table, and its lines with their numbers; whatever is wrong with the text becomes a ``DataError``."""
        path = locate(self.directory, self.options["path"])
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, strict=True)
                table = self._table(path, [name.strip() for name in next(reader, [])])
                yield (
                    table,
                    (
                        (reader.line_num, _of_width(line, table.width, f"{path}:{reader.line_num}"))
                        for line in reader
                        if line
                    ),
                )
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: not a readable CSV file: {error}") from error

    def _table(self, path: Path, header: list[str]) -> _Table:
        if not header:
            raise DataError(f"{path}: is empty: its first line must name the columns")
        label: str = self.options["label"]
        position = {name: index for index, name in enumerate(header)}
        for index, name in enumerate(header):
            if position[name] != index:
                raise DataError(f"{path}: column {name!r} stands there twice")
        columns = self.options.get("columns") or [name for name in header if name != label]
        for name in (label, *columns):
            if name not in position:
                raise DataError(f"{path}: has no column {name!r} (its columns: {', '.join(header[:_SHOWN])})")
        if label in columns:
            raise DataError(f"{path}: column {label!r} is the label and cannot be a feature")
        return _Table(path, len(header), {name: position[name] for name in columns}, position[label])


def _of_width(line: list[str], width: int, where: str) -> list[str]:
    if len(line) != width:
        raise DataError(f"{where}: {len(line)} values under {width} column names")
    return line


def _number(text: str, where: str) -> float:
    """A finite number in Python's notation, without its underscores."""
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {text!r} is not a finite number")
    return value
