"""The rows of datasets that are in memory, through ``Subset`` and ``ConcatDataset``."""

import random
from typing import Any

#: The maximum number of rows, and of values, that rules read.
_MOST_ROWS, _MOST_VALUES = 2**18, 2**24

#: The number of values by which rows are compared first.
_FIRST_VALUES = 16

#: The number of rows whose nearest other row is inspected, and the fewest values of such a row.
_INSPECTED, _FEWEST_VALUES = 16, 4

#: The largest distance of a near copy, as a share of the median distance: the digits of MNIST and scikit-learn have .4
#: and more, copies with a tenth of the noise .1.
_NEAR = 0.1


def tensors_of(loader: Any) -> tuple[Any, ...] | None:
    """The tensors (n, ...) of the loader's records, in the order of its indices; None if they are not in memory."""
    import torch
    from torch.utils.data import ConcatDataset, TensorDataset

    dataset, indices = dataset_of(loader)
    if type(dataset) is ConcatDataset:
        dataset = _joined(dataset.datasets)
    if isinstance(dataset, list | tuple) and dataset and len(dataset) <= _MOST_ROWS:
        dataset = stacked(dataset)
    if not isinstance(dataset, TensorDataset) or not dataset.tensors:
        return None
    tensors = tuple(tensor.detach() for tensor in dataset.tensors)
    if any(tensor.is_sparse for tensor in tensors) or len(tensors[0]) > _MOST_ROWS:
        return None
    if sum(tensor.numel() for tensor in tensors) > _MOST_VALUES:
        return None
    return tensors if indices is None else tuple(t[torch.as_tensor(indices, device=t.device)] for t in tensors)


def attributes_with_rows(loader: Any) -> list[Any]:
    """The tensors (n, ...) that a dataset of another class holds in its attributes, in the order of its indices."""
    import torch

    dataset, indices = dataset_of(loader)
    if not hasattr(dataset, "__len__"):
        return []
    arrays = [value for value in getattr(dataset, "__dict__", {}).values() if _is_array(value)]
    tensors = [torch.as_tensor(array).detach() for array in arrays]
    tensors = [t for t in tensors if t.dim() and len(t) == len(dataset) <= _MOST_ROWS and t.numel() <= _MOST_VALUES]
    return tensors if indices is None else [t[torch.as_tensor(indices, device=t.device)] for t in tensors]


def tensors_in_memory(loader: Any) -> list[Any]:
    """The tensors themselves that the dataset of a loader holds, also of records outside of its ``Subset``."""
    import torch
    from torch.utils.data import ConcatDataset, TensorDataset

    dataset, _ = dataset_of(loader)
    joined = dataset.datasets if type(dataset) is ConcatDataset else [dataset]
    tensors = [tensor for inner in joined if isinstance(inner, TensorDataset) for tensor in inner.tensors]
    if not tensors and hasattr(dataset, "__len__"):
        values = getattr(dataset, "__dict__", {}).values()
        tensors = [value for value in values if isinstance(value, torch.Tensor) and value.dim()]
        tensors = [tensor for tensor in tensors if len(tensor) == len(dataset)]
    return tensors


def drawn_rows(loader: Any, drawn: Any) -> tuple[tuple[Any, ...], Any, int] | None:
    """The records of a batch in the dataset that holds them, inside of ``Subset``; None if they are not in memory.

    Args:
        loader: The loader.
        drawn: The drawn indices (b,).

    Returns:
        Tensors (b, ...) of the drawn records, their indices (b,) in that dataset, and its number of records.
    """
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    dataset, subset = dataset_of(loader)
    indices = np.asarray(drawn if subset is None else subset[drawn], dtype=np.int64)
    if isinstance(dataset, TensorDataset):
        rows = [tensor.detach()[torch.as_tensor(indices, device=tensor.device)] for tensor in dataset.tensors]
    elif isinstance(dataset, list | tuple):
        records = stacked([dataset[index] for index in indices]) if len(indices) else None
        rows = [] if records is None else list(records.tensors)
    else:
        arrays = [value for value in getattr(dataset, "__dict__", {}).values() if _is_array(value) and value.ndim]
        rows = [torch.as_tensor(array[indices]).detach() for array in arrays if len(array) == len(dataset)]
    return (tuple(rows), torch.as_tensor(indices), len(dataset)) if rows else None


def is_row_of(row: Any, rows: Any) -> bool:
    """Whether a tensor (...), which is not constant, equals one of ``rows`` (n, ...)."""
    if row.dtype != rows.dtype or row.numel() != rows[0].numel():
        return False
    row, rows = row.detach().reshape(-1).to(rows.device), rows.reshape(len(rows), -1)
    if bool((row == row[0]).all()):
        return False
    candidates = (rows[:, :_FIRST_VALUES] == row[:_FIRST_VALUES]).all(1)
    return bool((rows[candidates] == row).all(1).any())


def near_copies_within(rows: Any) -> tuple[int, int]:
    """The number of inspected ``rows`` (n, ...), drawn at random, and of those that nearly equal another one."""
    return _near_copies(rows, rows, is_same=True)


def near_copies_of(rows: Any, records: Any) -> tuple[int, int]:
    """The number of inspected ``rows`` (n, ...), drawn at random, and of those that nearly equal one of ``records``."""
    return _near_copies(rows, records, is_same=False)


def _near_copies(rows: Any, records: Any, *, is_same: bool) -> tuple[int, int]:
    import torch

    if not rows.is_floating_point() or rows.dim() < 2 or rows[0].numel() < _FEWEST_VALUES:
        return 0, 0
    chosen = random.SystemRandom().sample(range(len(rows)), min(_INSPECTED, len(rows)))
    distances = torch.cdist(*(rows.reshape(len(rows), -1).float().cpu() for rows in (rows[chosen], records)))
    nearest = distances.clone()
    if is_same:
        nearest[range(len(chosen)), chosen] = torch.inf
    return len(chosen), int((nearest.amin(1) <= _NEAR * distances.median(1).values).sum())


def _is_array(value: Any) -> bool:
    import numpy as np
    import torch

    return isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "fiub")


def dataset_of(loader: Any) -> tuple[Any, Any]:
    """The dataset of a loader inside of ``Subset``, and the indices of the loader's records in it; None for all."""
    import numpy as np
    from torch.utils.data import Subset

    dataset, indices = getattr(loader, "dataset", None), None
    while type(dataset) is Subset:
        subset_indices = np.asarray(dataset.indices, dtype=np.int64)
        indices = subset_indices if indices is None else subset_indices[indices]
        dataset = dataset.dataset
    return dataset, indices


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


def stacked(rows: Any) -> Any:
    """A list of tuples or dictionaries of equally shaped tensors as a ``TensorDataset``; None for others."""
    import torch
    from torch.utils.data import TensorDataset

    if all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        rows = [[row[key] for key in rows[0]] for row in rows]
    columns = list(zip(*rows, strict=False)) if isinstance(rows[0], list | tuple) else []
    if not columns or not all(isinstance(column[0], torch.Tensor | int | float) for column in columns):
        return None
    try:
        return TensorDataset(*(torch.stack([torch.as_tensor(value) for value in column]) for column in columns))
    except (RuntimeError, TypeError):
        return None
