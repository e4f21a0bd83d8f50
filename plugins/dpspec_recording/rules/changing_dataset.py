"""Whether the values of the dataset's records change during the training.

The mistake: pseudo-labels from a clustering of all records, so that a record changes the labels of others::

    for epoch in range(epochs):
        data.labels = kmeans(model.features(x))

Some rows of each array or list with a value for each record are compared at the beginning and at the end. A cache that
``dataset[i]`` fills does not count: the records are read again from a copy of the dataset with the first rows, and
a cache then gets the same values.
"""

import contextlib
import math
import random
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.json_records import Count
from dpspec_recording.rules.mixing_dataset import copied, datasets_of, distance, has_records, restored_generators

RULE = Rule(
    name="changing-dataset",
    summary="labels, weights or features that the dataset holds changed during the training",
    why="Pseudo-labels, losses or predictions that are computed from all records let a record change others.",
    fix="Compute them from public data, or for each record alone by the noisy model; otherwise account for them.",
    code="dpspec_recording.rules.changing_dataset:ChangingDataset",
)

#: The largest numbers of compared rows and of attributes, and of nested objects.
_MOST_ROWS, _MOST_ATTRIBUTES, _DEPTH = 256, 32, 3

#: The number of changed rows that are read again.
_READ = 16


@dataclass(frozen=True, kw_only=True)
class ChangedValues:
    """The first changed attribute, and the number of its rows that were compared and of those that changed."""

    attribute: str = ""
    compared: Count = 0
    changed: Count = 0


class ChangingDataset(TrainingRule[ChangedValues]):
    kind = ChangedValues

    def __init__(self) -> None:
        self._datasets: list[Any] = []
        #: For each dataset, by the path of an attribute, its compared rows by number.
        self._first: list[dict[str, dict[int, Any]]] = []
        self._facts = ChangedValues()

    def start(self, setup: RuleSetup) -> None:
        """Copy some rows of each attribute."""
        source = random.SystemRandom()
        with contextlib.suppress(Exception):  # the dataset cannot be read
            for dataset in datasets_of(setup.loader):
                count = len(dataset)
                sample = source.sample(range(count), min(count, _MOST_ROWS))
                rows = {path: _copied_rows(values, sample) for path, values in _attributes(dataset)}
                self._datasets.append(dataset)
                self._first.append(rows)

    def stop(self) -> None:
        """Compare them with the rows after the training."""
        datasets, self._datasets = self._datasets, []
        for dataset, first in zip(datasets, self._first, strict=False):
            with contextlib.suppress(Exception):
                after = dict(_attributes(dataset))
                for path, rows in first.items():
                    changed = _changed_rows(rows, after.get(path))
                    if changed and not self._facts.changed and not _is_cache(dataset, path, first, changed):
                        self._facts = ChangedValues(
                            attribute=f"{type(dataset).__name__}.{path}"[:80], compared=len(rows), changed=len(changed)
                        )
        self._first = []

    def facts(self) -> ChangedValues:
        return self._facts

    @staticmethod
    def caution(facts: ChangedValues, run: RuleRun) -> str:
        if not facts.changed:
            return ""
        return (
            f"{facts.changed} of {facts.compared} compared rows of {facts.attribute} have other values after the "
            "training than before: were they computed from the records, as pseudo-labels, predictions or losses are?"
        )


def _attributes(dataset: Any) -> list[tuple[str, Any]]:
    """The paths and values of arrays and lists with a value for each record."""
    visited: set[int] = set()
    return [*_walk(dataset, "records", len(dataset), _DEPTH, visited)][:_MOST_ATTRIBUTES]


def _walk(value: Any, path: str, count: int, depth: int, visited: set[int]) -> Iterator[tuple[str, Any]]:
    if has_records(value, count):
        yield path, value
    elif depth and id(value) not in visited:
        visited.add(id(value))
        if type(value) in (list, tuple):
            for number, entry in enumerate(value[:_MOST_ATTRIBUTES]):
                yield from _walk(entry, f"{path}[{number}]", count, depth - 1, visited)
        elif isinstance(value, dict):
            for key, entry in [*value.items()][:_MOST_ATTRIBUTES]:
                yield from _walk(entry, f"{path}[{key!r}]", count, depth - 1, visited)
        elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType | types.FunctionType):
            prefix = "" if path == "records" else f"{path}."
            for name, entry in vars(value).items():
                yield from _walk(entry, f"{prefix}{name}", count, depth - 1, visited)


def _copied_rows(values: Any, sample: list[int]) -> dict[int, Any]:
    """By number, copies of the values of some records."""
    import torch

    if type(values) is torch.Tensor and values.layout == torch.strided:
        return dict(zip(sample, values.detach()[sample].unbind(), strict=True))
    return {row: _entry(values[row]) for row in sample}


def _entry(value: Any) -> Any:
    """A copy of the value of a record; objects that are not arrays stay."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list | tuple):
        return [_entry(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _entry(entry) for key, entry in value.items()}
    return value


def _changed_rows(rows: dict[int, Any], after: Any) -> list[int]:
    """The rows that have other values; an attribute that was removed has none."""
    if after is None:
        return []
    count = len(after)
    return [
        row for row, value in rows.items() if (row >= count or _differ(value, after[row])) and not _is_missing(value)
    ]


def _differ(first: Any, second: Any) -> bool:
    return (first is None) is not (second is None) or distance(first, second) > 0.0


def _is_missing(value: Any) -> bool:
    """Whether the value of a record is None or not a number: it was not computed yet."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and bool(value.isnan().all())
    is_number = isinstance(value, float) or getattr(getattr(value, "dtype", None), "kind", "") == "f"
    return value is None or (is_number and all(math.isnan(number) for number in getattr(value, "flat", [value])))


def _is_cache(dataset: Any, path: str, first: dict[str, dict[int, Any]], changed: list[int]) -> bool:
    """Whether reading the records gives these rows the values that they have, in a copy with all first rows."""
    values, read = dict(_attributes(dataset)), changed[:_READ]

    def with_first_rows(table: Any, is_table: bool) -> Any:
        name = next((name for name, current in values.items() if current is table), "") if is_table else ""
        if name not in first:
            return table
        restored = _writable(table)
        for row in read:
            restored[row] = _like(first[name][row], table[row])
        return restored

    with contextlib.suppress(Exception), restored_generators():
        clone = copied(dataset, len(dataset), with_first_rows)
        for row in read:
            clone[row]
        filled = dict(_attributes(clone))[path]
        return not any(_differ(values[path][row], filled[row]) for row in read)
    return False


def _writable(table: Any) -> Any:
    import torch

    return table.detach().clone() if isinstance(table, torch.Tensor) else table.copy()


def _like(value: Any, current: Any) -> Any:
    return tuple(value) if isinstance(current, tuple) else value
