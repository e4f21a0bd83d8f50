"""Text layout for terminals: folded paragraphs and rich tables.

No text is cut. Styles disappear if color is off.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from dpspec.text import plain

if TYPE_CHECKING:
    from rich.console import JustifyMethod

#: Blanks between two columns.
_GAP = 2

#: The minimum width of a folded column.
_LEAST = 20
_UNLIMITED = 100_000
_LEAST_WIDTH = 30


def text_table(
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    folded: int | None = None,
    justify: JustifyMethod = "left",
) -> tuple[str, ...]:
    """Lines of a table. The column ``folded`` is folded if the others leave too little of ``width``."""
    from rich.cells import cell_len
    from rich.table import Table

    cells = [[plain(cell) for cell in row] for row in rows]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for number, column in enumerate(zip(*cells, strict=True)):
        longest = max(map(cell_len, column))
        least = min(longest, _LEAST) if number == folded else longest
        table.add_column(justify="left" if number == 0 else justify, overflow="fold", min_width=least)
    for row in cells:
        table.add_row(*map(Text, row))  # a string would be markup: "[red]x" loses its brackets
    out = io.StringIO()
    Console(file=out, width=width or _UNLIMITED, color_system=None, force_terminal=False).print(table, crop=False)
    return tuple(line.rstrip() for line in out.getvalue().splitlines())


class Page:
    """A page of lines. All text is escaped; styles are rich's style names."""

    def __init__(self, width: int = 80, *, color: bool = False) -> None:
        self.width = max(width, _LEAST_WIDTH)
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=self.width,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            soft_wrap=True,
        )

    def heading(self, text: str) -> None:
        self.blank()
        self.line((text, "bold"))

    def blank(self) -> None:
        self._out.write("\n")

    def line(self, *parts: str | tuple[str, str], indent: int = 0, hang: int = 0) -> None:
        """Plain or ``(text, style)`` parts; ``hang`` indents the lines after the first."""
        pairs = [(part, "") if isinstance(part, str) else part for part in parts]
        text = Text.assemble(*((plain(content), style) for content, style in pairs))
        width = self.width - indent
        lines = list(text.wrap(self._console, width, overflow="fold"))
        if hang and len(lines) > 1:
            remaining = text[len(lines[0].plain) :]
            remaining = remaining[len(remaining.plain) - len(remaining.plain.lstrip(" ")) :]
            lines = [lines[0], *remaining.wrap(self._console, max(width - hang, 1), overflow="fold")]
        for number, folded in enumerate(lines):
            folded.rstrip()
            self._console.print(Text(" " * (indent if number == 0 else indent + hang)) + folded)

    def item(self, *parts: str | tuple[str, str], indent: int = 2) -> None:
        self.line("- ", *parts, indent=indent, hang=2)

    def table(self, rows: Sequence[Sequence[str]], *, indent: int, folded: int | None = None) -> None:
        for line in text_table(rows, self.width - indent, folded=folded):
            self.line(line, indent=indent)

    def command(self, arguments: Sequence[str], indent: int = 4) -> None:
        """One line, which can be copied."""
        self._console.print(Text(" " * indent + shlex.join(map(plain, arguments))))

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._out.getvalue().split("\n")).lstrip("\n")
