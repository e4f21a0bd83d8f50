"""Lines on a page of fixed width: indented, folded and never cut, with styles that vanish where color is off.

Rows of texts are a table without rules, by rich: columns are aligned, long cells folded, none cut.
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

#: A folded column is at least so wide, even where the table is wider than its page then.
_LEAST = 20

#: A width that no table reaches.
_UNLIMITED = 100_000


def text_table(
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    folded: int | None = None,
    justify: JustifyMethod = "left",
) -> tuple[str, ...]:
    """The lines of a table of rows that are equally long.

    folded: the column that takes what the others leave of ``width`` and is folded to it.
    justify: of all columns but the first, which begins at the left.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[plain(cell) for cell in row] for row in rows]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for number, column in enumerate(zip(*cells, strict=True)):
        longest = max(map(cell_len, column))
        least = min(longest, _LEAST) if number == folded else longest
        table.add_column(justify="left" if number == 0 else justify, overflow="fold", min_width=least)
    for row in cells:
        table.add_row(*map(Text, row))
    out = io.StringIO()
    Console(file=out, width=width or _UNLIMITED, color_system=None, force_terminal=False).print(table, crop=False)
    return tuple(line.rstrip() for line in out.getvalue().splitlines())


#: A page narrower than this would fold every word.
_LEAST_WIDTH = 30


class Page:
    """Collects lines. Every text given is taken as foreign and escaped; styles are rich's style names."""

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
        """A section's title, after an empty line."""
        self.blank()
        self.line((text, "bold"))

    def blank(self) -> None:
        """An empty line."""
        self._out.write("\n")

    def line(self, *parts: str | tuple[str, str], indent: int = 0, hang: int = 0) -> None:
        """A paragraph from plain or ``(text, style)`` parts; lines after the first are indented by ``hang`` more."""
        text = Text()
        for part in parts:
            content, style = (part, "") if isinstance(part, str) else part
            text.append(plain(content), style=style)
        first, rest = " " * indent, " " * (indent + hang)
        for number, folded in enumerate(self._fold(text, indent, hang)):
            self._console.print(Text(first if number == 0 else rest) + folded)

    def item(self, *parts: str | tuple[str, str], indent: int = 2) -> None:
        """One entry of a list."""
        self.line("- ", *parts, indent=indent, hang=2)

    def command(self, arguments: Sequence[str], indent: int = 4) -> None:
        """A shell command, continued with backslashes between its arguments so that it can be copied."""
        line, lines = "", []
        for argument in arguments:
            word = shlex.quote(plain(argument))
            if line and indent + len(line) + 1 + len(word) + 2 > self.width:
                lines.append(f"{line} \\")
                line = f"  {word}"
            else:
                line = f"{line} {word}" if line else word
        for text in (*lines, line):
            self._console.print(Text(" " * indent + text))

    def text(self) -> str:
        """The page."""
        return "\n".join(line.rstrip() for line in self._out.getvalue().split("\n")).lstrip("\n")

    def _fold(self, text: Text, indent: int, hang: int) -> list[Text]:
        """Fold the first line to the room it has, and what remains to the room that the hanging indent leaves."""
        room = self.width - indent
        lines = list(text.wrap(self._console, room, overflow="fold"))
        if hang and len(lines) > 1:
            rest = _without_leading_spaces(text[len(lines[0].plain) :])
            lines = [lines[0], *rest.wrap(self._console, max(room - hang, 1), overflow="fold")]
        for line in lines:
            line.rstrip()
        return lines


def _without_leading_spaces(text: Text) -> Text:
    return text[len(text.plain) - len(text.plain.lstrip(" ")) :]
