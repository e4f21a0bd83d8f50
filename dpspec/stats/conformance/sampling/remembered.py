"""Earlier batches, remembered bit by bit, and what each new batch has in common with them.

Up to 256 batches are remembered: the last ones, and some that are spread evenly over the run, so that whatever returns
again and again is met at any distance. Of a run of no more steps than that it is all of them. They take 16 MiB at most;
of more than 65,536 records fewer are remembered.

Where records are allocated to the steps of an epoch, batches of one epoch exclude each other, and only given earlier
epochs is one uniformly random. So batches are compared with those of earlier epochs alone, and an epoch's Q is that of
all its batches, moved together: given the past, moves leave the law of who is in which of its steps as it is. An epoch
counts once, where it is whole. All others are epochs of one step.

For each batch, and for others of its size, Q is the sum over remembered batches s of (c_s - m_s m / n)^2 / v_s: c_s
records in common, m and m_s the sizes, n the records and v_s the variance of c_s, hypergeometric. The others are the
batch itself with its records moved: 16 blocks of floor(n / 16) records, in an order that is drawn once, take each
other's places, around a circle; what is left of the records stays where it is. These 16 moves are a group, so that for
every order a uniformly random batch is as likely as each of the others, and is above all of them with probability 1/16
at most. The order has a seed of its own and touches no other randomness. Below 16 records there are as many moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.stats.conformance.evidence.reported import Closest, TogetherSums
from dpspec.stats.conformance.sampling.joint import log_tail

Array: TypeAlias = npt.NDArray[Any]

#: How many batches, itself included, each one is compared with.
_MOVES = 16

#: Batches that are remembered at most, and the bytes that they take.
_MOST, _ROOM = 256, 2**24

#: Of longer runs every second, third, ... batch is compared with others, so that no more than so many are.
_LOOKED = 2**9

#: Of the draws made here, and of nothing else.
_SEED = 0x0BA7C4E5

#: Rows of bits are added in bytes, so many at a time.
_BYTE = 255


class RememberedBatches:
    """What the batches of a run have in common, phase by phase."""

    def __init__(self, records: int, phases: Sequence[int], among: int = 1, epochs: Sequence[int] = ()) -> None:
        """``phases``: the steps of each. among: how many such memories there are beside each other. epochs: of each
        phase the steps of an epoch within which batches exclude each other; 1 where none is given."""
        self._records, self._ends = records, list(accumulate(phases))
        self._epochs = [*epochs] or [1] * len(self._ends)
        self._room, self._recent, self._apart, self._every = _layout(records, self._ends[-1], among)
        order, block = np.random.default_rng(_SEED).permutation(records), records // (references(records) + 1)
        self._moved = block * (references(records) + 1)
        self._block, self._order = block, order
        self._place = np.empty_like(order)
        self._place[order] = np.arange(records)
        self.restore({})

    def add(self, members: Array) -> None:
        """A step's records, numbers below ``records``, each once, in any order."""
        phase = bisect_right(self._ends, self._steps)
        if phase < len(self._ends):
            begun = self._ends[phase - 1] if phase else 0
            place = (self._steps - begun) % self._epochs[phase]
            if place == 0:
                self._compared, self._squares = 0, np.zeros(1 + references(self._records))
            if 0 < len(members) < self._records:
                self._look(phase, members, self._steps - place)
            if place == self._epochs[phase] - 1 and self._compared:
                itself, *others = self._squares.tolist()
                self._counts[phase][:3] += (1, itself > max(others), itself < min(others))
            self._remember(members)
        self._steps += 1

    def sums(self, phase: int) -> TogetherSums:
        """What is tested of a phase."""
        looked, most, least, pairs = self._counts[phase].tolist()
        return TogetherSums(
            looked=looked,
            references=references(self._records),
            most=most,
            least=least,
            pairs=pairs,
            closest=Closest(*self._closest[phase].tolist()) if pairs else None,
        )

    def _look(self, phase: int, members: Array, begun: int) -> None:
        """``begun``: the number of the epoch's first step."""
        sizes = self._sizes.astype(np.float64)
        variance = sizes * (self._records - sizes)
        there = (variance > 0.0) & (self._when < begun)
        if not there.any():
            return
        size = len(members)
        scale = np.sqrt(variance[there] * size * (self._records - size) / max(1, self._records - 1)) / self._records
        mean = sizes[there] * size / self._records
        compared = begun % self._every == 0
        batches = np.vstack([members, self._others(members)]) if compared else members[None]
        common = self._common(batches)[:, there]
        deviations = (common - mean) / scale
        counts = self._counts[phase]
        counts[3] += there.sum()
        if compared:
            self._squares += np.square(deviations).sum(axis=1)
            self._compared += 1
        slots = np.flatnonzero(there)
        for worst in {int(deviations[0].argmax()), int(deviations[0].argmin())}:
            slot = slots[worst]
            found = (self._steps - self._when[slot], common[0, worst], size, self._sizes[slot])
            if not self._closest[phase][0] or self._surprise(found) < self._surprise(self._closest[phase]):
                self._closest[phase] = found

    def _surprise(self, found: Any) -> float:
        _, common, size, before = map(int, found)
        return log_tail(common, size, before, self._records)

    def _others(self, members: Array) -> Array:
        """(references, members) each move's batch."""
        places = self._place[members]
        by = self._block * np.arange(1, references(self._records) + 1)[:, None]
        found: Array = self._order[np.where(places < self._moved, (places + by) % self._moved, places)]
        return found

    def _common(self, members: Array) -> Array:
        """(b, room) how many records of each batch of (b, members) each remembered one holds."""
        found: Array = np.zeros((len(members), self._room), dtype=np.int64)
        for start in range(0, members.shape[1], _BYTE):
            found += np.add.reduce(self._bits[members[:, start : start + _BYTE]], axis=1, dtype=np.uint8)
        return found

    def _remember(self, members: Array) -> None:
        slots = [self._steps % self._recent]
        if self._recent < self._room and self._steps % self._apart == 0:
            slots.append(self._recent + self._steps // self._apart)
        for slot in slots:
            self._bits[self._members[slot], slot] = 0
            self._bits[members, slot] = 1
            self._members[slot] = members.astype(np.int32)
            self._sizes[slot], self._when[slot] = len(members), self._steps

    def state(self) -> Mapping[str, Array]:
        """All of it, as arrays."""
        return {
            "steps": np.array(self._steps),
            "bits": np.packbits(self._bits, axis=0),
            "sizes": self._sizes.copy(),
            "when": self._when.copy(),
            "counts": self._counts.copy(),
            "compared": np.array(self._compared),
            "squares": self._squares.copy(),
            "closest": self._closest.copy(),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from there; an empty memory begins anew."""
        phases = len(self._ends)
        self._steps = int(state.get("steps", 0))
        self._bits = np.zeros((self._records, self._room), dtype=np.uint8)
        self._members = [np.zeros(0, dtype=np.int32)] * self._room
        if "bits" in state:
            self._bits = np.unpackbits(state["bits"], axis=0, count=self._records)
            self._members = [np.flatnonzero(column).astype(np.int32) for column in self._bits.T]
        self._sizes = np.array(state.get("sizes", np.zeros(self._room)), dtype=np.int64)
        self._when = np.array(state.get("when", np.zeros(self._room)), dtype=np.int64)
        self._compared = int(state.get("compared", 0))
        self._squares = np.array(state.get("squares", np.zeros(1 + references(self._records))))
        self._counts = np.array(state.get("counts", np.zeros((phases, 4))), dtype=np.int64)
        self._closest = np.array(state.get("closest", np.zeros((phases, 4))), dtype=np.int64)


def references(records: int) -> int:
    """How many others each batch is compared with."""
    return max(1, min(_MOVES, records) - 1)


def foreseen(records: int, phases: Sequence[int], epochs: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Per phase: how many epochs are compared with others, and how many pairs of batches there are; none is empty."""
    room, recent, apart, every = _layout(records, sum(phases))
    found, start = [], 0
    for steps, epoch in zip(phases, epochs or [1] * len(phases), strict=True):
        step = np.arange(start, start + steps)
        begun = step - (step - start) % epoch
        last = np.maximum(0, begun - np.maximum(0, step - recent))
        others = -(-begun // apart) if recent < room else np.zeros_like(begun)
        looked = int(((last + others > 0) & (begun % every == 0))[::epoch].sum())
        found.append((looked, int((last + others).sum())))
        start += steps
    return found


def _layout(records: int, total: int, among: int = 1) -> tuple[int, int, int, int]:
    """How many batches are remembered, how many of these are the last ones; how many steps lie between two of the
    others, and between two that are compared with others."""
    room = max(2, min(_MOST, _ROOM // among // records, total))
    recent = room if total <= room else room // 2
    return room, recent, max(1, -(-total // max(1, room - recent))), max(1, -(-total // _LOOKED))


class Numbered:
    """Numbers 0..records-1 for records whose own numbers have gaps that nobody knows: drawn when one first appears.

    Records that never appeared are alike, and the numbers that are left are in random order: a batch that is a
    uniformly random set of records is one of numbers, given the past.
    """

    def __init__(self, records: int, places: int) -> None:
        self._free = np.random.default_rng((_SEED, 1)).permutation(records)
        self._number = np.full(places, -1, dtype=np.int64)
        self._taken = 0

    def of(self, members: Array) -> Array | None:
        """Of records, each once; None where more appear than there are."""
        new = members[self._number[members] < 0]
        if self._taken + len(new) > len(self._free):
            return None
        self._number[new] = self._free[self._taken : self._taken + len(new)]
        self._taken += len(new)
        found: Array = self._number[members]
        return found
