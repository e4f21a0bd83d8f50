"""How far a run is, on stderr: a bar at a terminal, an occasional line in a log, nothing for quick work.

The last moments say how fast it goes and when it will end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import IO, TYPE_CHECKING

from dpspec.contract.events import (
    Event,
    Noticed,
    Progressed,
    RunFinished,
    RunStarted,
    StageStarted,
    TrialFinished,
    TrialsPlanned,
)
from dpspec.text import plain

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

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
        from dpspec.engine.results.decimals import duration

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


#: Work shorter than this, in seconds, shows nothing.
PATIENCE = 2.0

#: Seconds between two lines in a log.
LINE_EVERY = 15.0

#: Of more audits than this, what is to be trained is told in one line.
MANY = 8


class Progress:
    """A listener for events and a context manager; leaving it clears the bar away.

    quiet: say what somebody must know, such as a worker that was lost, and neither plans nor progress.
    """

    def __init__(self, stream: IO[str], *, quiet: bool = False) -> None:
        self._view: _Lines | _Bar | _Notes
        self._view = _Notes(stream) if quiet else _Bar(stream) if stream.isatty() else _Lines(stream)

    def __call__(self, event: Event) -> None:
        """Take note of one event."""
        self._view.see(event)

    def __enter__(self) -> Progress:
        self._view.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.end()


class _Plans:
    """What there is to train: a line for each of a few audits, one line for many."""

    def __init__(self) -> None:
        self._audits = 0
        self._sum: TrialsPlanned | None = None

    def see(self, event: Event) -> str | None:
        """Take note of an event; what to say of it, if anything."""
        if isinstance(event, RunStarted):
            self._audits = len(event.audits)
        elif isinstance(event, TrialsPlanned) and self._audits > MANY:
            before = self._sum or TrialsPlanned(audit=f"{self._audits} audits", total=0, stored=0, seconds=0.0)
            self._sum = replace(
                before,
                total=before.total + event.total,
                stored=before.stored + event.stored,
                seconds=before.seconds + event.seconds,
            )
        elif isinstance(event, TrialsPlanned):
            return planned(event) if event.total > event.stored else None
        elif isinstance(event, StageStarted) and event.stage == "trials" and self._sum is not None:
            whole, self._sum = self._sum, None
            return planned(whole)
        return None


class _Notes:
    """What was noticed alone: a worker that was lost, a stored trial that is damaged."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def begin(self) -> None:
        """There is nothing to show yet."""

    def end(self) -> None:
        """There is nothing to clear away."""

    def see(self, event: Event) -> None:
        if isinstance(event, Noticed):
            _write(self._stream, f"{plain(event.audit)}: {plain(event.message)}\n")


