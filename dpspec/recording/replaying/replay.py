"""``dpspec.replay``: a training is set up on neighbouring data sets, and what must not depend on a record is compared.

Noise hides who is in a sum. It does not hide a divisor that counts the records, a clip norm that is a quantile of their
gradients, a mean that was subtracted from all of them: two data sets that differ in one record then differ in every
step, and no bound of DP-SGD holds. One run shows none of that. Two runs on neighbours, with the same coins, do.

If a constant is the same for all neighbours, it is the same for all data sets that single steps lead to. So besides one
neighbour, the even and the odd records are tried: a whole number such as int(rate * records) need not change with one
record, and the largest of many norms is in one of the two halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dpspec.errors import UsageError
from dpspec.recording.replaying.neighbours import Neighbour, counted, length, neighbours_of
from dpspec.recording.replaying.outcome import Difference, Replay
from dpspec.recording.replaying.parts import WEIGHTS, Made, digest
from dpspec.recording.replaying.steps import TOLERANCE, apart, seeded, update

#: How many records are looked at as the script prepares them, and how many are searched for one that moved.
_RECORDS, _SEARCHED = 8, 2000

#: What those are called.
PREPARED = "records as prepared"


def replay(
    make: Callable[[Any], Mapping[str, Any]],
    dataset: Any,
    *,
    record: int = -1,
    replacement: Any = None,
    seed: int = 0,
) -> Replay:
    """Set a training up on ``dataset`` and on neighbours of it, with equal seeds, and compare what must be the same.

    make: given a map-style dataset, returns a mapping of what the script would train with: ``model``, ``optimizer``,
    ``loader`` as ``make_private`` returned them, ``scheduler``; ``loss``, a function of the model and a batch, for the
    step: one number, or the loss of each record, as :meth:`Recorder.score` takes it; ``dataset``, the records as the
    model gets them, where they are not the loader's. Whatever else it names is a constant of the script's own, and is
    compared as it is: ``{"steps": 1000, "clip_norm": 1.0}``.

    dataset: map-style, of three records or more. record: the index of the one that the first neighbour lacks, by
    default the last. replacement: where it is given, no record is removed: the first neighbour has this one in its
    place, and the others in that of all even and all odd ones. seed: what all generators begin at.

    Compared are, where they are there: divisor, clip norm, noise multiplier, learning rate and whatever else the
    optimizer holds, rate and steps of Poisson sampling, the schedule, the layers and initial weights, some records as
    the script prepares them, and one step with the same coins.

    Raises ``UsageError`` for what cannot be compared. What ``make`` raises goes through.
    """
    records = counted(dataset)
    if isinstance(record, bool) or not isinstance(record, int) or not -records <= record < records:
        raise UsageError(f"record must be the index of one of {records} records, got {record!r}")
    neighbours = neighbours_of(dataset, record % records, replacement)
    first = _SetUp(make, dataset, seed)
    told = _Told(first, records, tuple(neighbour.name for neighbour in neighbours))
    for neighbour in neighbours:
        told.beside(_SetUp(make, neighbour.dataset, seed), neighbour)
    return told.outcome()


class _SetUp:
    """A training that was set up with a seed, its constants, and what its coins were at the end of that."""

    def __init__(self, make: Callable[[Any], Mapping[str, Any]], dataset: Any, seed: int) -> None:
        self.seed = seed
        with seeded(seed):
            self.made = Made(make(dataset))
            self.coins = torch.get_rng_state()
        self.constants = self.made.constants()
        self.weights = [p.detach().clone() for p in self.made.parameters()]

    def record(self, index: int, seed: int) -> Any:
        """One record as it is prepared; where chance is part of that, ``seed`` decides it."""
        with seeded(seed):
            return self.made.dataset[index]

    def update(self, weights: Sequence[Tensor], batch: Sequence[Any]) -> Tensor | str:
        """One step from ``weights``, or why there is none."""
        mine = self.made.parameters()
        if [p.shape for p in mine] != [p.shape for p in weights]:
            return "one step: the models are not of one shape"
        with torch.no_grad():
            for p, value in zip(mine, weights, strict=True):
                p.copy_(value)
        return update(self.made, batch, self.seed)


class _Told:
    """What is known so far of the training on all records, and beside it."""

    def __init__(self, first: _SetUp, records: int, neighbours: tuple[str, ...]) -> None:
        self._first, self._records, self._neighbours = first, records, neighbours
        self._compared: dict[str, None] = {}
        self._differences: list[Difference] = []
        self._unseen: dict[str, None] = {}
        there = length(first.made.dataset) if first.made.loss is not None else None
        self._batch = [first.record(index, first.seed) for index in _spread(range(there or 0))]
        self._step = first.update(first.weights, self._batch)

    def outcome(self) -> Replay:
        """All of it."""
        return Replay(
            neighbours=self._neighbours,
            compared=tuple(self._compared),
            differences=tuple(self._differences),
            unseen=tuple(self._unseen),
        )

    def beside(self, other: _SetUp, neighbour: Neighbour) -> None:
        """Compare with the training on one neighbour."""
        self._constants(other, neighbour.name)
        self._records_of(other, neighbour)
        step = other.update(self._first.weights, self._batch)
        if isinstance(self._step, str) or isinstance(step, str):
            self._unseen[self._step if isinstance(self._step, str) else str(step)] = None
            return
        distance = apart(self._step, step)
        moved = "its update" if distance <= TOLERANCE else f"one that is {distance:.3g} of its length away"
        self._compare("one step", neighbour.name, "its update", moved)

    def _constants(self, other: _SetUp, neighbour: str) -> None:
        mine, theirs = self._first.constants, other.constants
        for name in {**mine, **theirs}:
            drawn = name == WEIGHTS and not torch.equal(self._first.coins, other.coins)
            if drawn and mine.get(name) != theirs.get(name):
                self._unseen[f"{name}: make draws more random numbers for some data sets than for others"] = None
            else:
                self._compare(name, neighbour, mine.get(name, "none"), theirs.get(name, "none"))

    def _records_of(self, other: _SetUp, neighbour: Neighbour) -> None:
        """Some records that both data sets hold, as the script prepares them."""
        for one, given in ((self._first, self._records), (other, len(neighbour.dataset))):
            if reason := _unlike(one.made, given):
                self._unseen[f"{PREPARED}: {reason}"] = None
                return
        for index in _spread(list(neighbour.place)):
            seed = self._first.seed + index
            mine = digest(self._first.record(index, seed))
            theirs = digest(other.record(neighbour.place[index], seed))
            searched = range(min(len(neighbour.dataset), _SEARCHED)) if mine != theirs else ()
            if any(digest(other.record(place, seed)) == mine for place in searched):
                self._unseen[f"{PREPARED}: make puts them in another order"] = None
                return
            self._compare(
                PREPARED, neighbour.name, f"record {index} is {mine[:12]}", f"record {index} is {theirs[:12]}"
            )
            if mine != theirs:
                return

    def _compare(self, name: str, neighbour: str, whole: str, other: str) -> None:
        self._compared[name] = None
        if whole != other:
            self._differences.append(Difference(name=name, neighbour=neighbour, whole=whole, other=other))


def _unlike(made: Made, given: int) -> str:
    """Why the records that a training prepared cannot be told to be those that it was given; empty where they can."""
    if made.dataset is None:
        return "make returns no loader, and no dataset"
    kept = length(made.dataset)
    return "" if kept == given else f"make keeps {kept} of {given} records"


def _spread(indices: Sequence[int]) -> Sequence[int]:
    return indices[:: max(1, len(indices) // _RECORDS)][:_RECORDS]
