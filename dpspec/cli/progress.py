"""Progress on stderr: a bar on a terminal, a line every 15 seconds in a log, nothing for quick work."""

from __future__ import annotations

import threading
import time
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

#: Seconds before a bar is shown.
PATIENCE = 2.0

#: Seconds between two lines in a log.
LINE_EVERY = 15.0

#: Plans of more audits than this are summed up in one line.
MANY = 8

#: Seconds before a rate is shown.
_LEAST = 1.0


class Progress:
    """A listener for events; a context manager that shows them. ``quiet`` shows notices only, such as a lost worker."""

    def __init__(self, stream: IO[str], *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._quiet, self._clock = stream, quiet, clock
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._began = clock()
        self._thread: threading.Thread | None = None
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._trials: dict[str, tuple[int, int]] = {}
        self._audit, self._what, self._done, self._total = "", "", 0, 0
        self._piece: tuple[str, str, int] | None = None
        self._first, self._first_done, self._pace = 0.0, 0, ""
        self._audits = 0
        self._planned: TrialsPlanned | None = None

    def __enter__(self) -> Progress:
        if not self._quiet:
            show = self._show_bar if self._stream.isatty() else self._show_lines
            self._thread = threading.Thread(target=show, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The caller may close the stream afterwards."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Noticed):
                self._say(f"{event.audit}: {event.message}")
            elif not self._quiet:
                self._record(event)
                self._refresh()

    def _record(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._audits = len(event.audits)
            case StageStarted():
                self._audit, self._what, self._done, self._total = event.audit, event.stage, 0, 0
                self._pace = ""
                if event.stage == "trials" and self._planned is not None:
                    self._say(planned(self._planned))
                    self._planned = None
            case TrialsPlanned():
                self._trials[event.audit] = (event.stored, event.total)
                if self._audits > MANY:  # many audits are summed up
                    before = self._planned or TrialsPlanned(
                        audit=f"{self._audits} audits", total=0, stored=0, seconds=0.0
                    )
                    self._planned = replace(
                        before,
                        total=before.total + event.total,
                        stored=before.stored + event.stored,
                        seconds=before.seconds + event.seconds,
                    )
                elif event.total > event.stored:
                    self._say(planned(event))
            case TrialFinished():
                done, total = self._trials.get(event.audit, (0, 0))
                self._trials[event.audit] = (done + 1, total)
            case Progressed():
                self._audit, self._what = event.audit, event.what or self._what
                self._done, self._total = event.done, event.total
                self._pace = self._rate(event)
            case RunFinished():
                self._what, self._done, self._total = "done", 1, 1
            case _:
                pass

    def _rate(self, event: Progressed) -> str:
        """Since the piece of work began; or empty."""
        from dpspec.engine.results.decimals import duration

        now, piece = self._clock(), (event.audit, event.what, event.total)
        if piece != self._piece or event.done < self._first_done:
            self._piece, self._first, self._first_done = piece, now, event.done
        if now - self._first < _LEAST or event.done <= self._first_done:
            return ""
        rate = (event.done - self._first_done) / (now - self._first)
        parts = [f"{_amount(rate)} {event.unit}/s"] if event.unit else []
        parts += [f"{_amount(rate * event.records)} records/s"] if event.unit and event.records else []
        parts += [f"about {duration((event.total - event.done) / rate)} left"] if event.done < event.total else []
        return ", ".join(parts)

    def _status(self) -> str:
        done, total = self._trials.get(self._audit, (0, 0))
        trials = f" (trial {min(done + 1, total)} of {total})" if total > 1 else ""
        return plain(f"{self._audit}: {self._what}{trials}")

    def _show_lines(self) -> None:
        while not self._ended.wait(max(0.01, LINE_EVERY)):
            with self._lock:
                if self._what and not self._ended.is_set():
                    count = f", {self._done} of {self._total}" if self._total else ""
                    pace = f" ({self._pace})" if self._pace else ""
                    self._say(f"{self._status()}{count}{pace}")

    def _show_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        if self._ended.wait(PATIENCE):
            return
        with self._lock:
            if self._ended.is_set():
                return
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[count]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("{task.fields[pace]}", markup=False),
                console=Console(file=self._stream, markup=False, emoji=False, highlight=False),
                transient=True,
                refresh_per_second=5,
            )
            self._task = self._bars.add_task("", total=None, count="", pace="")
            self._refresh()
            self._bars.start()

    def _refresh(self) -> None:
        if self._bars is None or self._task is None:
            return
        self._bars.update(
            self._task,
            description=self._status(),
            completed=self._done,
            total=self._total or None,
            count=f"{self._done}/{self._total}" if self._total else "",
            pace=plain(self._pace),
        )

    def _say(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(plain(text), markup=False, soft_wrap=True)
            return
        seconds = "" if self._quiet or self._stream.isatty() else f"[{self._clock() - self._began:5.0f} s] "
        try:
            self._stream.write(f"{seconds}{plain(text)}\n")
            self._stream.flush()
        except OSError:  # a closed stream must not stop the run
            pass


def _amount(value: float) -> str:
    """Three digits."""
    if value >= 100:
        digits = 10 ** max(0, len(str(int(value))) - 3)
        return f"{round(value / digits) * digits:,}"
    return f"{value:.3g}"


def planned(event: TrialsPlanned) -> str:
    from dpspec.engine.running.run_options import format_time_range

    missing = event.total - event.stored
    stored = f", {event.stored} stored" if event.stored else ""
    about = f" ({format_time_range(event.seconds)} in total)" if event.seconds > 0 else ""
    return f"{event.audit}: {missing} of {event.total} trials to train{stored}{about}"
