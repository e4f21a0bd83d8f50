"""Records of a dataset that is not in memory, read again after the training: neighboring ones, and copies.

The mistakes: windows that a dataset cuts out of a series or a text when they are read, and a dataset that is as long as
several passes over its records::

    def __getitem__(self, i):
        return self.text[i : i + 128]

    def __len__(self):
        return 4 * len(self.base)

    def __getitem__(self, i):
        return augmented(self.base[i % len(self.base)])

A copy of the dataset gives each record with the same random numbers, so that augmented copies of a record are equal.
"""

import random
from collections.abc import Sequence
from typing import Any

from dpspec_recording.rules.mixing_dataset import copied, distance, restored_generators, seeded_record, unchanged
from dpspec_recording.watching.memory_rows import dataset_of, stacked

#: The number of runs of neighboring records that are read, and of the records of a run.
_RUNS, _RUN = 4, 5

#: The number of pairs of records that are compared at a distance, and of equal ones that show copies.
_PAIRS, _EQUAL = 8, 3

#: The largest number of distances that are compared, and of numbers of copies of all records, one after the other.
_MOST_DISTANCES, _MOST_COPIES = 16, 10

#: The largest number of neighboring copies that are counted.
_MOST_NEIGHBORS = 64


def neighboring_records(loader: Any) -> tuple[Any, ...]:
    """Tensors (n, ...) of some records of the loader's dataset, several times some at consecutive indices.

    Empty if the dataset cannot be copied, or its records have no equally shaped tensors.
    """
    dataset, indices = dataset_of(loader)
    clone = _copy_of(dataset)
    if clone is None:
        return ()
    used = range(len(dataset)) if indices is None else sorted({int(index) for index in indices})
    starts = range(max(1, len(used) - _RUN + 1))
    first = random.SystemRandom().sample(starts, min(_RUNS, len(starts)))
    chosen = sorted({start + step for start in first for step in range(min(_RUN, len(used)))})
    with restored_generators():
        records = stacked([_fields_of(seeded_record(clone, used[number])) for number in chosen])
    return () if records is None else tuple(records.tensors)


def stride_of_copies(loader: Any) -> tuple[int, int]:
    """The distance of indices at which a dataset gives the same record, and the number of these; zeros without.

    Records of a dataset that reads no index are all equal, and not copies.
    """
    dataset, indices = dataset_of(loader)
    clone = _copy_of(dataset)
    if clone is None:
        return 0, 0
    count, used = len(dataset), None if indices is None else {int(index) for index in indices}
    with restored_generators():
        if _equal_pairs(clone, _pairs(count, used, None)) >= _EQUAL:
            return 0, 0
        for stride in _distances(dataset, count):
            pairs = _pairs(count, used, stride)
            if _equal_pairs(clone, pairs) >= _EQUAL:
                return stride, _neighbors(clone, count, pairs) if stride == 1 else -(-count // stride)
    return 0, 0


def _copy_of(dataset: Any) -> Any:
    """A copy that reading may change; None without one."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or len(dataset) < 2:
        return None
    clone = copied(dataset, len(dataset), unchanged)
    return None if clone is dataset else clone


def _fields_of(record: Any) -> list[Any]:
    """The fields of a record, its arrays as tensors."""
    import numpy as np
    import torch

    fields = record.values() if isinstance(record, dict) else record
    values = [*fields] if isinstance(record, dict | list | tuple) else [record]
    return [torch.as_tensor(value) if isinstance(value, np.ndarray | np.generic) else value for value in values]


def _distances(dataset: Any, count: int) -> list[int]:
    """Distances at which copies are expected: 1, lengths that the dataset holds, and of several passes over it."""
    attributes = [len(value) for value in vars(dataset).values() if hasattr(value, "__len__")]
    passes = [count // copies for copies in range(2, _MOST_COPIES + 1) if count % copies == 0]
    lengths = [length for length in dict.fromkeys([*attributes, *passes]) if 1 < length < count]
    return [1, *lengths[:_MOST_DISTANCES]]


def _pairs(count: int, used: set[int] | None, stride: int | None) -> list[tuple[int, int]]:
    """Pairs of indices at this distance, or any pairs, if the loader uses both indices.

    Every second pair is next to the one before: if each record has two neighboring indices, one of the two is a copy.
    """
    source = random.SystemRandom()
    if stride is None:
        pairs = [(first, second) for first, second in (source.sample(range(count), 2) for _ in range(_PAIRS))]
    else:
        starts = [source.randrange(max(1, count - stride - 1)) for _ in range(_PAIRS // 2)]
        pairs = [(start + step, start + step + stride) for start in starts for step in (0, 1)]
    return [pair for pair in pairs if max(pair) < count and (used is None or used.issuperset(pair))]


def _equal_pairs(dataset: Any, pairs: Sequence[tuple[int, int]]) -> int:
    return sum(_is_copy(dataset, *pair) for pair in pairs)


def _is_copy(dataset: Any, first: int, second: int) -> bool:
    fields, compared = (_fields_of(seeded_record(dataset, index)) for index in (first, second))
    return distance(fields, compared) == 0.0 and _varies(fields)


def _varies(fields: Sequence[Any]) -> bool:
    """Whether a field has different values: padding and constants are not copies."""
    import torch

    tensors = [field for field in fields if isinstance(field, torch.Tensor) and field.numel()]
    return any(bool((tensor != tensor.reshape(-1)[0]).any()) for tensor in tensors)


def _neighbors(dataset: Any, count: int, pairs: Sequence[tuple[int, int]]) -> int:
    """The largest number of equal records at consecutive indices around one of the pairs."""
    most = 1
    for first, _ in pairs:
        low, high = first, first
        while low > 0 and high - low < _MOST_NEIGHBORS and _is_copy(dataset, first, low - 1):
            low -= 1
        while high + 1 < count and high - low < _MOST_NEIGHBORS and _is_copy(dataset, first, high + 1):
            high += 1
        most = max(most, high - low + 1)
    return most
