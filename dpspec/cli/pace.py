"""How fast a piece of work goes and when it will end, from the last moments of its progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from dpspec.contract import Progressed

#: Seconds that are looked back on, and that must have passed before anything is said.
_WINDOW, _LEAST = 30.0, 1.0


class Pace:
    """Fed with progress events; another piece of work, or one that starts over, begins anew."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._piece: tuple[str, str, int] | None = None
        self._marks: deque[tuple[float, int]] = deque()

    def see(self, event: Progressed) -> str:
        """Take note of an event; what to say of the pace: ``812 steps/s, 13,000 records/s, about 40 s left``, or ""."""
        from dpspec.engine.numbers import duration

        now, piece = self._clock(), (event.audit, event.what, event.total)
        if piece != self._piece or (self._marks and event.done < self._marks[-1][1]):
            self._piece = piece
            self._marks.clear()
        self._marks.append((now, event.done))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _WINDOW:
            self._marks.popleft()
        began, first = self._marks[0]
        if now - began < _LEAST or event.done <= first:
            return ""
        rate = (event.done - first) / (now - began)
        said = [f"{_amount(rate)} {event.unit}/s"] if event.unit else []
        said += [f"{_amount(rate * event.records)} records/s"] if event.unit and event.records else []
        said += [f"about {duration((event.total - event.done) / rate)} left"] if event.done < event.total else []
        return ", ".join(said)


def _amount(value: float) -> str:
    """Three digits: people compare rates, they do not add them up."""
    if value >= 100:
        digits = 10 ** max(0, len(str(int(value))) - 3)
        return f"{round(value / digits) * digits:,}"
    return f"{value:.3g}"
