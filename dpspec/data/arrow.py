"""Columns of Arrow tables as numpy arrays, for the kinds that read by pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError
from dpspec.data.files import shortened

if TYPE_CHECKING:
    import numpy as np


def column(values: Any, name: str, where: object) -> np.ndarray[Any, Any]:
    """A chunked array as numbers, truth values or texts (see :mod:`dpspec.data.columnar`).

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
