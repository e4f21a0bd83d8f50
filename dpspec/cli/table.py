"""A small table of text that folds its widest column and never cuts; light enough for commands that must be quick."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_GAP = 2
_LEAST = 20


def table(rows: Sequence[Sequence[str]], width: int, *, indent: int = 2) -> str:
    """Rows of three columns or so; the second takes what the others leave of ``width`` and is folded."""
    from dpspec.reporters.escape import plain

    cells = [[plain(cell) for cell in row] for row in rows]
    columns = len(cells[0])
    widths = [max(len(row[column]) for row in cells) for column in range(columns)]
    others = sum(widths) - widths[1] + _GAP * (columns - 1) + indent
    widths[1] = min(widths[1], max(width - others, _LEAST))
    return "\n".join(line for row in cells for line in _lines(row, widths, indent))


def _lines(row: Sequence[str], widths: Sequence[int], indent: int) -> list[str]:
    folded = textwrap.wrap(row[1], widths[1], break_on_hyphens=False) or [""]
    first = [row[0], folded[0], *row[2:]]
    lines = [" " * indent + _join(first, widths)]
    lines += [" " * (indent + widths[0] + _GAP) + rest for rest in folded[1:]]
    return lines


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * _GAP).join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
