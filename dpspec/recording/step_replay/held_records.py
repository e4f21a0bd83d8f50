"""The places outside of a batch at which a step holds its records.

A forward pass may read all records of the dataset: neighbors in a graph, retrieval, means of classes. The batch then
holds a record once, and another tensor once more: a tensor of the dataset, an alias, or a copy by value in a buffer,
an attribute or a variable. A replay with another record replaces it at each of these places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from dpspec.recording.step_replay.trace import StepTrace

#: The largest tensor, in numbers, that is searched, and the most columns that are compared with each other.
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
    """

    rows: tuple[Tensor, ...]
    indices: Tensor
    records: int


@dataclass(frozen=True)
class _Place:
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
        self._places: list[_Place] = []
        for tensor in trace.tensors_before():
            is_searched = tensor.dim() and 1 < tensor.numel() <= _MOST_NUMBERS and tensor.layout == torch.strided
            if id(tensor) not in skipped and is_searched and not tensor.is_complex():
                self._search(tensor, drawn)

    def __bool__(self) -> bool:
        return bool(self._places)

    def memory(self, rows: Iterable[int], replaced: Sequence[Tensor]) -> dict[int, Tensor]:
        """The memory from before the step with other records.

        Args:
            rows: The records in the batch.
            replaced: ``values`` with other values at these rows.

        Returns:
            By address, the content of the memory in which the record changes, as bytes.
        """
        contents: dict[int, Tensor] = {}
        for place, row in product(self._places, rows):
            position = int(place.positions[row])
            if position < 0:
                continue
            tensor, new = place.tensor, replaced[place.source][row].detach()
            address, content = self._trace.memory_before(tensor)
            content = contents.setdefault(address, content)
            whole = content.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            held = (whole.t() if place.transposed else whole)[position]
            if place.columns:
                for column, source, factor, summand in place.columns:
                    held[column] = factor * new.reshape(-1)[source] + summand
            else:
                held.copy_(new.reshape(held.shape))
        return contents

    def _search(self, tensor: Tensor, drawn: DrawnRecords | None) -> None:
        value = self._trace.value_before(tensor)
        for transposed in (False, True) if tensor.dim() == 2 else (False,):
            rows = value.t() if transposed else value
            for source, records in enumerate(self.values):
                if records.device != rows.device or records.is_complex():
                    continue
                place = self._by_index(tensor, rows, records, source, drawn, transposed=transposed)
                place = place or _by_value(tensor, rows, records, source, transposed=transposed)
                if place is not None:
                    self._places.append(place)
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
    ) -> _Place | None:
        """Rows at the drawn indices, if they or some of their columns are those of the records."""
        if drawn is None or len(rows) != drawn.records:
            return None
        indices = drawn.indices.to(rows.device)
        at_indices = rows[indices].reshape(len(indices), -1)
        flat = records.reshape(len(records), -1)
        if at_indices.shape == flat.shape and bool((at_indices == flat).all()):
            different = len(flat.unique(dim=0))  # type: ignore[no-untyped-call]
            return _Place(tensor, transposed, source, indices) if different > 1 else None
        if not (rows.is_floating_point() and max(at_indices.shape[1], flat.shape[1]) <= _MOST_COLUMNS):
            return None
        columns = _equal_columns(at_indices.double(), flat.double())
        # other forms of rows than vectors have no columns in place
        return _Place(tensor, transposed, source, indices, columns) if columns and rows.dim() == 2 else None


def _equal_columns(held: Tensor, records: Tensor) -> tuple[tuple[int, int, float, float], ...]:
    """Columns of ``held`` (b, k) that are a column of ``records`` (b, d), up to a factor and a summand."""
    varied = [column for column in range(records.shape[1]) if len(records[:, column].unique()) >= _FEWEST_IN_COLUMN]  # type: ignore[no-untyped-call]
    if not varied:
        return ()
    centered, held_centered = records[:, varied] - records[:, varied].mean(0), held - held.mean(0)
    norms, held_norms = centered.norm(dim=0), held_centered.norm(dim=0)
    cosines = (held_centered.T @ centered) / (held_norms[:, None] * norms).clamp_min(1e-300)
    best = cosines.abs().max(1)
    columns = []
    for column, cosine in enumerate(best.values.tolist()):
        index = int(best.indices[column])
        factor = float(cosines[column, index] * held_norms[column] / norms[index])
        summand = float(held[:, column].mean()) - factor * float(records[:, varied[index]].mean())
        error = (held[:, column] - factor * records[:, varied[index]] - summand).norm()
        if cosine > 0.5 and float(error) <= _ROUNDING * float(held_norms[column]):
            columns.append((column, varied[index], factor, summand))
    return tuple(columns)


def _by_value(tensor: Tensor, rows: Tensor, records: Tensor, source: int, *, transposed: bool) -> _Place | None:
    """Rows with the values of most records, at any place."""
    flat = records.reshape(len(records), -1)
    if len(rows) < 2 or not flat.shape[1] or rows[0].numel() != flat.shape[1]:
        return None
    held = rows.reshape(len(rows), -1)
    keys = (flat != flat[0]).sum(0).topk(min(_KEYS, flat.shape[1])).indices
    held_keys, flat_keys = held[:, keys].to(flat.dtype), flat[:, keys]
    candidates = torch.isin(held_keys[:, 0], flat_keys[:, 0]).nonzero()[:, 0]
    if len(candidates) < 2:
        return None
    distinctive = [number for number, record in enumerate(flat) if _is_distinctive(record)]
    positions = torch.full((len(flat),), -1)
    for number in distinctive:
        equal = candidates[(held_keys[candidates] == flat_keys[number]).all(1)]
        equal = equal[(held[equal].to(flat.dtype) == flat[number]).all(1)]
        if len(equal) == 1:
            positions[number] = equal[0]
    placed = int((positions >= 0).sum())
    return _Place(tensor, transposed, source, positions) if placed >= 2 and 2 * placed > len(distinctive) else None


def _is_distinctive(record: Tensor) -> bool:
    """Whether a record (d,) has so many different values that another one hardly equals it by chance."""
    some = record[:: max(1, len(record) // _MOST_COLUMNS)]
    return len(some.unique()) >= _FEWEST_VALUES  # type: ignore[no-untyped-call]
