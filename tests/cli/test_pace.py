"""Rates and the time left, from events and a clock that the test sets."""

from __future__ import annotations

import io

import pytest

from dpspec.cli.terminal import progress
from dpspec.cli.terminal.progress import Pace
from dpspec.contract.events import Progressed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def event(done, total=1000, what="training", unit="steps", records=16.0):
    return Progressed(audit="digits", what=what, done=done, total=total, unit=unit, records=records)


def test_rates_and_the_time_left(clock):
    pace = Pace(clock)
    assert pace.see(event(0)) == ""
    clock.now = 0.5
    assert pace.see(event(50)) == ""
    clock.now = 2.0
    assert pace.see(event(200)) == "100 steps/s, 1,600 records/s, about 8.0 s left"
    clock.now = 3.0
    assert pace.see(event(1000)) == "333 steps/s, 5,330 records/s"


def test_only_what_means_something_is_told(clock):
    pace = Pace(clock)
    pace.see(event(0, unit="", records=0.0))
    clock.now = 10.0
    assert pace.see(event(100, unit="", records=0.0)) == "about 1 min 30 s left"
    clock.now = 20.0
    assert pace.see(event(105, records=0.0)).startswith("5.25 steps/s, about ")


def test_the_last_moments_count(clock):
    pace = Pace(clock)
    for second in range(101):  # a slow start, then ten times as fast
        clock.now = float(second)
        text = pace.see(event(second if second < 50 else 50 + 10 * (second - 50), total=10_000))
    assert text.startswith("10 steps/s, 160 records/s, about 15 min")


def test_another_piece_of_work_begins_anew(clock):
    pace = Pace(clock)
    pace.see(event(0))
    clock.now = 5.0
    assert pace.see(event(500)) != ""
    assert pace.see(event(10, what="twin")) == ""
    clock.now = 10.0
    assert pace.see(event(5, what="twin")) == ""
    clock.now = 12.0
    assert pace.see(event(7, what="twin")) == "1 steps/s, 16 records/s, about 16 min 33 s left"


def test_work_that_stands_still_says_nothing(clock):
    pace = Pace(clock)
    pace.see(event(3))
    clock.now = 60.0
    assert pace.see(event(3)) == ""


def test_a_log_tells_it(clock, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    monkeypatch.setattr(progress, "Pace", lambda: Pace(clock))
    stream = io.StringIO()
    with progress.Progress(stream) as listener:
        listener(event(0))
        clock.now = 4.0
        listener(event(500))
    assert "digits: training, 500 of 1000 (125 steps/s, 2,000 records/s, about 4.0 s left)\n" in stream.getvalue()