class _Lines:
    """Plain lines: plans, notices, and the progress at most every :data:`LINE_EVERY` seconds.

    A thread writes the stage of work that emits no events, such as one long bound.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._began = self._told = time.monotonic()
        self._pace = Pace()
        self._trials: dict[str, tuple[int, int]] = {}
        self._plans = _Plans()
        self._stage = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report_silent_work, daemon=True)

    def begin(self) -> None:
        self._began = self._told = time.monotonic()
        self._thread.start()

    def end(self) -> None:
        """Stop the thread; the caller may close the stream afterwards."""
        self._ended.set()
        self._thread.join()

    def _report_silent_work(self) -> None:
        while not self._ended.wait(max(0.01, self._told + LINE_EVERY - time.monotonic())):
            if self._stage:
                self._say_at_times(f"{self._stage}, still working")

    def see(self, event: Event) -> None:
        if (plan := self._plans.see(event)) is not None:
            self._say(plan)
        match event:
            case StageStarted():
                self._stage = f"{event.audit}: {event.stage}"
            case TrialsPlanned():
                self._trials[event.audit] = (event.stored, event.total)
            case TrialFinished():
                done, total = self._trials.get(event.audit, (0, 0))
                self._trials[event.audit] = (done + 1, total)
                self._say_at_times(f"{event.audit}: {done + 1} of {total} trials")
            case Progressed():
                pace = self._pace.see(event)
                doing = f"{event.audit}: {event.what or 'working'}, {event.done} of {event.total}"
                self._say_at_times(f"{doing} ({pace})" if pace else doing)
            case Noticed():
                self._say(f"{event.audit}: {event.message}")
            case _:
                pass

    def _say_at_times(self, text: str) -> None:
        if time.monotonic() - self._told >= LINE_EVERY:
            self._say(text)

    def _say(self, text: str) -> None:
        self._told = time.monotonic()
        _write(self._stream, f"[{self._told - self._began:5.0f} s] {plain(text)}\n")


class _Bar:
    """A bar per audit in work, shown once the run has taken longer than :data:`PATIENCE`.

    The bar is started by a timer, so that one long computation without any event is covered too. After that all of
    rich's own locking applies; ``_lock`` only guards the start and the end.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._timer: threading.Timer | None = None
        self._trials: dict[str, tuple[int, int]] = {}
        self._audit, self._what, self._done, self._total = "", "starting", 0, 0
        self._pace, self._paced = Pace(), ""
        self._plans = _Plans()

    def begin(self) -> None:
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._timer = None
            if self._bars is not None:
                self._bars.stop()
                self._bars = None

    def see(self, event: Event) -> None:
        if (plan := self._plans.see(event)) is not None:
            self._say(plan)
        match event:
            case StageStarted():
                self._audit, self._what, self._done, self._total = event.audit, event.stage, 0, 0
                self._paced = ""
            case TrialsPlanned():
                self._trials[event.audit] = (event.stored, event.total)
            case TrialFinished():
                done, total = self._trials.get(event.audit, (0, 0))
                self._trials[event.audit] = (done + 1, total)
            case Progressed():
                self._audit, self._what = event.audit, event.what or self._what
                self._done, self._total = event.done, event.total
                self._paced = self._pace.see(event)
            case Noticed():
                self._say(f"{event.audit}: {event.message}")
            case RunFinished():
                self._what, self._done, self._total = "done", 1, 1
            case _:
                pass
        with self._lock:
            self._refresh()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._timer is None:  # the run has ended meanwhile
                return
            console = Console(file=self._stream, markup=False, emoji=False, highlight=False)
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[count]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("{task.fields[pace]}", markup=False),
                console=console,
                transient=True,
                refresh_per_second=5,
            )
            self._task = self._bars.add_task("", total=None, count="", pace="")
            self._refresh()
            self._bars.start()

    def _refresh(self) -> None:
        """Bring the bar up to date; the lock is held."""
        if self._bars is None or self._task is None:
            return
        done, total = self._trials.get(self._audit, (0, 0))
        trials = f" (trial {min(done + 1, total)} of {total})" if total > 1 else ""
        self._bars.update(
            self._task,
            description=plain(f"{self._audit}: {self._what}{trials}"),
            completed=self._done,
            total=self._total or None,
            count=f"{self._done}/{self._total}" if self._total else "",
            pace=plain(self._paced),
        )

    def _say(self, text: str) -> None:
        with self._lock:
            if self._bars is not None:
                self._bars.console.print(plain(text), markup=False, soft_wrap=True)
            else:
                _write(self._stream, f"{plain(text)}\n")


def planned(event: TrialsPlanned) -> str:
    """What is about to be trained, in one line."""
    from dpspec.engine.running.estimates import foreseen

    missing = event.total - event.stored
    stored = f", {event.stored} stored" if event.stored else ""
    about = f" ({foreseen(event.seconds)} for all of them)" if event.seconds > 0 else ""
    return f"{event.audit}: {missing} of {event.total} trials to train{stored}{about}"


def _write(stream: IO[str], text: str) -> None:
    """Progress is a courtesy: a reader that has gone must not stop the run."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        pass
