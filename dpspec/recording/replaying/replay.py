"""``dpspec.replay``: the comparison of values that must not depend on a record, on neighboring datasets.

Noise does not hide a divisor that counts the records, a clip norm that is a quantile of their gradients, or a mean that
was subtracted from all records. Two runs on neighbors with the same random numbers show such a dependence. The even and
the odd records are compared as well: int(rate * records) need not change with one record, and the largest of many norms
is in one of the two halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from dpspec.errors import UsageError
from dpspec.recording.replaying.made import TOLERANCE, WEIGHTS, SetUp, apart, digest
from dpspec.text import plain

#: The numbers of prepared records that are compared, and that are searched for one that moved.
_RECORDS, _SEARCHED = 8, 2000

#: The name of these records in the outcome.
PREPARED = "records as prepared"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that depends on the records: ``whole`` on all records, ``other`` on ``neighbour``."""

    name: str
    neighbour: str
    whole: str
    other: str


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The outcome of :func:`dpspec.replay`.

    Attributes:
        neighbours: The names of the neighboring datasets.
        compared: The names of the compared values.
        differences: Those that differ. Their values may depend on single records.
        unseen: The values that were not compared, with the reason.
    """

    neighbours: tuple[str, ...]
    compared: tuple[str, ...]
    differences: tuple[Difference, ...]
    unseen: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether values were compared and none differs; other neighbors and ``unseen`` values may differ."""
        return bool(self.compared) and not self.differences

    def require_same(self) -> None:
        """Raise ``AssertionError`` with the whole outcome unless :attr:`same`."""
        if not self.same:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        moved = dict.fromkeys(one.name for one in self.differences)
        still = [name for name in self.compared if name not in moved]
        lines = [
            f"{one.name} depends on the records: {one.whole} on all records, {one.other} on {one.neighbour}"
            for one in self.differences
        ]
        if still:
            lines.append(f"the same on all records, {', '.join(self.neighbours)}: {', '.join(still)}")
        lines += [f"not compared: {reason}" for reason in self.unseen]
        return "\n".join(map(plain, lines)) or "nothing was compared"


def replay(
    make: Callable[[Any], Mapping[str, Any]],
    dataset: Any,
    *,
    record: int = -1,
    replacement: Any = None,
    seed: int = 0,
) -> Replay:
    """Set a training up on ``dataset`` and on its neighbors, with equal seeds, and compare all constants.

    Compared are divisor, clip norm, noise multiplier, options of the optimizer, rate and steps of Poisson sampling, the
    schedule, the layers and initial weights, some prepared records, and one step with the same random numbers.

    Args:
        make: A function of a map-style dataset that returns a mapping of parts: ``model``, ``optimizer``, ``loader`` as
            ``make_private`` returned them; ``scheduler``; ``loss``, a function of the model and a batch that returns
            one number or the loss of each record; ``dataset``, the prepared records if they are not the loader's. All
            other entries are constants of the script, such as ``{"steps": 1000}``.
        dataset: A map-style dataset of three records or more.
        record: The index of the record that the first neighbor lacks.
        replacement: A record that neighbors have in the place of removed ones.
        seed: For all generators.

    Raises:
        UsageError: A part cannot be compared. Errors of ``make`` pass through.
    """
    records = length(dataset)
    if records is None:
        raise UsageError(f"dataset must be map-style, with a length, got {type(dataset).__name__}")
    if records < 3:
        raise UsageError(f"dataset must have three records or more, got {records}")
    if isinstance(record, bool) or not isinstance(record, int) or not -records <= record < records:
        raise UsageError(f"record must be the index of one of {records} records, got {record!r}")
    neighbors = neighbors_of(dataset, record % records, replacement)
    first = SetUp(make, dataset, seed)
    comparison = _Comparison(first, records)
    for neighbor in neighbors:
        comparison.add(SetUp(make, neighbor.dataset, seed), neighbor)
    return Replay(
        neighbours=tuple(neighbor.name for neighbor in neighbors),
        compared=tuple(comparison.compared),
        differences=tuple(comparison.differences),
        unseen=tuple(comparison.unseen),
    )


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
    names = [f"those without record {record}", "the even ones", "the odd ones"]
    if replacement is not None:
        names = [f"those with another record {record}", *(f"{name} and replacements" for name in names[1:])]
    found = []
    for name, out in zip(names, ([record], every[1::2], every[0::2]), strict=True):
        gone = set(out)
        kept = [index for index in every if index not in gone]
        if replacement is None:
            found.append(Neighbor(name, _some(dataset, kept), {index: number for number, index in enumerate(kept)}))
        else:
            found.append(Neighbor(name, _replaced(dataset, list(out), replacement), {index: index for index in kept}))
    return found


