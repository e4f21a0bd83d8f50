"""The drawn records, observed at the loader's own sampler during its iteration.

``BatchMemoryManager`` wraps the same object, so logical batches are observed. Loaders that load ahead draw before a
batch is used: batches wait in a queue until a step takes them. A pass over the loader may end early or train nothing;
its batches are unused. Within a pass every batch counts, so that a script that skips batches by their content is
reported.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dpspec.errors import UnobservableError
from dpspec_recording.folder.events import UNSEEN, Indices

_Result = TypeVar("_Result")

#: The end of a pass.
_NO_BATCH = object()

#: A batch is unusually small below this share of the mean size of the earlier ones.
_SMALL = 0.5


class SamplerWatch:
    def __init__(
        self,
        sampler: Any,
        ahead: bool,
        present: Callable[[Indices], Any] | None = None,
        unusual: Callable[[], None] = lambda: None,
        pause: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """sampler: yields lists of indices. ahead: whether batches are drawn before they are used. present: returns
        the indices of a batch that contribute, all by default. unusual: called before the step of a small batch or of
        the last one of a pass. pause: a context for draws in this thread, whose operations belong to no step."""
        self._sampler, self._class, self._rated = sampler, type(sampler), hasattr(sampler, "sample_rate")
        self._ahead, self._present, self._unusual = ahead, present, unusual
        self._pause, self._thread = pause, threading.get_ident()
        self._sizes = self._in_pass = 0  # of all batches, and the number of batches in the current pass
        self._waiting: deque[tuple[int | None, Indices, Any]] = deque()
        #: The sampler's ``sample_rate`` at each draw up to the last step.
        self.rates: list[Any] = []
        #: The sampler's ``epoch`` at the beginning of the pass that the last step used.
        self.epoch: Any = None
        self._epochs: dict[int | None, Any] = {}  # of each pass
        self._fetched = False  # the last step may leave batches that were fetched for later ones
        self._used = False
        self.drawn = 0
        #: The number of times that batches were passed over before others were used.
        self.passed_over = 0
        self._fault: Exception | None = None

    def attach(self) -> bool:
        """Replace the sampler's class; False if this is not possible."""
        watch, original = self, self._class

        def iterate(this: Any) -> Iterator[Any]:
            number = watch._observed(watch.begin)
            batches = iter(original.__iter__(this))
            while True:
                with watch._pause() if threading.get_ident() == watch._thread else nullcontext():
                    batch = next(batches, _NO_BATCH)
                if batch is _NO_BATCH:
                    return
                watch._observed(partial(watch.add, batch, number))
                yield batch

        try:
            self._sampler.__class__ = type(
                original.__name__, (original,), {"__iter__": iterate, "__module__": original.__module__}
            )
        except TypeError:
            return False
        return True

    def _observed(self, observe: Callable[[], _Result]) -> _Result | None:
        """Call an observer. Its fault must not reach the loader, which may iterate in another thread."""
        try:
            return observe()
        except Exception as error:
            self._fault = self._fault or error
            return None

    def detach(self) -> None:
        self._sampler.__class__ = self._class

    def begin(self) -> int:
        """Begin a pass over the loader, and return its number. Batches drawn ahead in the pass before stay unused."""
        if self._ahead:
            self.passed_over += bool(self._waiting) and not self._used
            self._waiting.clear()
        self._used, self._in_pass = False, 0
        number = len(self._epochs) + 1
        self._epochs[number] = getattr(self._sampler, "epoch", None)
        return number

    def add(self, batch: Any, number: int | None) -> None:
        self.drawn += 1
        self._in_pass += 1
        try:
            drawn = np.array(batch, dtype=np.int64).reshape(-1)  # a copy: a sampler may yield one array again
        except (TypeError, ValueError):
            raise UnobservableError("the batches of the sampler are not lists of integers") from None
        if self._present is not None:
            drawn = np.asarray(self._present(drawn), dtype=np.int64)
        if len(drawn) < _SMALL * self._sizes / max(1, self.drawn - 1) or self._in_pass == self._length():
            self._unusual()
        self._sizes += len(drawn)
        # read now, because a script may set another rate or size for the draw alone
        self._waiting.append((number, drawn, getattr(self._sampler, "sample_rate", None)))

    def _length(self) -> int:
        """The number of batches of a pass, 0 if unknown."""
        try:
            return len(self._sampler)
        except (TypeError, NotImplementedError):
            return 0

    def latest(self) -> Indices:
        return self._waiting[-1][1] if self._waiting else np.zeros(0, dtype=np.int64)

    def take(self, rows: int | None) -> tuple[Indices | None, int]:
        """The drawn records of a step with ``rows`` contributions, and the number of their batches, if there are any.

        If batches are drawn when used, a step takes all batches since the last step, or the batches of one pass
        if they have ``rows`` records. Of Poisson batches, whose sizes differ, it may also take the first of a pass,
        because scripts fetch a batch before they use the last one. Of batches drawn ahead it takes the first, and more
        while they have fewer records. Raises the fault of an earlier
        observation.
        """
        if self._fault is not None:
            raise self._fault
        self.rates = [rate for _, _, rate in self._waiting]
        if not self._waiting:
            return None, UNSEEN
        self._used = True
        self.epoch = self._epochs.get(self._waiting[0][0])
        if not self._ahead:
            taken = self._latest(rows) if len(self._waiting) > 1 else [self._waiting.popleft()[1]]
            self._fetched = bool(self._waiting)
            return taken[0] if len(taken) == 1 else np.concatenate(taken), len(taken)
        taken = [self._waiting.popleft()[1]]
        while self._waiting and rows is not None and sum(map(len, taken)) < rows:
            taken.append(self._waiting.popleft()[1])
        return np.concatenate(taken), len(taken)

    def _latest(self, rows: int | None) -> list[Indices]:
        batches, numbers = [batch for _, batch, _ in self._waiting], [number for number, _, _ in self._waiting]
        starts = [
            position for position, number in enumerate(numbers) if position == 0 or number != numbers[position - 1]
        ]
        spans = list(zip(starts, [*starts[1:], len(batches)], strict=True))[::-1]
        if self._rated:  # later batches may be fetched ahead
            spans += [(start, start + 1) for start in reversed(starts)]
            if self._fetched or len(starts) == 1:
                spans.insert(0, (0, 1))
        first, last = next((span for span in spans if sum(map(len, batches[slice(*span)])) == rows), (0, len(batches)))
        self.epoch = self._epochs.get(numbers[first])
        self._waiting = deque([*self._waiting][last:] if self._rated else [])
        self.passed_over += first > 0 or (last < len(batches) and not self._rated)
        return batches[first:last]
