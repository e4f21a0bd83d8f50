"""Values that a dataset computed from its records: a copy in another order, quantiles, means and deviations.

The mistake: a record is in the sorted columns, and so in the rank of every other record::

    self.x, self.columns = x, np.sort(x, axis=0)

The comparison takes single precision for orders, and six digits of a deviation for statistics. Few values, integers in
a row and numbers of three decimals are equal by chance or by design, so they do not count.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

#: The largest table and the largest statistics, in numbers.
_MOST_VALUES, _MOST_STATISTICS = 2**22, 2**16

#: The fewest different values of a column, and numbers of a row, that are not equal by chance.
_FEWEST_VALUES, _FEWEST_NUMBERS = 8, 4

#: The fewest quantiles of a table of quantiles.
_FEWEST_QUANTILES = 3

#: The shares of single quantiles that scripts use.
_USUAL_SHARES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.75, 0.9, 0.95, 0.98, 0.99)

#: The part of a deviation, and the units in the last place of single precision, by which a statistic may differ.
_PART, _UNITS = 1e-6, 4.0

#: Public constants have at most three decimals.
_DECIMALS = 1000.0

#: The factor of other values: it keeps an order.
_SCALE = 1.5


def array_of(value: Any) -> Any:
    """The numbers of an array, a float, a list of floats or a search tree (``data``) as an array; None for others."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy() if value.layout == torch.strided and _is_usual(value) else None
    if is_tree(value):
        return np.asarray(value.data)
    is_list = isinstance(value, list | tuple) and bool(value) and all(isinstance(entry, float) for entry in value)
    if not (isinstance(value, np.ndarray | np.floating | float) or is_list):
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in "fiub" else None


def _is_usual(tensor: Any) -> bool:
    import torch

    return not tensor.is_complex() and tensor.dtype != torch.bfloat16 and not tensor.is_quantized


def is_tree(value: Any) -> bool:
    """Whether a value is a search tree of SciPy or scikit-learn, which is made from its points."""
    return type(value).__module__.partition(".")[0] in ("scipy", "sklearn") and all(
        hasattr(value, name) for name in ("query", "data")
    )


def is_derived(value: Any, table: Any) -> bool:
    """Whether a value of a dataset follows from the table (n, ...) of its records."""
    values, rows = array_of(value), array_of(table)
    if values is None or rows is None or rows.ndim == 0 or rows.size > _MOST_VALUES or len(rows) < _FEWEST_VALUES:
        return False
    return _has_columns(values, rows) or _has_rows(values, rows) or Statistics(table).have(value)


def with_other_values(value: Any, record: Any) -> Any:
    """A copy with other numbers in place of those that are not in the ``record``; integers get another order."""
    import numpy as np
    import torch

    values, of_record = array_of(value), array_of(record)
    changed = np.flip(values, 0) if values.dtype.kind != "f" and values.ndim else values * _SCALE
    if of_record is not None:
        changed = np.where(np.isin(values.astype(np.float32), of_record.astype(np.float32)), values, changed)
    changed = changed.astype(values.dtype)
    if isinstance(value, torch.Tensor):
        return torch.from_numpy(np.ascontiguousarray(changed)).to(value.device)
    if isinstance(value, np.ndarray):
        return changed
    return type(value)(changed.tolist() if isinstance(value, list | tuple) else changed)


def _has_columns(values: Any, rows: Any) -> bool:
    """Whether all columns, or all rows, of ``values`` have the values of columns of ``rows`` in some order."""
    import numpy as np

    if values.ndim not in (1, 2) or len(rows) not in values.shape:
        return False
    columns = rows.reshape(len(rows), -1).astype(np.float32)
    candidates = values.reshape(len(values), -1) if len(values) == len(rows) else values.T
    sorted_columns = np.sort(columns, axis=0)
    as_bytes = {column.tobytes() for column in sorted_columns.T if _is_special(column)}
    return bool(as_bytes) and all(
        column.tobytes() in as_bytes for column in np.sort(candidates.astype(np.float32), axis=0).T
    )


def _is_special(column: Any) -> bool:
    """Whether a sorted column has many different values, which are not equally spaced as indices are."""
    import numpy as np

    steps = np.diff(column)
    return bool((steps > 0.0).sum() + 1 >= _FEWEST_VALUES and np.ptp(steps) > 1e-3 * steps.mean())


