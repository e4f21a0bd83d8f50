"""The places outside of a batch at which a step holds its records.

A forward pass may read all records of the dataset: neighbors in a graph, retrieval, means of classes. The batch then
holds a record once, and another tensor once more: a tensor of the dataset, an alias, or a copy by value in a buffer,
an attribute or a variable. A replay with another record replaces it at each of these places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from dpspec_recording.step_replay.trace import StepTrace, address_of

#: The largest tensor, in numbers, that is searched, and the largest number of columns that are compared.
_MOST_NUMBERS, _MOST_COLUMNS = 2**26, 512

#: The fewest different values of a row that is found by its values, and of a column: fewer may be equal by chance.
_FEWEST_VALUES, _FEWEST_IN_COLUMN = 4, 8

#: The number of columns by which rows are searched.
_KEYS = 8

#: The relative error of a column that is computed from one of the records by a factor and a summand.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class DrawnRecords:
    """The records of a step in its dataset.

    Attributes:
        rows: Tensors (b, ...) of the dataset at the drawn records.
        indices: The drawn indices (b,), integers.
        records: The number of records of the dataset.
        sample: Returns tensors (k, ...) of random records of the dataset, and their indices (k,), or None.
    """

    rows: tuple[Tensor, ...]
    indices: Tensor
    records: int
    sample: Callable[[], tuple[tuple[Tensor, ...], Tensor] | None] = lambda: None


@dataclass(frozen=True)
class _Location:
    """Rows of a tensor that hold the records of a batch.

    Attributes:
        tensor: The tensor, from before the step.
        transposed: Whether the rows are along its last dimension.
        source: The number of the tensor with the records, in the batch or the dataset.
        positions: (b,) the rows; -1 for a record that is at no row or at several.
        columns: The columns of the tensor, of the records, and the factor and summand of each; empty if rows are equal.
    """

    tensor: Tensor
    transposed: bool
    source: int
    positions: Tensor
    columns: tuple[tuple[int, int, float, float], ...] = ()


class HeldRecords:
    """Finds the records of a batch in the tensors from before the step, and replaces them there.

    Attributes:
        values: The batch, and the rows of the dataset at its records, each (b, ...).
    """

    def __init__(
        self,
        trace: StepTrace,
        batch: Sequence[Tensor],
        values: Sequence[Tensor],
        drawn: DrawnRecords | None = None,
        *,
        omitted: Collection[int] = (),
    ) -> None:
        """Search the tensors that the step reads.

        Args:
            trace: The stopped trace.
            batch: The tensors of the batch.
            values: Their values before the step, each (b, ...).
            drawn: The records of the batch in the dataset; None if they are not known.
            omitted: The numbers (``id``) of tensors that are not searched: trained parameters.
        """
        drawn = drawn if drawn is not None and len(drawn.indices) == len(values[0]) else None
        self._trace = trace
        self.values = [*values, *(() if drawn is None else (row.to(values[0].device) for row in drawn.rows))]
        skipped = {*map(id, batch), *omitted}
        self._locations: list[_Location] = []
        for tensor in trace.tensors_before():
            is_searched = tensor.dim() and 1 < tensor.numel() <= _MOST_NUMBERS and tensor.layout == torch.strided
            if id(tensor) not in skipped and is_searched and not tensor.is_complex():
                self._search(tensor, drawn)

    def __bool__(self) -> bool:
        return bool(self._locations)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that hold records."""
        return [location.tensor for location in self._locations]

    def memory(self, rows: Iterable[int], replaced: Sequence[Tensor]) -> dict[int, Tensor]:
        """The memory from before the step with other records.

        Args:
            rows: The records in the batch.
            replaced: ``values`` with other values at these rows.

        Returns:
            By address, the content of the memory in which the record changes, as bytes.
        """
        contents: dict[int, Tensor] = {}
        for location, row in product(self._locations, rows):
            position = int(location.positions[row])
            if position < 0:
                continue
            tensor, new = location.tensor, replaced[location.source][row].detach()
            address = address_of(tensor)
            if address not in contents:
                contents[address] = self._trace.memory_before(tensor)
            whole = (
                contents[address].view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            )
            whole = whole[None] if tensor.shape == new.shape else whole  # a single record
            target = (whole.t() if location.transposed else whole)[position]
            if location.columns:
                for column, source, factor, summand in location.columns:
                    target[column] = factor * new.reshape(-1)[source] + summand
            else:
                target.copy_(new.reshape(target.shape))
        return contents

    def _search(self, tensor: Tensor, drawn: DrawnRecords | None) -> None:
        """Note the place of the records in a tensor, if it holds them."""
        value = self._trace.value_before(tensor)
        for transposed in (False, True) if tensor.dim() == 2 else (False,):
            rows = value.t() if transposed else value
            for source, records in enumerate(self.values):
                if records.device != rows.device or records.is_complex():
                    continue
                location = self._by_index(tensor, rows, records, source, drawn, transposed=transposed)
                location = location or _by_value(tensor, rows, records, source, transposed=transposed)
                location = location or _single(tensor, value, records, source)
                if location is not None:
                    self._locations.append(location)
                    return

    def _by_index(
        self,
        tensor: Tensor,
        rows: Tensor,
        records: Tensor,
        source: int,
        drawn: DrawnRecords | None,
        *,
        transposed: bool,
    ) -> _Location | None:
        """Rows at the drawn indices, if they or some of their columns equal the records."""
        if drawn is None or len(rows) != drawn.records:
            return None
        indices = drawn.indices.to(rows.device)
        at_indices = rows[indices].reshape(len(indices), -1)
        flat = records.reshape(len(records), -1)
        if at_indices.shape == flat.shape and bool((at_indices == flat).all()):
            different = len(flat.unique(dim=0))  # type: ignore[no-untyped-call]
            return _Location(tensor, transposed, source, indices) if different > 1 else None
        if not (rows.is_floating_point() and max(at_indices.shape[1], flat.shape[1]) <= _MOST_COLUMNS):
            return None
        unit = max(torch.finfo(t.dtype).eps for t in (at_indices, flat) if t.is_floating_point())
        columns = _equal_columns(at_indices.double(), flat.double(), max(_ROUNDING, 2.0 * unit))
        # other forms of rows than vectors have no columns in place
        return _Location(tensor, transposed, source, indices, columns) if columns and rows.dim() == 2 else None


