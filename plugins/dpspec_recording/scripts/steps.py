"""The steps of the optimizers of torch in a script that are not of a private training."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from dpspec_recording.folder.script_facts import MOST_LISTED, OtherSteps
from dpspec_recording.scripts.references import identities


@dataclass
class Counted:
    """An optimizer that stepped: its class, the identities of its tensors, and the number of its steps."""

    name: str
    tensors: dict[int, ref[Any]]
    steps: int = 0


class CountedSteps:
    """Counts steps without keeping the optimizers."""

    def __init__(self) -> None:
        self._by_optimizer: WeakKeyDictionary[Any, Counted] = WeakKeyDictionary()
        self._all: list[Counted] = []

    def add(self, optimizer: Any) -> None:
        counted = self._by_optimizer.get(optimizer)
        if counted is None:
            tensors = identities(p for group in optimizer.param_groups for p in group["params"])
            counted = Counted(type(optimizer).__name__[:60], tensors)
            self._by_optimizer[optimizer] = counted
            self._all.append(counted)
        counted.steps += 1

    def now(self) -> list[int]:
        """The numbers of steps until now, for :meth:`since`."""
        return [counted.steps for counted in self._all]

    def since(self, start: Collection[int], end: Collection[int], tensors: Collection[int]) -> tuple[OtherSteps, ...]:
        """The steps between two moments.

        Args:
            start, end: Results of :meth:`now`.
            tensors: The identities of the recorded model's tensors.
        """
        numbers = zip(self._all, end, [*start, *[0] * (len(end) - len(start))], strict=False)
        counts = [
            OtherSteps(
                optimizer=counted.name, steps=last - first, on_model=not counted.tensors.keys().isdisjoint(tensors)
            )
            for counted, last, first in numbers
            if last > first
        ]
        return tuple(sorted(counts, key=lambda step: not step.on_model)[:MOST_LISTED])
