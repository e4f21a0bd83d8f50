"""Progress: a bar on a terminal, lines in a log, silence for quick work."""

import io
import re
import time

from dpspec.cli import progress
from dpspec.cli.progress import Progress
from dpspec.contract.events import (
    Noticed,
    Progressed,
    RunFinished,
    RunStarted,
    StageStarted,
    TrialFinished,
    TrialsPlanned,
)

EVENTS = (
    RunStarted(audits=("digits",)),
    StageStarted(audit="digits", stage="bound"),
    TrialsPlanned(audit="digits", total=3, stored=1, seconds=200.0),
    StageStarted(audit="digits", stage="trials"),
    Progressed(audit="digits", what="training", done=5, total=10, overall=0.25),
    TrialFinished(audit="digits", index=1, seconds=1.0),
    Noticed(audit="digits", message="evil \x1b[31m[red]notice"),
    RunFinished(complete=True),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def play(stream: io.StringIO, pause: float = 0.0) -> str:
    with Progress(stream) as listener:
        if pause:
            time.sleep(pause)
        for event in EVENTS:
            listener(event)
    return stream.getvalue()


def test_a_log_gets_plain_lines():
    text = play(io.StringIO())
    assert "digits: 2 of 3 trials to train, 1 stored (1 min 07 s to 16 min 42 s in total)\n" in text
    assert "digits: evil \\x1b[31m[red]notice\n" in text
    assert "\x1b" not in text
    assert text.count("\n") == 2


def test_a_log_gets_a_line_at_times_and_during_silent_work(monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.02)
    monkeypatch.setattr(progress, "PATIENCE", 0.02)
    stream = io.StringIO()
    with Progress(stream) as listener:
        for event in EVENTS[:2]:
            listener(event)
        wait_for(stream, "0 % of all bounds; digits: bound\n", 2)
        for event in EVENTS[2:6]:
            listener(event)
        wait_for(stream, "left; digits: training (trial 3 of 3), 5 of 10\n", 1)
        wait_for(stream, "25 % of all trials, about ", 1)
    ended = stream.getvalue()
    time.sleep(0.2)
    assert stream.getvalue() == ended


def wait_for(stream: io.StringIO, text: str, times: int) -> None:
    deadline = time.monotonic() + 20
    while stream.getvalue().count(text) < times and time.monotonic() < deadline:
        time.sleep(0.02)
    assert stream.getvalue().count(text) >= times


def test_quick_work_shows_no_bar(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 3600.0)  # quick, even on a machine that is busy
    text = play(Terminal())
    assert "5 of 10" not in text
    assert "evil \\x1b[31m[red]notice" in text


def test_slow_work_shows_a_bar_and_clears_it_away(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    stream = Terminal()
    with Progress(stream) as listener:
        deadline = time.monotonic() + 20
        while "digits" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
            for event in EVENTS[:5]:
                listener(event)
        time.sleep(0.3)
        listener(EVENTS[6])
    text = stream.getvalue()
    assert "left; digits: training (trial 2 of 3), 5 of 10" in text
    assert "25 % of all trials, about" in text
    assert "evil \\x1b[31m[red]notice" in text
    assert text.rstrip().endswith(("\x1b[2K", "\x1b[?25h"))


def test_a_stream_that_fails_stops_nothing():
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assert play(Gone()) == ""


def test_the_count_covers_all_audits_and_neither_falls_nor_restarts_in_a_trial() -> None:
    listener = Progress(io.StringIO())
    steps = (("a", 1, 2, 0.25), ("a", 2, 2, 0.5), ("b", 0, 2, 0.5), ("b", 1, 2, 0.75), ("a", 1, 9, 0.3))
    shown = []
    for audit, done, total, overall in steps:
        listener(StageStarted(audit=audit, stage="trials"))
        listener(Progressed(audit=audit, what="training", done=done, total=total, overall=overall))
        shown.append(listener._remaining().partition("%")[0])
    assert shown == ["25 ", "50 ", "50 ", "75 ", "75 "]


def test_a_bar_of_80_columns_keeps_its_time(monkeypatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    with Progress(stream) as listener:
        long = "a-name-of-an-audit-that-is-far-longer-than-the-line-of-a-terminal-of-eighty-columns-has"
        listener(StageStarted(audit=long, stage="trials"))
        deadline = time.monotonic() + 20
        while "0:00:0" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
    assert re.search(r"0:00:0\d.*0 % of all trials; a-name", stream.getvalue())


def test_a_log_says_a_percentage_within_two_seconds() -> None:
    stream = io.StringIO()
    with Progress(stream) as listener:
        listener(StageStarted(audit="digits", stage="trials"))
        began = time.monotonic()
        while not stream.getvalue() and time.monotonic() - began < 20:
            time.sleep(0.05)
    assert re.fullmatch(r"\[ +[0-9]+ s\] 0 % of all trials; digits: trials\n", stream.getvalue())
    assert progress.PATIENCE <= 2.0
