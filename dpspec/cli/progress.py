"""Progress on stderr: a bar on a terminal, lines in a log (after 2 seconds and every 15), silence for quick work."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from dpspec.contract.events import Event, Noticed, Progressed, RunFinished, StageStarted, TrialFinished, TrialsPlanned
from dpspec.decimals import duration
from dpspec.text import plain

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

#: Seconds before a bar or the first line is shown.
PATIENCE = 2.0

#: Seconds between two lines in a log.
LINE_EVERY = 15.0


#: Stages with a count over all audits, in words.
STAGES = {"bound": "all bounds", "trials": "all trials"}

#: Finished fraction of a stage from which its time is extrapolated.
LEAST_FRACTION = 0.01


class Progress:
    """A listener for events; a context manager that shows them. ``quiet`` shows notices only, such as a lost worker."""

    def __init__(self, stream: IO[str], *, quiet: bool = False) -> None:
        self._stream, self._quiet = stream, quiet
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show_bar if stream.isatty() else self._show_lines, daemon=True)
        self._began = time.monotonic()
        self._bars: Bars | None = None
        self._trials: dict[str, tuple[int, int]] = {}
        self._audit, self._stage, self._what, self._done, self._total = "", "", "", 0, 0
        self._stage_began, self._overall = self._began, 0.0
        self._planned: list[TrialsPlanned] = []

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
                stage = self._stage
                self._record(event)
                self._refresh(new=stage != self._stage)

    def _record(self, event: Event) -> None:
        match event:
            case StageStarted():
                self._audit, self._what, self._done, self._total = event.audit, event.stage, 0, 0
                if event.stage != self._stage:
                    self._stage, self._stage_began, self._overall = event.stage, time.monotonic(), 0.0
                if event.stage == "trials":
                    self._say_planned()
            case TrialsPlanned():
                self._trials[event.audit] = (event.stored, event.total)
                self._planned.append(event)
            case TrialFinished():
                done, total = self._trials.get(event.audit, (0, 0))
                self._trials[event.audit] = (done + 1, total)
            case Progressed():
                self._audit, self._what = event.audit, event.what or self._what
                self._done, self._total = event.done, event.total
                self._overall = max(self._overall, min(event.overall or 0.0, 1.0))
            case RunFinished():
                self._what, self._done, self._total, self._overall = "done", 1, 1, 1.0

    def _say_planned(self) -> None:
        from dpspec.engine.running.train import format_time_range

        plans, self._planned = self._planned, []
        for plan in plans:
            if missing := plan.total - plan.stored:
                stored = f", {plan.stored} stored" if plan.stored else ""
                about = f" ({format_time_range(plan.seconds)} in total)" if plan.seconds > 0 else ""
                self._say(f"{plan.audit}: {missing} of {plan.total} trials to train{stored}{about}")

    def _status(self) -> str:
        done, total = self._trials.get(self._audit, (0, 0))
        trials = f" (trial {min(done + 1, total)} of {total})" if total > 1 and self._stage == "trials" else ""
        count = f", {self._done} of {self._total}" if self._total > 1 else ""
        return plain(f"{self._audit}: {self._what}{trials}{count}")

    def _remaining(self) -> str:
        """The finished part of the stage over all audits, and the time left at its average speed."""
        if self._stage not in STAGES:
            return ""
        about = ""
        if LEAST_FRACTION <= self._overall < 1.0:
            left = (time.monotonic() - self._stage_began) * (1.0 / self._overall - 1.0)
            about = f", about {duration(left)} left"
        return f"{100.0 * self._overall:.0f} % of {STAGES[self._stage]}{about}; "

    def _show_lines(self) -> None:
        pause = PATIENCE
        while not self._ended.wait(pause):
            pause = LINE_EVERY
            with self._lock:
                if self._what and not self._ended.is_set():
                    self._say(self._remaining() + self._status())

    def _show_bar(self) -> None:
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        if self._ended.wait(PATIENCE):
            return
        bars = progress.Progress(
            progress.BarColumn(bar_width=12),
            progress.TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            # Only the text is cut on narrow terminals.
            progress.TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
            ),
            expand=True,
            console=Console(file=self._stream, markup=False, emoji=False, highlight=False),
            transient=True,
            refresh_per_second=5,
        )
        with self._lock:
            if not self._ended.is_set():
                bars.add_task("", total=None)
                self._bars = bars
                self._refresh(new=True)
                bars.start()

    def _refresh(self, *, new: bool) -> None:
        """A ``new`` stage restarts the bar and its time."""
        if self._bars is not None:
            task = self._bars.task_ids[0]
            if new:
                self._bars.reset(task)
            total = 1.0 if self._overall > 0.0 else None
            self._bars.update(
                task, description=self._remaining() + self._status(), completed=self._overall, total=total
            )

    def _say(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(plain(text), markup=False, soft_wrap=True)
            return
        seconds = "" if self._quiet or self._stream.isatty() else f"[{time.monotonic() - self._began:5.0f} s] "
        with suppress(OSError):  # a closed stream must not stop the run
            self._stream.write(f"{seconds}{plain(text)}\n")
            self._stream.flush()