def _equal_columns(table: Tensor, records: Tensor, rounding: float) -> tuple[tuple[int, int, float, float], ...]:
    """Columns of ``table`` (b, k) that are a column of ``records`` (b, d), up to a factor, a summand and rounding."""
    varied = [column for column, values in enumerate(records.T) if _different(values) >= _FEWEST_IN_COLUMN]
    if not varied:
        return ()
    sources = records[:, varied]
    centered, table_centered = sources - sources.mean(0), table - table.mean(0)
    norms, table_norms = centered.norm(dim=0), table_centered.norm(dim=0)
    cosines = (table_centered.T @ centered) / (table_norms[:, None] * norms).clamp_min(1e-300)
    nearest = cosines.abs().argmax(1).tolist()
    columns = []
    for column, index in enumerate(nearest):
        factor = float(cosines[column, index] * table_norms[column] / norms[index])
        summand = float(table[:, column].mean()) - factor * float(sources[:, index].mean())
        error = float((table[:, column] - factor * sources[:, index] - summand).norm())
        if factor and error <= rounding * float(table_norms[column]):
            columns.append((column, varied[index], factor, summand))
    return tuple(columns)


def _by_value(tensor: Tensor, rows: Tensor, records: Tensor, source: int, *, transposed: bool) -> _Location | None:
    """Rows with the values of most records, at any position."""
    flat = records.reshape(len(records), -1)
    if len(rows) < 2 or not flat.shape[1] or rows[0].numel() != flat.shape[1]:
        return None
    table = rows.reshape(len(rows), -1)
    keys = (flat != flat[0]).sum(0).topk(min(_KEYS, flat.shape[1])).indices
    table_keys, flat_keys = table[:, keys].to(flat.dtype), flat[:, keys]
    candidates = torch.isin(table_keys[:, 0], flat_keys[:, 0]).nonzero()[:, 0]
    if len(candidates) < 2:
        return None
    step = max(1, flat.shape[1] // _MOST_COLUMNS)
    distinctive = [number for number, record in enumerate(flat) if _different(record[::step]) >= _FEWEST_VALUES]
    positions = torch.full((len(flat),), -1)
    for number in distinctive:
        equal = candidates[(table_keys[candidates] == flat_keys[number]).all(1)]
        equal = equal[(table[equal].to(flat.dtype) == flat[number]).all(1)]
        if len(equal) == 1:
            positions[number] = equal[0]
    count = int((positions >= 0).sum())
    return _Location(tensor, transposed, source, positions) if count >= 2 and 2 * count > len(distinctive) else None


def _single(tensor: Tensor, value: Tensor, records: Tensor, source: int) -> _Location | None:
    """A tensor that is one record, such as an entry of a list."""
    if value.shape != records.shape[1:] or _different(value) < _FEWEST_VALUES:
        return None
    equal = (value.to(records.dtype) == records).flatten(1).all(1).nonzero()[:, 0]
    if len(equal) != 1:
        return None
    positions = torch.full((len(records),), -1)
    positions[equal] = 0
    return _Location(tensor, transposed=False, source=source, positions=positions)


def _different(values: Tensor) -> int:
    """The number of different values."""
    different: int = values.unique().numel()  # type: ignore[no-untyped-call]
    return different
