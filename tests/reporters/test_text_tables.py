"""Tables fold and never cut."""

from __future__ import annotations

import pytest

from dpspec.reporters.layout import text_table

ROWS = [("short", "a summary that is long enough to be folded at forty columns", "x 1"), ("longer-name", "", "y 2")]


def test_folds_the_middle_column():
    lines = text_table(ROWS, 42, folded=1)
    assert all(len(line) <= 42 for line in lines)
    assert (
        " ".join(" ".join(lines).split())
        == "short a summary that is long x 1 enough to be folded at forty columns longer-name y 2"
    )


def test_wide_enough_is_one_line_a_row():
    assert text_table(ROWS, 118, folded=1) == (
        "short        a summary that is long enough to be folded at forty columns  x 1",
        "longer-name                                                               y 2",
    )


def test_numbers_stand_at_the_right():
    assert text_table([("delta", "1e-6", "0.0001"), ("epsilon <=", "12", "3")], justify="right") == (
        "delta       1e-6  0.0001",
        "epsilon <=    12       3",
    )


@pytest.mark.parametrize("width", [5, 20, 30])
def test_a_page_that_is_too_narrow_cuts_nothing(width):
    joined = " ".join(text_table(ROWS, width, folded=1))
    assert all(word in joined for row in ROWS for cell in row for word in cell.split())


def test_the_terminal_changes_nothing(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert text_table([("a [red]x[/red] :smile:", "b" * 200)]) == ("a [red]x[/red] :smile:  " + "b" * 200,)


def test_foreign_text_is_written_out():
    assert "a\\x1b[0m" in text_table([("a\x1b[0m", "b", "c")])[0]
