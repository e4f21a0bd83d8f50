"""Weak references to objects of a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from dpspec_recording.watching.memory_rows import dataset_of

#: The largest dataset, in numbers, that is kept although the script may release it: 16 MiB in single precision.
_MOST_KEPT = 2**22


def identities(tensors: Iterable[Any]) -> dict[int, ref[Any]]:
    """A key for each tensor that no later one gets while the result is kept, unlike the id of a tensor that is gone.

    Python has one weak reference without a callback of each object, so equal keys mean the same tensor.
    """
    return {id(reference): reference for reference in map(ref, tensors)}


def reference_to(value: Any) -> Callable[[], Any]:
    """A weak reference, or a function that returns None if the type has none, such as a list."""
    try:
        return ref(value)
    except TypeError:
        return lambda: None


def kept_dataset(loader: Any) -> Callable[[], Any]:
    """A reference to the dataset of a loader; it keeps a small one, whose records later trainings are compared with."""
    from torch.utils.data import TensorDataset

    dataset, (rows, _) = loader.dataset, dataset_of(loader)
    if type(rows) is TensorDataset and sum(tensor.numel() for tensor in rows.tensors) <= _MOST_KEPT:
        return lambda: dataset
    return reference_to(dataset)
