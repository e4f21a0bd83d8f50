"""Progress on stderr: a bar on a terminal, a line every 15 seconds in a log, nothing for quick work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
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
        self._thread = threading.Thread(target=self._show_bar if stream.isatty() else self._show_lines, daemon=True)
        self._began = clock()
        self._bars: Bars | None = None
        self._trials: dict[str, tuple[int, int]] = {}
        self._audit, self._what, self._done, self._total, self._pace = "", "", 0, 0, ""
        self._piece, self._first, self._first_done = ("", "", 0), 0.0, 0
        self._audits = 0
        self._planned: TrialsPlanned | None = None

    def __enter__(self) -> Progress:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """The caller may close the stream afterwards."""
        self._ended.set()
        if not self._quiet:
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
                self._audit, self._what, self._done, self._total, self._pace = event.audit, event.stage, 0, 0, ""
                if event.stage == "trials" and self._planned is not None:
                    self._say(planned(self._planned))
                    self._planned = None
            case TrialsPlanned():
                self._trials[event.audit] = (event.stored, event.total)
                if self._audits > MANY:
                    sums = {name: getattr(event, name) for name in ("total", "stored", "seconds")}
                    if self._planned is not None:
                        sums = {name: value + getattr(self._planned, name) for name, value in sums.items()}
                    self._planned = TrialsPlanned(audit=f"{self._audits} audits", **sums)
                elif event.total > event.stored:
                    self._say(planned(event))
            case TrialFinished():
                done, total = self._trials.get(event.audit, (0, 0))
                self._trials[event.audit] = (done + 1, total)
            case Progressed():
                self._audit, self._what = event.audit, event.what or self._what
                self._done, self._total, self._pace = event.done, event.total, self._rate(event)
            case RunFinished():
                self._what, self._done, self._total = "done", 1, 1

    def _rate(self, event: Progressed) -> str:
        """Since the piece of work began; or empty."""
        from dpspec.engine.results.decimals import duration

        now, piece = self._clock(), (event.audit, event.what, event.total)
        if piece != self._piece or event.done < self._first_done:
            self._piece, self._first, self._first_done = piece, now, event.done
        if now - self._first < _LEAST or event.done <= self._first_done:
            return ""
        rate = (event.done - self._first_done) / (now - self._first)
        amounts = {event.unit: rate, "records": rate * event.records} if event.unit else {}
        parts = [f"{float(f'{amount:.3g}'):,.15g} {unit}/s" for unit, amount in amounts.items() if amount]
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
        count, pace = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "pace"))
        status = TextColumn("{task.description}", markup=False)
        console = Console(file=self._stream, markup=False, emoji=False, highlight=False)
        bars = Progress(
            status,
            BarColumn(bar_width=20),
            count,
            TimeElapsedColumn(),
            pace,
            console=console,
            transient=True,
            refresh_per_second=5,
        )
        with self._lock:
            if not self._ended.is_set():
                bars.add_task("", total=None, count="", pace="")
                self._bars = bars
                self._refresh()
                bars.start()

    def _refresh(self) -> None:
        if self._bars is not None:
            self._bars.update(
                self._bars.task_ids[0],
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
        with suppress(OSError):  # a closed stream must not stop the run
            self._stream.write(f"{seconds}{plain(text)}\n")
            self._stream.flush()


def planned(event: TrialsPlanned) -> str:
    from dpspec.engine.running.run_options import format_time_range

    missing = event.total - event.stored
    stored = f", {event.stored} stored" if event.stored else ""
    about = f" ({format_time_range(event.seconds)} in total)" if event.seconds > 0 else ""
    return f"{event.audit}: {missing} of {event.total} trials to train{stored}{about}"