def _some(dataset: Any, kept: list[int]) -> Any:
    if type(dataset) is TensorDataset:
        return TensorDataset(*(tensor[kept] for tensor in dataset.tensors))
    if isinstance(dataset, Tensor | np.ndarray):
        return dataset[kept]
    return [dataset[index] for index in kept] if isinstance(dataset, list) else Subset(dataset, kept)


def _replaced(dataset: Any, places: list[int], replacement: Any) -> Any:
    if type(dataset) is TensorDataset:
        pairs = zip(dataset.tensors, replacement, strict=True)
        return TensorDataset(*(_replaced(tensor, places, value) for tensor, value in pairs))
    if isinstance(dataset, Tensor | np.ndarray):
        rows: Any = dataset.clone() if isinstance(dataset, Tensor) else dataset.copy()
        rows[places] = replacement
        return rows
    gone = set(places)
    if isinstance(dataset, list):
        return [replacement if index in gone else one for index, one in enumerate(dataset)]
    size, more = len(dataset), cast("Dataset[Any]", [replacement])
    return Subset(ConcatDataset([dataset, more]), [size if n in gone else n for n in range(size)])


def length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


class _Comparison:
    def __init__(self, first: SetUp, records: int) -> None:
        self._first, self._records = first, records
        self.compared: dict[str, None] = {}
        self.differences: list[Difference] = []
        self.unseen: dict[str, None] = {}
        there = length(first.dataset) if first.loss is not None else None
        self._batch = [first.record(index, first.seed) for index in _spread(range(there or 0))]
        self._step = first.update(first.weights, self._batch)

    def add(self, other: SetUp, neighbor: Neighbor) -> None:
        """Compare with the training on one neighbor."""
        self._constants(other, neighbor.name)
        self._prepared(other, neighbor)
        step = other.update(self._first.weights, self._batch)
        if isinstance(self._step, str) or isinstance(step, str):
            self.unseen[self._step if isinstance(self._step, str) else str(step)] = None
            return
        distance = apart(self._step, step)
        moved = "its update" if distance <= TOLERANCE else f"one that is {distance:.3g} of its length away"
        self._compare("one step", neighbor.name, "its update", moved)

    def _constants(self, other: SetUp, neighbor: str) -> None:
        mine, theirs = self._first.constants, other.constants
        for name in {**mine, **theirs}:
            drawn = name == WEIGHTS and not torch.equal(self._first.generator, other.generator)
            if drawn and mine.get(name) != theirs.get(name):
                self.unseen[f"{name}: make draws more random numbers for some datasets than for others"] = None
            else:
                self._compare(name, neighbor, mine.get(name, "none"), theirs.get(name, "none"))

    def _prepared(self, other: SetUp, neighbor: Neighbor) -> None:
        for one, given in ((self._first, self._records), (other, len(neighbor.dataset))):
            if one.dataset is None:
                self.unseen[f"{PREPARED}: make returns no loader, and no dataset"] = None
                return
            if (kept := length(one.dataset)) != given:
                self.unseen[f"{PREPARED}: make keeps {kept} of {given} records"] = None
                return
        for index in _spread(list(neighbor.place)):
            seed = self._first.seed + index
            mine = digest(self._first.record(index, seed))
            theirs = digest(other.record(neighbor.place[index], seed))
            searched = range(min(len(neighbor.dataset), _SEARCHED)) if mine != theirs else ()
            if any(digest(other.record(place, seed)) == mine for place in searched):
                self.unseen[f"{PREPARED}: make puts them in another order"] = None
                return
            self._compare(PREPARED, neighbor.name, f"record {index} is {mine[:12]}", f"record {index} is {theirs[:12]}")
            if mine != theirs:
                return

    def _compare(self, name: str, neighbor: str, whole: str, other: str) -> None:
        self.compared[name] = None
        if whole != other:
            self.differences.append(Difference(name=name, neighbour=neighbor, whole=whole, other=other))


def _spread(indices: Sequence[int]) -> Sequence[int]:
    return indices[:: max(1, len(indices) // _RECORDS)][:_RECORDS]
