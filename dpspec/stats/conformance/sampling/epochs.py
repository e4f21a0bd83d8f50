"""Shuffled batches: is every record drawn once an epoch, and is each epoch's order a new one?

Every epoch takes all N records in a new random order, b at a time, so that it has m = ceil(N / b) batches, the last of
them with the N - (m - 1) b that are left. Sizes are exact then, and no record is drawn again before its epoch ends:
with the sizes right that is to say that each is drawn once. Given all earlier epochs, a batch is a uniformly random set
of its size, so that what it has in common with one of their batches is hypergeometric (``joint.closest``). Batches of
one epoch have nothing in common, and are not compared.

What is not seen: an order that follows from those before in a way that leaves its batches no more alike than chance
does, and one that returns after more than four epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.stats.conformance.evidence.reported import Closest, TogetherSums
from dpspec.stats.conformance.sampling.joint import log_tail

Array: TypeAlias = npt.NDArray[Any]

#: So many epochs are remembered, the last ones.
_REMEMBERED = 4


def batches_of_epoch(records: int, batch_size: int) -> int:
    """m = ceil(records / batch_size)."""
    return -(-records // batch_size)


def sizes_of(records: int, batch_size: int, steps: int) -> tuple[int, int]:
    """The sum of the sizes of the first ``steps`` batches, and the sum of their squares."""
    batches = batches_of_epoch(records, batch_size)
    last = records - (batches - 1) * batch_size
    epochs, rest = divmod(steps, batches)
    squares = epochs * ((batches - 1) * batch_size**2 + last**2) + rest * batch_size**2
    return epochs * records + rest * batch_size, squares


def pairs_of(records: int, batch_size: int, steps: int) -> int:
    """How many pairs of batches of different epochs are compared in so many steps; 0 where a batch is all records."""
    batches = batches_of_epoch(records, batch_size)
    if batches == 1:
        return 0
    epochs, rest = divmod(steps, batches)
    full = sum(min(number, _REMEMBERED) for number in range(min(epochs, _REMEMBERED)))
    full += max(0, epochs - _REMEMBERED) * _REMEMBERED
    return batches * (batches * full + rest * min(epochs, _REMEMBERED))


class EpochLog:
    """What the batches of a phase show of its epochs.

    early: how often a record was drawn that had been drawn in this epoch already. pairs: how many pairs of batches of
    different epochs were compared; closest: the two that have the most in common.
    """

    early: int
    pairs: int
    closest: Closest | None

    def __init__(self, records: int, batch_size: int) -> None:
        self._records, self._batches = records, batches_of_epoch(records, batch_size)
        self.restore({})

    def add(self, members: Array) -> None:
        """A step's records, numbers below ``records``, each once."""
        self.early += int((self._place[members] >= 0).sum())
        if 0 < len(members) < self._records:
            for back, earlier in enumerate(reversed(self._earlier), start=1):
                self._compare(members, earlier, back)
        self._place[members] = self._step
        self._step += 1
        if self._step == self._batches:
            self._earlier.append(self._with_sizes(self._place))
            self._begin()

    def sums(self) -> TogetherSums:
        """What is tested of pairs."""
        return TogetherSums(looked=0, references=1, most=0, least=0, pairs=self.pairs, closest=self.closest)

    def _begin(self) -> None:
        self._place, self._step = np.full(self._records, -1, dtype=np.int64), 0

    def _with_sizes(self, place: Array) -> tuple[Array, Array]:
        """An epoch's batch of each record, -1 for none, and how many records each batch held."""
        return place, np.bincount(place + 1, minlength=self._batches + 1)[1:]

    def _compare(self, members: Array, earlier: tuple[Array, Array], back: int) -> None:
        """With each batch of an epoch so many before: the most in common, and for each size of the earlier ones."""
        place, held = earlier
        common = np.bincount(place[members] + 1, minlength=self._batches + 1)[1:]
        there = (held > 0) & (held < self._records)
        self.pairs += int(there.sum())
        for size in np.unique(held[there]).tolist():
            at = int(np.argmax(np.where(held == size, common, -1)))
            lag = back * self._batches + self._step - at
            found = Closest(lag, int(common[at]), len(members), size)
            if self.closest is None or self._surprise(found) < self._surprise(self.closest):
                self.closest = found

    def _surprise(self, found: Closest) -> float:
        """ln of the tail; 0 below the mean, as nothing is made of too little in common."""
        if found.common * self._records <= found.size * found.before:
            return 0.0
        return log_tail(found.common, found.size, found.before, self._records)

    def state(self) -> Mapping[str, Array]:
        """All of it, as arrays."""
        return {
            "place": self._place.copy(),
            "earlier": np.array([place for place, _ in self._earlier], dtype=np.int64).reshape(-1, self._records),
            "counts": np.array([self._step, self.early, self.pairs], dtype=np.int64),
            "closest": np.array(astuple(self.closest) if self.closest else (), dtype=np.int64),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from there; an empty memory begins anew."""
        self._begin()
        kept = (self._with_sizes(place) for place in state.get("earlier", ()))
        self._earlier: deque[tuple[Array, Array]] = deque(kept, maxlen=_REMEMBERED)
        self.early, self.pairs, self.closest = 0, 0, None
        if state:
            found = [int(n) for n in state["closest"]]
            self.closest = Closest(*found) if found else None
            self._place = np.array(state["place"], dtype=np.int64)
            self._step, self.early, self.pairs = (int(n) for n in state["counts"])
