"""Data that a script declares public: ``public=`` of ``dpspec.record``.

A gradient of public rows that is added after the noise, or a public step between private ones, is a post-processing.
Replayed steps compare the tensors that these gradients read with the declared rows. The private dataset must hold none
of the declared rows; both comparisons need datasets in memory, except for batches that a declared loader yields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dpspec.errors import UsageError
from dpspec.text import several
from dpspec_recording import recognized
from dpspec_recording.watching import memory_rows

#: The fewest values of a row that is found by its values: fewer may be equal by chance.
_FEWEST_VALUES = 4

#: The number of batches of declared loaders that are remembered.
_MOST_BATCHES = 256


class PublicData:
    """The declared public data of a training.

    Attributes:
        loaders: Its loaders, whose batches are public.
        is_compared: Whether the rows of both datasets were in memory, so that they were compared.
        inspected, near_copies: The number of its rows that were compared with all records by their distance, and of
            those that nearly equal a record.
    """

    def __init__(self, declared: Any, loader: Any) -> None:
        """Read the declared data.

        Args:
            declared: A loader, a dataset, a tensor or an array, or a list or tuple of these.
            loader: The private one.

        Raises:
            UsageError: A part is of another type, or a declared row is a record of the private dataset.
        """
        sources = declared if isinstance(declared, list | tuple) else [declared]
        self.loaders = [part for part in sources if isinstance(part, DataLoader)]
        self._sources = [tuple(_columns(part)) for part in sources]
        self._rows = [[_rows_of(column) for column in columns] for columns in self._sources]
        private = _columns_of(loader)
        self._private: set[bytes] = set()
        for column in private:
            self._private.update(_rows_of(column))
        self.is_compared = bool(self._private) and all(any(rows) for rows in self._rows)
        self.inspected, self.near_copies = _near_copies(self._sources, private)
        self._noted: list[ref[Tensor]] = []
        dataset = getattr(loader, "dataset", None)
        for part in sources:
            declared_dataset = getattr(part, "dataset", part)
            is_same = part is loader or declared_dataset is dataset
            if dataset is not None and (is_same or recognized.have_common_records(declared_dataset, dataset)):
                raise UsageError("public= has records of the private dataset: declare other data, or leave it out")
        common = sum(row in self._private for columns in self._rows for rows in columns for row in rows)
        if common:
            raise UsageError(
                f"public= has {several(common, 'row')} of the private dataset: declare a loader without its records"
            )

    def note(self, batch: Sequence[Tensor]) -> list[Tensor]:
        """Note the tensors of a batch of a declared loader, and return them, unless a row is a private record."""
        if any(self._has_private(tensor) for tensor in batch):
            return []
        self._noted = [*self._noted, *map(ref, batch)][-_MOST_BATCHES:]
        return list(batch)

    def others(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that are not declared public.

        A tensor is public if a declared loader yielded it, or if it is a declared tensor or a row of one, or has only
        declared rows; integers also together with such rows, as their labels.
        """
        undeclared, declared_rows = list[Tensor](), list[tuple[tuple[Tensor, ...], Any]]()
        for tensor in tensors:
            rows = self._find(tensor)
            if rows is None:
                undeclared.append(tensor)
            elif rows:
                declared_rows.append(rows)
        return [tensor for tensor in undeclared if not any(_are_labels(tensor, *rows) for rows in declared_rows)]

    def _find(self, tensor: Tensor) -> tuple[tuple[Tensor, ...], Any] | tuple[()] | None:
        """The declared columns with the rows of a tensor, and their indices; () if it is known otherwise, or None."""
        if self._has_private(tensor):
            return None
        if any(noted() is tensor for noted in self._noted):
            return ()
        for columns, rows_of_columns in zip(self._sources, self._rows, strict=True):
            for column, rows in zip(columns, rows_of_columns, strict=True):
                if _place(tensor) == _place(column):
                    return ()
                if not column.dim():
                    continue
                values = tensor[None] if tensor.shape == column.shape[1:] else tensor
                if not rows or values.shape[1:] != column.shape[1:] or values.dtype != column.dtype:
                    continue
                indices = [rows.get(row) for row in _bytes_of(values)]
                if indices and None not in indices:
                    return columns, indices
        return None

    def _has_private(self, tensor: Tensor) -> bool:
        """Whether a tensor is a private record, or has one as a row."""
        if not self._private or tensor.numel() < _FEWEST_VALUES or tensor.layout != torch.strided:
            return False
        rows = [*_bytes_of(tensor), *_bytes_of(tensor[None])]
        return any(row in self._private for row in rows)


def _near_copies(sources: Iterable[Iterable[Tensor]], private: Iterable[Tensor]) -> tuple[int, int]:
    """The numbers of inspected rows of public columns, and of those that nearly equal a row of a private column."""
    inspected = near_copies = 0
    for column in (column for columns in sources for column in columns):
        for records in private:
            if len(column) and column.shape[1:] == records.shape[1:] and records.is_floating_point():
                rows, copies = memory_rows.near_copies_of(column, records)
                inspected, near_copies = inspected + rows, near_copies + copies
    return inspected, near_copies


def _columns(part: Any) -> list[Tensor]:
    """The tensors (n, ...) of a part, in memory."""
    if isinstance(part, Tensor | np.ndarray):
        return [torch.as_tensor(part).detach()]
    if isinstance(part, DataLoader):
        return _columns_of(part)
    if hasattr(part, "__getitem__") and hasattr(part, "__len__"):
        return _columns_of(SimpleNamespace(dataset=part))
    raise UsageError(
        f"public= has a {type(part).__name__}: give a loader, a dataset, a tensor, or a list or tuple of these"
    )


def _columns_of(loader: Any) -> list[Tensor]:
    return list(memory_rows.tensors_of(loader) or memory_rows.attributes_with_rows(loader))


def _rows_of(column: Tensor) -> dict[bytes, int]:
    """The rows of a column, with their indices; of less than four values or of equal values: none."""
    if column.dim() < 2 or column[0].numel() < _FEWEST_VALUES or column.layout != torch.strided:
        return {}
    flat = column.reshape(len(column), -1)
    is_varied = (flat != flat[:, :1]).any(1).tolist()
    return {row: index for index, row in enumerate(_bytes_of(column)) if is_varied[index]}


def _bytes_of(rows: Tensor) -> Iterator[bytes]:
    if not rows.dim() or not rows.numel():
        return
    array = rows.detach().cpu().contiguous().reshape(len(rows), -1).view(torch.uint8).numpy()
    yield from (row.tobytes() for row in array)


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _are_labels(tensor: Tensor, columns: Iterable[Tensor], indices: Sequence[int]) -> bool:
    """Whether a tensor has the values of another column at the indices of public rows."""
    for column in columns:
        labels = column[torch.as_tensor(indices, device=column.device)]
        for values in (labels, labels[0]):
            if values.shape == tensor.shape and values.dtype == tensor.dtype and torch.equal(values, tensor.detach()):
                return True
    return False
