"""Who was drawn, boiled down: the counts that the checks of sampling need, one pass over the internal part."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, floor
from typing import Any, TypeAlias

import numpy as np

from dpspec.contract import Phase
from dpspec.stats.conformance import sampling, step_tests
from dpspec.stats.conformance.evidence import BatchSums, Common

Array: TypeAlias = np.ndarray[Any, Any]

#: Inclusions are counted record by record for so many of them at most: 256 MiB.
MOST_COUNTED = 2**26

#: Batches that are looked back at hold so many records together at most.
_REMEMBERED = 2**23


class BatchLog:
    """Counts of one phase."""

    def __init__(self, phase: Phase, records: int, among: int = 1, *, places: int | None = None) -> None:
        """``phase``: its rate, where it is one of Poisson sampling, decides what is compared; ``among`` so many.

        places: their numbers are below it, by default ``records``; it is more where some places are empty.
        """
        self._records, places = records, places or records
        scheme, rate = phase.sampling.scheme, phase.sampling.rate
        self._rate = rate if scheme == "poisson" and rate is not None else 1.0
        self._random = 0.0 < self._rate < 1.0
        self._sizes: list[int] = []
        self.repeats = 0
        self._counts = np.zeros(places, dtype=np.int32) if places * among <= MOST_COUNTED else None
        self._lags = self._compared(phase.steps)
        self._earlier: deque[Array] = deque(maxlen=max(self._lags, default=1))
        self._overlaps = dict.fromkeys(self._lags, (0, 0))

    def add(self, members: Array) -> None:
        """A step's records, sorted."""
        self._sizes.append(len(members))
        once = np.unique(members)
        self.repeats += len(members) - len(once)
        if self._counts is not None:
            np.add.at(self._counts, members, 1)
        for lag in self._lags:
            if lag <= len(self._earlier):
                self._compare(lag, self._earlier[-lag], once)
        self._earlier.append(once)

    def _compare(self, lag: int, earlier: Array, once: Array) -> None:
        """Count what a batch has in common with an earlier one; both sorted, without repeats."""
        places = np.minimum(np.searchsorted(once, earlier), max(0, len(once) - 1))
        common, chances = (int((once[places] == earlier).sum()) if len(once) else 0), len(earlier)
        total, of = self._overlaps[lag]
        self._overlaps[lag] = total + common, of + chances

    def sums(self) -> BatchSums:
        """What is tested of it."""
        sizes = np.array(self._sizes, dtype=np.int64)
        spread = None if self._counts is None else int((self._counts.astype(np.int64) ** 2).sum())
        above = None if self._counts is None else sampling.excess(self._counts, len(sizes) * self._rate)
        return BatchSums(
            steps=len(sizes),
            total=int(sizes.sum()),
            squares=int((sizes**2).sum()),
            spread=spread,
            above=above,
            sizes=step_tests.summary(sizes) if self._random and len(sizes) else None,
            overlaps=tuple(Common(lag, *told) for lag, told in self._overlaps.items() if told[1]),
        )

    def most_often(self) -> int | None:
        """In how many batches the record was that was in most of them; None where records are too many to count."""
        return None if self._counts is None or not len(self._counts) else int(self._counts.max())

    def _compared(self, steps: int) -> Sequence[int]:
        if not self._random:
            return ()
        lags = {1, 2, floor(1.0 / self._rate), ceil(1.0 / self._rate)}
        batch = self._rate * self._records
        return sorted(lag for lag in lags if 0 < lag < steps and lag * batch <= _REMEMBERED and lag <= 10_000)
