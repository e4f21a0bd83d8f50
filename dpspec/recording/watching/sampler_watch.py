"""Who was drawn, seen at the loader's own sampler while it is iterated.

The sampler object gets a class of its own that does what its class did and tells of each batch; at the end it gets its
own class back. ``BatchMemoryManager`` wraps the same object, so that logical batches are seen, whatever it makes of
them. Loaders that load ahead draw before a batch is used: batches wait in a line until a step takes them.

A pass over the loader may be left early, or may train nothing: a look at the first batch, an end at so many steps, an
evaluation. Its batches are nobody's: what a step adds up tells whether it is made of one pass alone. Within a pass
nothing is left out, so that a script that skips batches as it sees them is told of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpspec.recording.folder.members import Indices


class SamplerWatch:
    """Batches in the order in which they were drawn."""

    def __init__(self, sampler: Any, ahead: bool, present: Callable[[Indices], Any] = list) -> None:
        """``sampler``: yields lists of indices. ahead: whether batches are drawn before they are used. present: which
        indices of a batch are there, all by default."""
        self._sampler, self._class = sampler, type(sampler)
        self._ahead, self._present = ahead, present
        self._waiting: deque[tuple[int, Indices]] = deque()
        self._passes = 0
        self._used = False
        self.drawn = 0
        self.unused = 0
        #: How often batches were passed over before others were used.
        self.passed_over = 0

    def attach(self) -> bool:
        """Begin to watch; False where the object cannot be watched."""
        watch, of = self, self._class

        def iterate(this: Any) -> Iterator[Any]:
            number = watch.begin()
            for batch in of.__iter__(this):
                watch.saw(batch, number)
                yield batch

        try:
            self._sampler.__class__ = type(of.__name__, (of,), {"__iter__": iterate, "__module__": of.__module__})
        except TypeError:
            return False
        return True

    def detach(self) -> None:
        """Give the sampler its own class back."""
        self._sampler.__class__ = self._class

    def begin(self) -> int:
        """A new pass over the loader, and its number: what was drawn ahead in the one before is not used any more."""
        if self._ahead:
            self.unused += len(self._waiting)
            self.passed_over += bool(self._waiting) and not self._used
            self._waiting.clear()
        self._used = False
        self._passes += 1
        return self._passes

    def saw(self, batch: Any, number: int) -> None:
        """A batch was drawn, in pass ``number``."""
        self.drawn += 1
        drawn = np.asarray(batch, dtype=np.int64).reshape(-1)
        self._waiting.append((number, np.asarray(self._present(drawn), dtype=np.int64)))

    def latest(self) -> Indices:
        """The batch that was drawn last, of those that no step took yet; nothing where there is none."""
        return self._waiting[-1][1] if self._waiting else np.zeros(0, dtype=np.int64)

    def current(self) -> Indices:
        """The batch of the step that is going on, before :meth:`take`; empty if it is not known."""
        if not self._waiting:
            return np.zeros(0, dtype=np.int64)
        return self._waiting[0 if self._ahead else -1][1]

    def take(self, rows: int | None) -> tuple[Indices, int] | None:
        """The records drawn for a step that added up ``rows`` contributions, and in how many batches; None of none.

        Where batches are drawn when they are used, all since the last step are this one's; those of one pass alone,
        where they hold as many records as it added up. Of those drawn ahead a step takes the first, and more
        while they hold fewer records than it added up.
        """
        if not self._waiting:
            return None
        self._used = True
        taken = self._first(rows) if self._ahead else self._latest(rows)
        return np.concatenate(taken), len(taken)

    def _first(self, rows: int | None) -> list[Indices]:
        taken = [self._waiting.popleft()[1]]
        while self._waiting and rows is not None and sum(map(len, taken)) < rows:
            taken.append(self._waiting.popleft()[1])
        return taken

    def _latest(self, rows: int | None) -> list[Indices]:
        every = [batch for _, batch in self._waiting]
        passes: dict[int, list[Indices]] = {}
        for number, batch in self._waiting:
            passes.setdefault(number, []).append(batch)
        self._waiting.clear()
        own = next((passes[number] for number in sorted(passes, reverse=True) if _size(passes[number]) == rows), every)
        self.unused += len(every) - len(own)
        self.passed_over += len(own) < len(every)
        return own


def _size(batches: list[Indices]) -> int:
    return sum(map(len, batches))
