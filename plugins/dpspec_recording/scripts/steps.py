"""The steps of the optimizers of torch in a script that are not of a private training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

from dpspec_recording.folder.script_facts import MOST_LISTED, OtherSteps
from dpspec_recording.scripts.references import identities

#: The largest number of changes of an optimizer's loops that are kept.
_MOST_LOOPS = 100


@dataclass
class Counted:
    """An optimizer that stepped.

    Attributes:
        name: Its class.
        tensors: The identities of its tensors.
        steps: The number of its steps.
        loops: For each change of the loaders around its steps, the number of steps before, and the datasets from then.
    """

    name: str
    tensors: dict[int, ref[Any]]
    steps: int = 0
    loops: list[tuple[int, dict[int, Callable[[], Any]]]] = field(default_factory=list)

    def step(self, datasets: Sequence[Callable[[], Any]]) -> None:
        """Count a step. datasets: references to the datasets of the loaders that are iterated now."""
        around = {id(dataset()): dataset for dataset in datasets}
        if not self.loops or self.loops[-1][1].keys() != around.keys():
            self.loops.append((self.steps, around if len(self.loops) < _MOST_LOOPS else {}))
            del self.loops[_MOST_LOOPS + 1 :]
        self.steps += 1

    def datasets(self, first: int, last: int) -> tuple[list[Callable[[], Any]], bool]:
        """The datasets around the steps after the first number of steps, and whether each step had one."""
        ends = [*(start for start, _ in self.loops[1:]), self.steps]
        segments = zip(self.loops, ends, strict=True)
        around = [datasets for (start, datasets), end in segments if start < last and end > first]
        return [dataset for datasets in around for dataset in datasets.values()], all(around)


class CountedSteps:
    """Counts steps without keeping the optimizers."""

    def __init__(self) -> None:
        self._by_optimizer: WeakKeyDictionary[Any, Counted] = WeakKeyDictionary()
        self._all: list[Counted] = []

    def add(self, optimizer: Any, datasets: Sequence[Callable[[], Any]] = ()) -> None:
        """Count a step. datasets: references to the datasets of the loaders that are iterated now."""
        counted = self._by_optimizer.get(optimizer)
        if counted is None:
            tensors = identities(p for group in optimizer.param_groups for p in group["params"])
            counted = Counted(type(optimizer).__name__[:60], tensors)
            self._by_optimizer[optimizer] = counted
            self._all.append(counted)
        counted.step(datasets)

    def now(self) -> list[int]:
        """The numbers of steps until now, for :meth:`since`."""
        return [counted.steps for counted in self._all]

    def since(
        self, start: Collection[int], end: Collection[int], tensors: Collection[int], records: Any
    ) -> tuple[OtherSteps, ...]:
        """The steps between two moments.

        Args:
            start, end: Results of :meth:`now`.
            tensors: The identities of the recorded model's tensors.
            records: The dataset of the recorded training; None if it is gone.
        """
        from dpspec_recording.observers.released_model.trained_before import common_records

        numbers = zip(self._all, end, [*start, *[0] * (len(end) - len(start))], strict=False)
        counts = [
            OtherSteps(
                optimizer=counted.name,
                steps=last - first,
                on_model=not counted.tensors.keys().isdisjoint(tensors),
                common=common_records(*counted.datasets(first, last), records),
            )
            for counted, last, first in numbers
            if last > first
        ]
        return tuple(sorted(counts, key=lambda step: not step.on_model)[:MOST_LISTED])
