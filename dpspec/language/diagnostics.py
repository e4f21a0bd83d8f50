"""Diagnostic codes with their explanations (``codes.yaml``), and the format of diagnostics as text."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, TypeAlias

import yaml

from dpspec.contract import Diagnostic, Span, format_path
from dpspec.language.reading.spec_files import LINE_END, MAX_BYTES
from dpspec.regular_files import read_regular
from dpspec.text import visible

#: Origin of a diagnostic: validation of the spec, the check of mechanism, data and model together, the environment
#: (such as a broken plugin), or a remark on a valid spec.
Stage: TypeAlias = Literal["spec", "check", "environment", "remark"]


@dataclass(frozen=True, kw_only=True)
class Code:
    """One diagnostic code.

    Attributes:
        name: The code.
        summary: A phrase.
        meaning: One or more sentences.
        example: Lines of a spec or of a shell session.
        fix: The correction.
        stage: The origin of the diagnostic.
    """

    name: str
    summary: str
    meaning: str
    example: str
    fix: str
    stage: Stage = "spec"


def _read_codes() -> Mapping[str, Code]:
    entries = yaml.safe_load(files(__package__).joinpath("codes.yaml").read_text(encoding="utf-8"))
    return MappingProxyType({name: Code(name=name, **entry) for name, entry in entries.items()})


#: All codes that dpspec emits, by name. Plugins may emit others.
CODES: Mapping[str, Code] = _read_codes()


def explain(code: str) -> str | None:
    """Return the explanation of a code, or None if dpspec does not define it."""
    found = CODES.get(code)
    if found is None:
        return None
    example = "\n".join(f"    {line}".rstrip() for line in found.example.strip("\n").splitlines())
    meaning = textwrap.fill(found.meaning, WIDTH, break_on_hyphens=False)
    fix = textwrap.fill(f"Fix: {found.fix}", WIDTH, break_on_hyphens=False)
    return f"{code}: {found.summary}\n\n{meaning}\n\nExample:\n\n{example}\n\n{fix}\n"


WIDTH = 80
_TAB = 4
_CUT = "..."
_STYLES = {"error": "31;1", "warning": "33;1", "bold": "1", "gutter": "34;1"}


def render(diagnostics: Iterable[Diagnostic], *, color: bool = False, sources: Mapping[str, str] | None = None) -> str:
    """Format diagnostics, one paragraph each.

    The first line, ``file:line:column: error[code]: message``, is not wrapped, so that editors can parse it. The other
    lines are at most 80 columns wide.

    Args:
        diagnostics: The diagnostics, in order.
        color: Use ANSI colors.
        sources: Texts by file name, as in ``Loaded.sources``. Other files are read from disk.
    """
    painter = _Painter(color, dict(sources or {}))
    return "\n".join(painter.paragraph(d) for d in diagnostics)


class _Painter:
    def __init__(self, color: bool, sources: dict[str, str]) -> None:
        self.color = color
        self.sources = sources
        self.lines: dict[str, list[str]] = {}

    def paragraph(self, diagnostic: Diagnostic) -> str:
        span = diagnostic.span
        place = visible(format_path(diagnostic.path))
        if span is not None:
            place = f"{visible(span.file)}:{span.line}:{span.column}"
        label = self._paint(diagnostic.severity, f"{diagnostic.severity}[{diagnostic.code}]")
        lines = [f"{self._paint('bold', place)}: {label}: {visible(diagnostic.message)}"]
        source = self._line(span) if span is not None else None
        gutter = " " * len(str(span.line)) if span is not None and source is not None else " "
        if span is not None and source is not None:
            lines += self._excerpt(span, source, diagnostic.severity)
        if diagnostic.help:
            lines += self._help(diagnostic.help, gutter)
        return "\n".join(lines) + "\n"

    def _excerpt(self, span: Span, source: str, severity: str) -> list[str]:
        number = str(span.line)
        bar = self._paint("gutter", "|")
        end = span.end_column - 1 if span.end_line == span.line else len(source.rstrip())
        text, first, width = _window(source, span.column - 1, end, WIDTH - len(number) - 4)
        caret = self._paint(severity, "^" * width)
        return [
            f" {self._paint('gutter', number)} {bar} {text}".rstrip(),
            f" {' ' * len(number)} {bar} {' ' * first}{caret}",
        ]

    def _help(self, text: str, gutter: str) -> list[str]:
        head = f" {gutter} = help: "
        body = textwrap.wrap(visible(text), WIDTH - len(head), break_on_hyphens=False) or [""]
        indent = " " * len(head)
        return [self._paint("gutter", head.rstrip()) + " " + body[0], *(indent + line for line in body[1:])]

    def _line(self, span: Span) -> str | None:
        """Return the source line of a span, or None."""
        if span.file not in self.lines:
            text = self.sources[span.file] if span.file in self.sources else _read(span.file)
            self.lines[span.file] = LINE_END.split(text) if text is not None else []
        lines = self.lines[span.file]
        return lines[span.line - 1] if 0 < span.line <= len(lines) else None

    def _paint(self, style: str, text: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.color else text


def _read(file: str) -> str | None:
    try:
        return read_regular(file, MAX_BYTES).decode("utf-8", errors="backslashreplace").removeprefix("\ufeff")
    except (OSError, ValueError):
        return None


def _window(source: str, start: int, end: int, room: int) -> tuple[str, int, int]:
    """Return the part of a line that fits in ``room`` columns, the caret's column in it, and the caret's width."""
    cells = _cells(source)
    start = min(max(start, 0), len(cells))
    end = min(max(end, start), len(cells))
    widths = [_width(cell) for cell in cells]
    marked = sum(widths[start:end])
    if sum(widths) <= room:
        return "".join(cells), sum(widths[:start]), max(marked, 1)
    # Too long: use a third of the room for context before the error, the remaining two thirds for the text after it.
    left, before = start, 0
    while left > 0 and before + widths[left - 1] <= room // 3:
        left -= 1
        before += widths[left]
    room -= len(_CUT) if left > 0 else 0
    right, used = left, 0
    while right < len(cells) and used + widths[right] <= room - len(_CUT):
        used += widths[right]
        right += 1
    head, tail = _CUT if left > 0 else "", _CUT if right < len(cells) else ""
    first = len(head) + before
    shown = sum(widths[start : min(end, right)])
    return head + "".join(cells[left:right]) + tail, first, max(shown, 1)


def _cells(source: str) -> list[str]:
    """Return the printable form of each character."""
    return [" " * _TAB if c == "\t" else visible(c) for c in source]


def _width(text: str) -> int:
    """Return the number of terminal columns of a text."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
