"""Earlier batches, remembered bit by bit, and what each new batch has in common with them.

Up to 256 batches are remembered: the last ones, and some that are spread evenly over the run, so that whatever returns
again and again is met at any distance. Of a run of no more steps than that it is all of them. They take 16 MiB at most;
of more than 65,536 records fewer are remembered.

For each batch, and for random ones of its size, Q is the sum over remembered batches s of (c_s - m_s m / n)^2 / v_s:
c_s records in common, m and m_s the sizes, n the records and v_s the variance of c_s, hypergeometric. Random ones are
the batch itself with its records moved: they stand in a circle, in an order that is drawn once, and all go on by the
same number of places, which is drawn anew. These draws have a seed of their own and touch no other randomness; that of
step t depends on t alone, so that a run that is resumed goes on to the bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.stats.conformance.evidence.reported import Closest, TogetherSums
from dpspec.stats.conformance.sampling.joint import log_tail

Array: TypeAlias = npt.NDArray[Any]

#: Random batches that each one is compared with.
REFERENCES = 15

#: Batches that are remembered at most, and the bytes that they take.
_MOST, _ROOM = 256, 2**24

#: Of longer runs every second, third, ... batch is compared, so that about so many are at most.
_LOOKED = 2**14

#: Of the draws made here, and of nothing else.
_SEED = 0x0BA7C4E5

#: Rows of bits are added in bytes, so many at a time.
_BYTE = 255


class RememberedBatches:
    """What the batches of a run have in common, phase by phase."""

    def __init__(self, records: int, phases: Sequence[int], among: int = 1) -> None:
        """``phases``: the steps of each. among: how many such memories there are beside each other."""
        self._records, self._ends = records, list(accumulate(phases))
        self._room, self._recent, self._apart, self._every = _layout(records, self._ends[-1], among)
        self._order = np.random.default_rng(_SEED).permutation(records)
        self._place = np.empty_like(self._order)
        self._place[self._order] = np.arange(records)
        self.restore({})

    def add(self, members: Array) -> None:
        """A step's records, each once, in any order; raises ``IndexError`` where there are none such."""
        phase = bisect_right(self._ends, self._steps)
        if phase < len(self._ends):
            if self._steps % self._every == 0 and 0 < len(members) < self._records:
                self._look(phase, members)
            self._remember(members)
        self._steps += 1

    def sums(self, phase: int) -> TogetherSums:
        """What is tested of a phase."""
        looked, most, least, pairs = self._counts[phase].tolist()
        return TogetherSums(
            looked=looked,
            references=REFERENCES,
            most=most,
            least=least,
            pairs=pairs,
            closest=Closest(*self._closest[phase].tolist()) if pairs else None,
        )

    def _look(self, phase: int, members: Array) -> None:
        sizes = self._sizes.astype(np.float64)
        variance = sizes * (self._records - sizes)
        there = variance > 0.0
        if not there.any():
            return
        size = len(members)
        scale = np.sqrt(variance[there] * size * (self._records - size) / max(1, self._records - 1)) / self._records
        mean = sizes[there] * size / self._records
        common = self._common(members)[there]
        deviations = (common - mean) / scale
        itself = float(np.square(deviations).sum())
        others = [float(np.square((self._common(moved)[there] - mean) / scale).sum()) for moved in self._moved(members)]
        counts = self._counts[phase]
        counts += (1, itself > max(others), itself < min(others), int(there.sum()))
        slots = np.flatnonzero(there)
        for worst in {int(deviations.argmax()), int(deviations.argmin())}:
            slot = slots[worst]
            found = (self._steps - self._when[slot], common[worst], size, self._sizes[slot])
            if not self._closest[phase][0] or self._surprise(found) < self._surprise(self._closest[phase]):
                self._closest[phase] = found

    def _surprise(self, found: Any) -> float:
        _, common, size, before = map(int, found)
        return log_tail(common, size, before, self._records)

    def _moved(self, members: Array) -> Iterator[Array]:
        steps = np.random.default_rng((_SEED, self._steps + 1)).integers(self._records, size=REFERENCES)
        places = self._place[members]
        for by in steps.tolist():
            yield self._order[(places + by) % self._records]

    def _common(self, members: Array) -> Array:
        """(room,) how many of them each remembered batch holds."""
        rows = self._bits[members]
        found: Array = np.zeros(self._room, dtype=np.int64)
        for start in range(0, len(rows), _BYTE):
            found += np.add.reduce(rows[start : start + _BYTE], axis=0, dtype=np.uint8)
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
            "closest": self._closest.copy(),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from there; an empty memory begins anew."""
        phases = len(self._ends)
        self._steps = int(state.get("steps", 0))
        none = np.zeros((-(-self._records // 8), self._room), dtype=np.uint8)
        self._bits = np.unpackbits(state.get("bits", none), axis=0, count=self._records)
        self._members = [np.flatnonzero(column).astype(np.int32) for column in self._bits.T]
        self._sizes = np.array(state.get("sizes", np.zeros(self._room)), dtype=np.int64)
        self._when = np.array(state.get("when", np.zeros(self._room)), dtype=np.int64)
        self._counts = np.array(state.get("counts", np.zeros((phases, 4))), dtype=np.int64)
        self._closest = np.array(state.get("closest", np.zeros((phases, 4))), dtype=np.int64)


def foreseen(records: int, phases: Sequence[int]) -> list[tuple[int, int]]:
    """Per phase: at how many steps a batch is compared, and how many pairs that makes, where no batch is empty."""
    total = sum(phases)
    room, recent, apart, every = _layout(records, total)
    steps = np.arange(0, total, every)
    spread = (np.maximum(steps, 1) - 1) // apart + 1 if recent < room else 0
    earlier = np.where(steps > 0, np.minimum(steps, recent) + spread, 0)
    parts = np.split(earlier, np.searchsorted(steps, list(accumulate(phases))[:-1]))
    return [(int((part > 0).sum()), int(part.sum())) for part in parts]


def _layout(records: int, total: int, among: int = 1) -> tuple[int, int, int, int]:
    """How many batches are remembered, how many of these are the last ones; how many steps lie between two of the
    others, and between two that are compared."""
    room = max(2, min(_MOST, _ROOM // among // records, total))
    recent = room if total <= room else room // 2
    return room, recent, max(1, -(-total // max(1, room - recent))), max(1, -(-total // _LOOKED))


class Numbered:
    """Numbers 0..records-1 for records whose own numbers have gaps that nobody knows: drawn when one first appears.

    Records that never appeared are alike, and so are the numbers that are left: a batch that is a uniformly random set
    of records is one of numbers, given the past.
    """

    def __init__(self, records: int, places: int) -> None:
        self._free = np.random.default_rng((_SEED, 0, 1)).permutation(records)
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
