"""What tables have in common, whatever they come from: features, one-hot categories, and named classes.

:class:`Table` knows the keys of a data block. Tables that come column by column, from pyarrow, become
rows by :func:`rows`: a column is an array (n,) of dtype float, int, bool, or object; objects are texts, None where a
value is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError, Json
from dpspec.data.options import CLASSES
from dpspec.data.source import Source
from dpspec.text import closest, did_you_mean, shortened

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]


#: The keys of a data block that says how the columns of a table become records.
KEYS: dict[str, Json] = {
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
    "categories": {
        "type": "object",
        "additionalProperties": {
            "type": "array",
            "minItems": 2,
            "uniqueItems": True,
            "items": {"type": "string"},
        },
        "description": "For each column that holds categories rather than numbers, the list of all its values as they "
        "are written, an empty text for a missing one. Such a column becomes one feature per value, 1 where a record "
        "has it and 0 elsewhere. Public constants.",
    },
}

#: Names that a message lists at most.
SHOWN = 20


def listed(names: Sequence[str]) -> str:
    """Names for a message, not too many."""
    return ", ".join(map(shortened, names[:SHOWN])) + (", ..." if len(names) > SHOWN else "")


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read.

    features: the columns that become features, in order.
    categories: for those that hold categories, the place of each value among the column's features.
    """

    label: str
    features: tuple[str, ...]
    categories: Mapping[str, Mapping[str, int]]

    @property
    def width(self) -> int:
        """How many features a record has."""
        return sum(len(self.categories[name]) if name in self.categories else 1 for name in self.features)


class Table(Source):
    """A source of rows with named columns: records (features,)."""

    def columns(self, header: Sequence[str], where: object) -> Columns:
        """What the options choose among the columns of table ``where``; raises ``DataError`` where they do not fit."""
        label, user = str(self.options["label"]), self.options.get("user")
        position = {name: index for index, name in enumerate(header)}
        for index, name in enumerate(header):
            if position[name] != index:
                raise DataError(f"{where}: column {shortened(name)!r} stands there twice among the names of columns")
        features = tuple(self.options.get("columns") or (name for name in header if name not in (label, user)))
        categories = self.options.get("categories") or {}
        for name in (label, *([] if user is None else [user]), *features, *categories):
            if name not in position:
                own = {label: "label", user: "user"}
                key = own.get(name, "columns" if name in features else "categories")
                near = did_you_mean(closest(name, header))
                raise DataError(f"{where}: has no column {name!r}{near} (its columns: {listed(header)})", key)
        if user is not None and user in (label, *features):
            raise DataError(f"{where}: column {user!r} says whose a record is, and can be nothing else", "user")
        if label in features:
            raise DataError(f"{where}: column {label!r} is the label and cannot be a feature", "columns")
        for name in categories:
            if name not in features:
                raise DataError(f"{where}: categories names column {name!r}, which is not a feature", "categories")
        return Columns(label, features, {name: places(values) for name, values in categories.items()})

    def classes(self) -> dict[str, int]:
        """The number of each label as the table writes it."""
        declared = self.options["classes"]
        return places(declared if isinstance(declared, tuple) else [str(c) for c in range(int(declared))])

    def no_class(self, label: str, where: object) -> DataError:
        """The error of a label that is not among the classes; with what to declare where labels may be words."""
        hint = "" if isinstance(self.options["classes"], tuple) else "; list labels that are words: classes: [no, yes]"
        known = listed([*self.classes()])
        said = f"{where}: label {shortened(label)!r} is not one of the declared classes ({known}){hint}"
        return DataError(said, "classes")

    def table_key(self) -> dict[str, Json]:
        """What of the options decides the rows."""
        categories = self.options.get("categories")
        return {
            "label": self.options["label"],
            "classes": [*self.classes()],
            **({"categories": {k: [*v] for k, v in categories.items()}} if categories else {}),
        }


def places(names: Sequence[str]) -> dict[str, int]:
    """The place of each name, stripped of the blanks around it."""
    return {name.strip(): place for place, name in enumerate(names)}


def no_category(value: str, name: str, known: Mapping[str, int], where: object) -> DataError:
    """The error of a value that is not among the categories of column ``name``."""
    hint = "" if value else '; write "" among them for missing values'
    said = f"{where}: {shortened(value)!r} is not one of the categories of column {name!r} ({listed([*known])}){hint}"
    return DataError(said, "categories")


