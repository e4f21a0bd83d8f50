"""Whether ``dataset[i]`` reads other records than record i, as augmentation by mosaic, copy-paste and mixup does.

The mistake: a record is in the values of another, and so in two clipped gradients::

    def __getitem__(self, i):
        return 0.5 * self.x[i] + 0.5 * self.x[random.randrange(len(self.x))]

After the training, some records are read again from a copy of the dataset in which all other records have other values,
with the same random numbers.
"""

import contextlib
import copy
import random
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.json_records import Count
from dpspec_recording.watching.memory_rows import dataset_of

RULE = Rule(
    name="mixing-dataset",
    summary="dataset[i] changes if other records of the dataset change",
    why="A record is then in the inputs of others: it changes several contributions, of up to one clip norm each.",
    fix="Compute dataset[i] from record i and public constants; augment within a record.",
    source="https://github.com/ultralytics/yolov5/blob/master/utils/dataloaders.py",
    code="dpspec_recording.observers.sensitivity.mixing_dataset:MixingDataset",
)

#: The number of records that are read again, and the largest numbers of values of a copied array, of nested objects and
#: of their entries.
_READ, _MOST_VALUES, _DEPTH, _MOST_ENTRIES = 6, 2**24, 4, 64

#: The factor of other records' features: a roll of the records keeps their mean and their range.
_SCALE = 1.5


@dataclass(frozen=True, kw_only=True)
class MixingFacts:
    """Records that were read again from the dataset of this class, and those that depend on the values of others."""

    read: Count = 0
    mixed: Count = 0
    dataset: str = ""


class MixingDataset(TrainingRule[MixingFacts]):
    kind = MixingFacts

    def __init__(self) -> None:
        self._loader: Any = None
        self._facts = MixingFacts()

    def start(self, setup: RuleSetup) -> None:
        self._loader = setup.loader

    def stop(self) -> None:
        """Read some records again after the training."""
        from torch.utils.data import ConcatDataset

        loader, self._loader = self._loader, None
        dataset, _ = dataset_of(loader)
        for inner in dataset.datasets if type(dataset) is ConcatDataset else [dataset]:
            with contextlib.suppress(Exception):  # the dataset cannot be copied, or read
                read, mixed = mixed_records(inner)
                if mixed >= self._facts.mixed:
                    self._facts = MixingFacts(read=read, mixed=mixed, dataset=type(inner).__name__[:60])

    def facts(self) -> MixingFacts:
        return self._facts

    @staticmethod
    def caution(facts: MixingFacts, run: RuleRun) -> str:
        if not facts.mixed:
            return ""
        return (
            f"{facts.mixed} of {facts.read} records that were read again from {facts.dataset} have other values if "
            "other records of the dataset change: __getitem__ mixes records, or uses their statistics."
        )


def mixed_records(dataset: Any) -> tuple[int, int]:
    """The number of records that were read again, and of those that depend on the values of other records.

    A table is one of records if most records change with their own rows of it: a public table may have as many rows.
    """
    count, source, moves, reads = len(dataset), random.SystemRandom(), Counter[int](), []
    values_by_id = {id(value): value for value in _parts(dataset, _DEPTH, set())}
    large = {number: value for number, value in values_by_id.items() if _size(value) > _MOST_VALUES}  # are not copied
    tables = {number: value for number, value in values_by_id.items() if number not in large and _rows(value) == count}
    if count < 2 or not tables or hasattr(type(dataset), "__del__"):
        return 0, 0

    def read(index: int, seed: int, changed: Mapping[int, Any]) -> Any:
        import torch

        from dpspec_recording.watching.generators import same_randomness

        copies = {number: _with_rows(values, [*range(count)]) for number, values in tables.items()}
        with same_randomness(torch.device("cpu"), seed):
            return copy.deepcopy(dataset, {**large, **copies, **changed})[index]

    for seed, index in enumerate(source.sample(range(count), min(_READ, count))):
        record, again = (read(index, seed, {}) for _ in range(2))
        if differ(record, again):  # random numbers of other generators
            continue
        reads.append((seed, index, record))
        order = [*range(count)]
        order[index] = (index + source.randrange(1, count)) % count
        for number, values in tables.items():
            moves[number] += differ(record, read(index, seed, {number: _with_rows(values, order)}))
    of_records = {number: values for number, values in tables.items() if 2 * moves[number] >= len(reads) > 0}
    mixed = 0
    for seed, index, record in reads:
        order = [*range(count // 2, count), *range(count // 2)]
        order[index] = index
        changed = {number: _with_rows(values, order, index) for number, values in of_records.items()}
        mixed += differ(record, read(index, seed, changed))
    return (len(reads), mixed) if of_records else (0, 0)


def _parts(value: Any, depth: int, visited: set[int]) -> Iterator[Any]:
    """A value, and its attributes and entries unless they are many."""
    if id(value) in visited:
        return
    visited.add(id(value))
    yield value
    entries = [*value.values()] if isinstance(value, dict) else [*value] if type(value) in (list, tuple) else []
    if not isinstance(value, type | types.ModuleType | types.FunctionType) and not _size(value):
        entries += getattr(value, "__dict__", {}).values()
    if depth and len(entries) <= _MOST_ENTRIES:
        for entry in entries:
            yield from _parts(entry, depth - 1, visited)


def _size(value: Any) -> int:
    """The number of values of a tensor or an array; 0 for others."""
    import numpy as np
    import torch

    return value.numel() if isinstance(value, torch.Tensor) else value.size if isinstance(value, np.ndarray) else 0


def _rows(value: Any) -> int:
    return len(value) if type(value) in (list, tuple) or (_size(value) and value.ndim) else 0


def _with_rows(values: Any, order: list[int], unscaled: int | None = None) -> Any:
    """A copy with the rows in another order. unscaled: the only row whose real numbers are not scaled; None for all."""
    if isinstance(values, list | tuple):
        return type(values)([values[row] for row in order])
    rows = values[order]
    if unscaled is not None and "float" in str(values.dtype):
        rows = rows * _SCALE
        rows[unscaled] = values[unscaled]
    return rows


def differ(first: Any, second: Any) -> bool:
    """Whether two records have different numbers, texts or shapes; values of other types do not count."""
    import numpy as np
    import torch

    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() != second.keys() or any(differ(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) != len(second) or any(map(differ, first, second))
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return not torch.equal(first.nan_to_num(), second.nan_to_num())
    if isinstance(first, np.ndarray | np.generic | int | float | str | bytes):
        return not np.array_equal(first, second, equal_nan=np.asarray(first).dtype.kind == "f")
    return False
