"""Whether canaries can stand in a batch with records: tried when they are planted, and not in the middle of training.

A loader puts records together by its ``collate_fn``. A batch with a canary, before a record and behind it, has to come
out as one of records alone does: the same parts, types and numbers of axes; how long an axis is a loader that pads
decides. Torch's own way stacks tensors of any type, so that a canary of float64 would make a whole batch float64, and
only the model would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate

from dpspec.errors import UsageError
from dpspec.text import shortened

#: Puts a list of records together, as a loader's ``collate_fn``.
Collate: TypeAlias = Callable[[list[Any]], Any]


def require_alike(dataset: Any, canaries: Sequence[Any], collate: Collate | None) -> None:
    """Raise ``UsageError`` that names the first canary that makes no batch with the data set's first record.

    collate: the loader's own; None for torch's ``default_collate``, and then nothing is required where not even two
    records make a batch by it, as the loader must have another one. One canary of each form is tried.
    """
    record = dataset[0]
    put = collate or default_collate
    try:
        expected = form(put([record, dataset[len(dataset) - 1]]), sizes=False)
    except Exception as error:
        if collate is None:
            return
        raise UsageError(f"collate cannot put two records of the data set together: {_why(error)}") from error
    tried: set[str] = set()
    for number, canary in enumerate(canaries):
        looks = form(canary)
        if looks in tried:
            continue
        tried.add(looks)
        for batch in ([record, canary], [canary, record]):
            try:
                found = form(put(batch), sizes=False)
            except Exception as error:
                raise _unlike(number, looks, record, collate, _why(error)) from error
            if found != expected:
                raise _unlike(number, looks, record, collate, f"the batch is {found}, and one of records {expected}")


def form(value: Any, *, sizes: bool = True) -> str:
    """Types and shapes of a record or of a batch, in words: ``(float32 [5], int)``; ``sizes``: of each axis, or only
    how many there are."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        kind = f"{'' if isinstance(value, Tensor) else 'numpy '}{str(value.dtype).removeprefix('torch.')}"
        return f"{kind} {list(value.shape)}" if sizes else f"{kind} of {value.ndim} axes"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {form(part, sizes=sizes)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(form(part, sizes=sizes) for part in value) + ")"
    return type(value).__name__


def _unlike(number: int, looks: str, record: Any, collate: Collate | None, why: str) -> UsageError:
    other = "" if collate is not None else ", or give collate=, if the loader has a collate_fn of its own"
    return UsageError(
        f"canary {number} makes no batch with records of the data set: it is {shortened(looks, 200)}, a record is "
        f"{shortened(form(record), 200)} ({why}); make it of the same parts, types and shapes{other}"
    )


def _why(error: Exception) -> str:
    return shortened(f"{type(error).__name__}: {error}".splitlines()[0], 160)
