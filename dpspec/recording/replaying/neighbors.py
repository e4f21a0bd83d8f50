"""Neighbors of a dataset: without a record, without every other record, or with another record in their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from dpspec.errors import UsageError


@dataclass(frozen=True)
class Neighbor:
    """A neighboring dataset. place: the index here of each record that both contain."""

    name: str
    dataset: Any
    place: Mapping[int, int]


def neighbors_of(dataset: Any, record: int, replacement: Any = None) -> list[Neighbor]:
    """The dataset without ``record``, and its even and its odd records; or with the replacement in the others' places.

    Tensor datasets, lists, tensors and arrays keep their types, so that scripts find the expected attributes.
    """
    every = range(len(dataset))
    names = (f"those without record {record}", "the even ones", "the odd ones")
    if replacement is not None:
        names = (
            f"those with another record {record}",
            "the even ones and replacements",
            "the odd ones and replacements",
        )
    omitted = dict(zip(names, ([record], list(every[1::2]), list(every[0::2])), strict=True))
    found = []
    for name, out in omitted.items():
        gone = set(out)
        kept = [index for index in every if index not in gone]
        if replacement is None:
            place = {index: number for number, index in enumerate(kept)}
            found.append(Neighbor(name, _some(dataset, kept), place))
        else:
            replaced = _replaced(dataset, out, replacement)
            found.append(Neighbor(name, replaced, {index: index for index in kept}))
    return found


def _some(dataset: Any, kept: list[int]) -> Any:
    if type(dataset) is TensorDataset:
        return TensorDataset(*(tensor[kept] for tensor in dataset.tensors))
    if isinstance(dataset, Tensor | np.ndarray):
        return dataset[kept]
    return [dataset[index] for index in kept] if isinstance(dataset, list) else Subset(dataset, kept)


def _replaced(dataset: Any, places: Sequence[int], replacement: Any) -> Any:
    if type(dataset) is TensorDataset:
        tensors = tuple(tensor.clone() for tensor in dataset.tensors)
        for tensor, value in zip(tensors, replacement, strict=True):
            tensor[list(places)] = value
        return TensorDataset(*tensors)
    if isinstance(dataset, Tensor | np.ndarray):
        rows: Any = dataset.clone() if isinstance(dataset, Tensor) else dataset.copy()
        rows[list(places)] = replacement
        return rows
    if isinstance(dataset, list):
        gone = set(places)
        return [replacement if index in gone else one for index, one in enumerate(dataset)]
    return _Replaced(dataset, places, replacement)


class _Replaced(Dataset[Any]):
    def __init__(self, dataset: Any, places: Sequence[int], replacement: Any) -> None:
        self._dataset, self._places, self._replacement = dataset, frozenset(places), replacement

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._replacement if index in self._places else self._dataset[index]


def counted(dataset: Any) -> int:
    records = length(dataset)
    if records is None:
        raise UsageError(f"dataset must be map-style, with a length, got {type(dataset).__name__}")
    if records < 3:
        raise UsageError(f"dataset must have three records or more, got {records}")
    return records


def length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
