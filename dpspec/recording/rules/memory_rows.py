"""The rows of datasets that are in memory, through ``Subset`` and ``ConcatDataset``."""

from typing import Any

#: The maximum number of rows, and of values, that rules read.
_MOST_ROWS, _MOST_VALUES = 2**18, 2**24


def tensors_of(loader: Any) -> tuple[Any, ...] | None:
    """The tensors (n, ...) of the loader's records, in the order of its indices; None if they are not in memory."""
    import numpy as np
    import torch
    from torch.utils.data import ConcatDataset, Subset, TensorDataset

    dataset, indices = getattr(loader, "dataset", None), None
    while type(dataset) is Subset:
        subset_indices = np.asarray(dataset.indices, dtype=np.int64)
        indices = subset_indices if indices is None else subset_indices[indices]
        dataset = dataset.dataset
    if type(dataset) is ConcatDataset:
        dataset = _joined(dataset.datasets)
    if isinstance(dataset, list | tuple) and dataset and len(dataset) <= _MOST_ROWS:
        dataset = _stacked(dataset)
    if not isinstance(dataset, TensorDataset) or not dataset.tensors:
        return None
    tensors = tuple(tensor.detach() for tensor in dataset.tensors)
    if any(tensor.is_sparse for tensor in tensors) or len(tensors[0]) > _MOST_ROWS:
        return None
    if sum(tensor.numel() for tensor in tensors) > _MOST_VALUES:
        return None
    return tensors if indices is None else tuple(t[torch.as_tensor(indices, device=t.device)] for t in tensors)


def _joined(datasets: Any) -> Any:
    """Several datasets of tensors as one; None for others."""
    import torch
    from torch.utils.data import TensorDataset

    if not all(isinstance(dataset, TensorDataset) for dataset in datasets):
        return None
    try:
        return TensorDataset(*map(torch.cat, zip(*(dataset.tensors for dataset in datasets), strict=True)))
    except (RuntimeError, ValueError):
        return None


def _stacked(rows: Any) -> Any:
    """A list of tuples of equally shaped tensors as a ``TensorDataset``; None for others."""
    import torch
    from torch.utils.data import TensorDataset

    columns = list(zip(*rows, strict=False)) if isinstance(rows[0], list | tuple) else []
    if not columns or not all(isinstance(value, torch.Tensor | int | float) for value in rows[0]):
        return None
    try:
        return TensorDataset(*(torch.stack([torch.as_tensor(value) for value in column]) for column in columns))
    except (RuntimeError, TypeError):
        return None
