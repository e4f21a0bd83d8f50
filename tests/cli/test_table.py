"""Tables fold and never cut."""

from __future__ import annotations

from dpspec.cli.table import table

ROWS = [("short", "a summary that is long enough to be folded at forty columns", "x 1"), ("longer-name", "", "y 2")]


def test_folds_the_middle_column():
    text = table(ROWS, 44)
    assert all(len(line) <= 44 for line in text.split("\n"))
    assert (
        " ".join(text.split())
        == "short a summary that is long x 1 enough to be folded at forty columns longer-name y 2"
    )


def test_wide_enough_is_one_line_a_row():
    assert table(ROWS, 120).split("\n") == [
        "  short        a summary that is long enough to be folded at forty columns  x 1",
        "  longer-name                                                               y 2",
    ]


def test_foreign_text_is_written_out():
    assert "a\\x1b[0m" in table([("a\x1b[0m", "b", "c")], 80)