def rows(read: Callable[[str], Array], table: Table, columns: Columns, where: object) -> tuple[Array, Array]:
    """Features (n, columns.width) float64 and labels (n,) int64; one column is in memory at a time beside them.

    ``read`` gives a column by its name. Raises ``DataError`` naming record and column where a value is missing, no
    number, no declared category or no declared class; records count from 0.
    """
    import numpy as np

    known = table.classes()
    values = read(columns.label)
    y = _places(values, known, lambda text, record: table.no_class(text, _record(where, record)))
    x = np.zeros((len(y), columns.width), dtype=np.float64)
    start = 0
    for name in columns.features:
        values = read(name)
        if len(values) != len(y):
            raise DataError(f"{where}: column {name!r} has {len(values)} values, the labels are {len(y)}")
        categories = columns.categories.get(name)
        if categories is None:
            x[:, start] = _numbers(values, name, where)
            start += 1
            continue
        places = _places(values, categories, _unknown(name, categories, where))
        x[np.arange(len(y)), start + places] = 1.0
        start += len(categories)
    return x, y


def _unknown(name: str, known: Mapping[str, int], where: object) -> Callable[[str, int], DataError]:
    return lambda text, record: no_category(text, name, known, _record(where, record))


def _record(where: object, record: int) -> str:
    return f"{where}: record {record}"


def _numbers(values: Array, name: str, where: object) -> Array:
    import numpy as np

    if values.dtype.kind not in "fiub":
        raise DataError(f"{where}: column {name!r} holds no numbers; list its values under categories, or leave it out")
    numbers: Array = values.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        raise DataError(f"{_record(where, int(bad[0]))}: column {name!r}: {numbers[bad[0]]} is not a finite number")
    return numbers


def _places(values: Array, known: Mapping[str, int], unknown: Callable[[str, int], DataError]) -> Array:
    """The place of each value (n,) by its text; ``unknown`` makes the error of a text and its record."""
    import numpy as np

    if values.dtype.kind in "fiub":
        different, inverse = np.unique(values, return_inverse=True)
        found = np.array([known.get(text_of(v), -1) for v in different], dtype=np.int64)[inverse.reshape(-1)]
    else:
        place = {value: known.get(text_of(value), -1) for value in set(values)}
        found = np.array([place[value] for value in values], dtype=np.int64)
    bad = np.flatnonzero(found < 0)
    if bad.size:
        raise unknown(text_of(values[bad[0]]), int(bad[0]))
    return found


def text_of(value: Any) -> str:
    """A value as specs write it: whole numbers without a point, true and false, nothing for a missing one."""
    import numpy as np

    if value is None or value != value:  # NaN alone differs from itself
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def arrow_column(values: Any, name: str, where: object) -> np.ndarray[Any, Any]:
    """A chunked array as numbers, truth values or texts (see :mod:`dpspec.data.tables.table`).

    Missing numbers become NaN and missing texts None. Raises ``DataError`` for dates, lists, records and the like.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.types as kinds

    kind = values.type
    if kinds.is_dictionary(kind):
        if is_text(kind.value_type):
            return _texts(values)
        kind = kind.value_type
        values = values.cast(kind)
    if kinds.is_decimal(kind):
        values = values.cast(pa.float64())
    if is_text(kind):
        return np.array(values.to_pylist(), dtype=object)
    if kinds.is_boolean(kind) and values.null_count:
        return np.array([None if v is None else str(v).lower() for v in values.to_pylist()], dtype=object)
    if kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        array: np.ndarray[Any, Any] = values.to_numpy()
        return array
    raise DataError(f"{where}: column {shortened(name)!r} is of type {kind}, neither number, truth value nor text")


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is that of texts."""
    import pyarrow.types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _texts(values: Any) -> np.ndarray[Any, Any]:
    """Texts that are kept once each: a long one in every record takes no more memory than in one."""
    import numpy as np

    chunks = values.unify_dictionaries().chunks
    different = np.array([*(chunks[0].dictionary.to_pylist() if chunks else ()), None], dtype=object)
    places = [chunk.indices.cast("int64").fill_null(len(different) - 1).to_numpy() for chunk in chunks]
    found: np.ndarray[Any, Any] = different[np.concatenate([np.empty(0, dtype=np.int64), *places])]
    return found
