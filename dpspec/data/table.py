"""Base class of tables: features, one-hot categories and named classes.

:func:`rows` converts columns from pyarrow to records. A column is an array (n,) of dtype float, int, bool or object;
objects are strings, or None for missing values.
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


#: Schema of the keys that map the columns of a table to records.
KEYS: dict[str, Json] = {
    "label": {"type": "string", "minLength": 1, "description": "The column of labels."},
    "classes": {
        "type": ["integer", "array"],
        "minimum": CLASSES["minimum"],
        "maximum": CLASSES["maximum"],
        "minItems": 2,
        "uniqueItems": True,
        "items": {"type": "string"},
        "description": "The number of classes, if labels are written 0, 1, ...; otherwise the list of all labels as "
        "written, class 0 first. A public constant.",
    },
    "columns": {
        "type": "array",
        "minItems": 1,
        "uniqueItems": True,
        "items": {"type": "string", "minLength": 1},
        "description": "The feature columns, in this order; by default all except the label.",
    },
    "categories": {
        "type": "object",
        "additionalProperties": {
            "type": "array",
            "minItems": 2,
            "uniqueItems": True,
            "items": {"type": "string"},
        },
        "description": "The values of each categorical column as written, an empty string for a missing value. Such a "
        "column becomes one feature per value, 1 if the record has this value and 0 otherwise. Public constants.",
    },
}

#: Maximum number of names in a message.
SHOWN = 20


def listed(names: Sequence[str]) -> str:
    """Join the first names for a message."""
    return ", ".join(map(shortened, names[:SHOWN])) + (", ..." if len(names) > SHOWN else "")


@dataclass(frozen=True)
class Columns:
    """The columns of a table to read.

    Attributes:
        label: The column of labels.
        features: The feature columns, in order.
        categories: For each categorical column, the position of each value among the column's features.
    """

    label: str
    features: tuple[str, ...]
    categories: Mapping[str, Mapping[str, int]]

    @property
    def width(self) -> int:
        """The number of features of a record."""
        return sum(len(self.categories[name]) if name in self.categories else 1 for name in self.features)


class Table(Source):
    """A source of rows with named columns: records (features,)."""

    def columns(self, header: Sequence[str], where: object) -> Columns:
        """Return the columns that the options select. Raises ``DataError`` if they do not fit the header."""
        label, user = str(self.options["label"]), self.options.get("user")
        position = {name: index for index, name in enumerate(header)}
        for index, name in enumerate(header):
            if position[name] != index:
                raise DataError(f"{where}: two columns have the name {shortened(name)!r}")
        features = tuple(self.options.get("columns") or (name for name in header if name not in (label, user)))
        categories = self.options.get("categories") or {}
        for name in (label, *([] if user is None else [user]), *features, *categories):
            if name not in position:
                own = {label: "label", user: "user"}
                key = own.get(name, "columns" if name in features else "categories")
                near = did_you_mean(closest(name, header))
                raise DataError(f"{where}: has no column {name!r}{near} (its columns: {listed(header)})", key)
        if user is not None and user in (label, *features):
            raise DataError(f"{where}: column {user!r} is the user and cannot be a label or feature", "user")
        if label in features:
            raise DataError(f"{where}: column {label!r} is the label and cannot be a feature", "columns")
        for name in categories:
            if name not in features:
                raise DataError(f"{where}: categories names column {name!r}, which is not a feature", "categories")
        return Columns(label, features, {name: places(values) for name, values in categories.items()})

    def classes(self) -> dict[str, int]:
        """Return the class of each label as written in the table."""
        declared = self.options["classes"]
        return places(declared if isinstance(declared, tuple) else [str(c) for c in range(int(declared))])

    def unknown_class(self, label: str, where: object) -> DataError:
        """Return the error for a label that is not a declared class."""
        hint = "" if isinstance(self.options["classes"], tuple) else "; list labels that are words: classes: [no, yes]"
        known = listed([*self.classes()])
        return DataError(f"{where}: label {shortened(label)!r} is not a declared class ({known}){hint}", "classes")

    def table_key(self) -> dict[str, Json]:
        """Return the options that determine the rows, for the digest."""
        categories = self.options.get("categories")
        return {
            "label": self.options["label"],
            "classes": [*self.classes()],
            **({"categories": {k: [*v] for k, v in categories.items()}} if categories else {}),
        }


def places(names: Sequence[str]) -> dict[str, int]:
    """Return the index of each name without surrounding blanks."""
    return {name.strip(): place for place, name in enumerate(names)}


def unknown_category(value: str, name: str, known: Mapping[str, int], where: object) -> DataError:
    """Return the error for a value that is not a category of column ``name``."""
    hint = "" if value else '; add "" for missing values'
    message = f"{where}: {shortened(value)!r} is not a category of column {name!r} ({listed([*known])}){hint}"
    return DataError(message, "categories")


def rows(read: Callable[[str], Array], table: Table, columns: Columns, where: object) -> tuple[Array, Array]:
    """Convert columns to features and labels, with one column in memory at a time.

    Args:
        read: Returns a column by name.
        table: The table's options.
        columns: The columns to read.
        where: The beginning of messages.

    Returns:
        Features (n, columns.width), float64, and labels (n,), int64.

    Raises:
        DataError: A value is missing, not a number, not a category or not a class. Records count from 0.
    """
    import numpy as np

    known = table.classes()
    values = read(columns.label)
    y = _places(values, known, lambda text, record: table.unknown_class(text, _record(where, record)))
    x = np.zeros((len(y), columns.width), dtype=np.float64)
    start = 0
    for name in columns.features:
        values = read(name)
        if len(values) != len(y):
            raise DataError(f"{where}: column {name!r} has {len(values)} values for {len(y)} labels")
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
    return lambda text, record: unknown_category(text, name, known, _record(where, record))


def _record(where: object, record: int) -> str:
    return f"{where}: record {record}"


def _numbers(values: Array, name: str, where: object) -> Array:
    import numpy as np

    if values.dtype.kind not in "fiub":
        message = f"{where}: column {name!r} is not numeric; list its values under categories, or exclude it"
        raise DataError(message)
    numbers: Array = values.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        raise DataError(f"{_record(where, int(bad[0]))}: column {name!r}: {numbers[bad[0]]} is not a finite number")
    return numbers


def _places(values: Array, known: Mapping[str, int], unknown: Callable[[str, int], DataError]) -> Array:
    """Return the index of each value (n,) by its text; ``unknown`` returns the error for a text and its record."""
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
    """Format a value as in specs: integers without a point, true and false, an empty string if missing."""
    import numpy as np

    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def column_values(values: Any, name: str, where: object) -> np.ndarray[Any, Any]:
    """Convert a chunked array to numbers, booleans or strings; missing numbers become NaN, missing strings None.

    Raises:
        DataError: The column has another type, such as dates or lists.
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
    raise DataError(f"{where}: column {shortened(name)!r} has type {kind}; it must be numeric, boolean or string")


def is_text(kind: Any) -> bool:
    """Return True if an Arrow type is a string type."""
    import pyarrow.types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _texts(values: Any) -> np.ndarray[Any, Any]:
    """Convert dictionary-encoded strings, storing each distinct string once to bound memory."""
    import numpy as np

    chunks = values.unify_dictionaries().chunks
    different = np.array([*(chunks[0].dictionary.to_pylist() if chunks else ()), None], dtype=object)
    places = [chunk.indices.cast("int64").fill_null(len(different) - 1).to_numpy() for chunk in chunks]
    found: np.ndarray[Any, Any] = different[np.concatenate([np.empty(0, dtype=np.int64), *places])]
    return found
