"""The largest number of indices of a dataset that lead to the same record, through ``Subset`` and ``ConcatDataset``."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset, TensorDataset

#: Datasets with more indices, or deeper nesting, are not resolved.
_MOST, _DEEPEST = 2**26, 100


def largest_multiplicity(dataset: Any) -> int:
    """The number of occurrences of the most frequent record; 1 for datasets without a wrapper that can repeat indices.

    Two datasets are the same if they are one object, or if they are ``TensorDataset`` over the same memory. Records
    with equal content at different places are not found.
    """
    try:
        size = len(dataset)
    except TypeError:
        return 1
    if not isinstance(dataset, Subset | ConcatDataset) or not 0 < size <= _MOST:
        return 1
    sources: dict[Any, int] = {}
    resolved = _resolved(dataset, np.arange(size, dtype=np.int64), sources, _DEEPEST)
    if resolved is None:
        return 1
    _, counts = np.unique(resolved, axis=1, return_counts=True)
    return int(counts.max())


def _resolved(dataset: Any, indices: Any, sources: dict[Any, int], depth: int) -> Any:
    """(2, n) the number of the innermost dataset of each index, and the index in it; None if that is not known."""
    if depth == 0:
        return None
    if type(dataset) is Subset:
        within = np.asarray(dataset.indices, dtype=np.int64)
        return _resolved(dataset.dataset, within[indices], sources, depth - 1)
    if type(dataset) is ConcatDataset:
        ends = np.asarray(dataset.cumulative_sizes, dtype=np.int64)
        part = np.searchsorted(ends, indices, side="right")
        found = np.zeros((2, len(indices)), dtype=np.int64)
        for number, inner in enumerate(dataset.datasets):
            at = part == number
            start = ends[number - 1] if number else 0
            resolved = _resolved(inner, indices[at] - start, sources, depth - 1)
            if resolved is None:
                return None
            found[:, at] = resolved
        return found
    # Negative indices count from the end, as in a list.
    indices = np.where(indices < 0, indices + len(dataset), indices)
    return np.stack([np.full(len(indices), sources.setdefault(_identity(dataset), len(sources))), indices])


def _identity(dataset: Any) -> Any:
    if type(dataset) is TensorDataset:
        return tuple((one.data_ptr(), tuple(one.shape), one.stride()) for one in dataset.tensors)
    return id(dataset)
