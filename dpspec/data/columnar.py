"""Tables that come column by column: from arrays of numbers, truth values or texts to features and labels.

A column is an array (n,) of dtype float, int, bool, or object; objects are texts, None where a value is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError
from dpspec.data.table import Columns, Table, no_category

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]


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
        found = np.array([known.get(_text(v), -1) for v in different], dtype=np.int64)[inverse.reshape(-1)]
    else:
        place = {value: known.get(_text(value), -1) for value in set(values)}
        found = np.array([place[value] for value in values], dtype=np.int64)
    bad = np.flatnonzero(found < 0)
    if bad.size:
        raise unknown(_text(values[bad[0]]), int(bad[0]))
    return found


def _text(value: Any) -> str:
    """A value as specs write it: whole numbers without a point, true and false, nothing for a missing one."""
    import numpy as np

    if value is None or value != value:  # NaN alone differs from itself
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()
