"""The steps of all optimizers of torch in a script."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from dpspec_recording.folder.script_facts import MOST_LISTED, OtherSteps


@dataclass
class Counted:
    """An optimizer that stepped: its class, the ids of its tensors, and the number of its steps."""

    optimizer: ref[Any]
    name: str
    tensors: frozenset[int]
    steps: int = 0


class CountedSteps:
    """Counts steps without keeping the optimizers."""

    def __init__(self) -> None:
        self._by_optimizer: WeakKeyDictionary[Any, Counted] = WeakKeyDictionary()
        self._all: list[Counted] = []

    def add(self, optimizer: Any) -> None:
        counted = self._by_optimizer.get(optimizer)
        if counted is None:
            tensors = frozenset(id(p) for group in optimizer.param_groups for p in group["params"])
            counted = Counted(ref(optimizer), type(optimizer).__name__[:60], tensors)
            self._by_optimizer[optimizer] = counted
            self._all.append(counted)
        counted.steps += 1

    def now(self) -> list[int]:
        """The numbers of steps until now, for :meth:`since`."""
        return [counted.steps for counted in self._all]

    def since(
        self, start: Collection[int], end: Collection[int], private: Iterable[Any], tensors: Collection[int]
    ) -> tuple[OtherSteps, ...]:
        """The steps between two moments.

        Args:
            start, end: Results of :meth:`now`.
            private: The optimizers of private trainings, which are omitted.
            tensors: The ids of the recorded model's tensors.
        """
        omitted = {id(optimizer) for optimizer in private}
        numbers = zip(self._all, end, [*start, *[0] * (len(end) - len(start))], strict=False)
        counts = [
            OtherSteps(optimizer=counted.name, steps=last - first, on_model=not counted.tensors.isdisjoint(tensors))
            for counted, last, first in numbers
            if last > first and id(counted.optimizer()) not in omitted
        ]
        return tuple(sorted(counts, key=lambda step: not step.on_model)[:MOST_LISTED])