def _has_rows(values: Any, rows: Any) -> bool:
    """Whether all rows of ``values`` are rows of the table."""
    import numpy as np

    if values.ndim < 2 or values.shape[1:] != rows.shape[1:] or not len(values) or len(values) > len(rows):
        return False
    flat, table = (array.reshape(len(array), -1).astype(np.float32) for array in (values, rows))
    if flat.shape[1] < _FEWEST_NUMBERS or any(len(np.unique(row)) < _FEWEST_NUMBERS for row in flat[:_FEWEST_VALUES]):
        return False
    rows_as_bytes = {row.tobytes() for row in table}
    return all(row.tobytes() in rows_as_bytes for row in flat)


class Statistics:
    """Means, deviations, medians, ends and quantiles of a table (n, ...): of its columns, channels, and all values."""

    def __init__(self, table: Any) -> None:
        import numpy as np

        rows = array_of(table)
        is_read = rows is not None and rows.ndim > 0 and rows.size <= _MOST_VALUES and len(rows) >= _FEWEST_VALUES
        is_read = is_read and rows.dtype.kind in "fiu" and bool(np.isfinite(rows).all())
        self._columns = [_Columns(view) for view in _views(rows.astype(np.float64))] if is_read else []

    def have(self, value: Any) -> bool:
        """Whether the numbers of a value are statistics."""
        import numpy as np

        values = array_of(value)
        if values is None or values.dtype.kind != "f" or not 0 < values.size <= _MOST_STATISTICS:
            return False
        if not np.isfinite(values).all():
            return False
        return any(columns.match(values.astype(np.float64)) for columns in self._columns)


def _views(rows: Any) -> Iterator[Any]:
    """The table as columns, channels of images, and one column of all values."""
    import numpy as np

    yield rows.reshape(len(rows), -1)
    if rows.ndim == 4:
        yield np.moveaxis(rows, 1, -1).reshape(-1, rows.shape[1])
    if rows.ndim > 1:
        yield rows.reshape(-1, 1)


class _Columns:
    """The columns (n, width) of a table, whose statistics are computed when they are compared."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns

    @cached_property
    def _deviation(self) -> Any:
        return self._columns.std(0)

    @cached_property
    def _of_columns(self) -> list[Any]:
        import numpy as np

        columns = self._columns
        low, high = columns.min(0), columns.max(0)
        # columns that are cut at public bounds have several values there
        ends = [end for end in (low, high) if bool(((columns == end).sum(0) == 1).all())]
        medians = [np.quantile(columns, 0.5, axis=0, method=method) for method in ("lower", "linear", "higher")]
        # of repeated values, such as levels of pixels, a public level may be one
        quantiles = [
            quantile
            for quantile in np.quantile(columns, _USUAL_SHARES, axis=0)
            if bool(((columns == quantile).sum(0) <= 1).all())
        ]
        return [columns.mean(0), self._deviation, columns.std(0, ddof=1), *medians, *ends, *quantiles]

    def match(self, values: Any) -> bool:
        """Whether ``values`` are means, deviations, medians, ends or quantiles of the columns."""
        import numpy as np

        width = self._columns.shape[1]
        if not width or values.size % width:
            return False
        count = values.size // width
        if count == 1:
            return any(self._are(values.reshape(width), statistic) for statistic in self._of_columns)
        if count < _FEWEST_QUANTILES:
            return False
        shapes = [values.reshape(count, width)] if values.shape[:1] == (count,) else []
        shapes += [values.reshape(width, count).T] if values.shape[-1:] == (count,) else []
        for compared in shapes:
            if bool((np.diff(compared, axis=0) >= 0.0).all()):
                tables = (np.quantile(self._columns, shares, axis=0) for shares in _shares(count))
                return any(self._are(compared, quantiles) for quantiles in tables)
        return False

    def _are(self, values: Any, statistic: Any) -> bool:
        import numpy as np

        within = _PART * self._deviation + _UNITS * np.finfo(np.float32).eps * np.abs(statistic)
        free = np.abs(statistic * _DECIMALS - np.round(statistic * _DECIMALS)) > 1e-3
        return bool((np.abs(values - statistic) <= within).all() and 2 * np.count_nonzero(free) > free.size)


def _shares(count: int) -> Iterator[Any]:
    """The shares of usual tables of quantiles: with both ends, without ends, and with one end."""
    import numpy as np

    yield np.linspace(0.0, 1.0, count)
    yield np.linspace(0.0, 1.0, count + 2)[1:-1]
    yield (np.arange(count) + 0.5) / count
    yield np.linspace(0.0, 1.0, count + 1)[1:]
    yield np.linspace(0.0, 1.0, count + 1)[:-1]
