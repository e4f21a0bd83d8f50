"""Diagnostic codes with their explanations (``codes.yaml``), and the format of diagnostics as text."""

import contextlib
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, TypeAlias

import yaml

from dpspec.contract import Diagnostic, Span, format_path
from dpspec.language.yaml_source import LINE_END, MAX_BYTES
from dpspec.regular_files import read_regular
from dpspec.text import visible

#: Origin of a diagnostic: validation of the spec, the check of mechanism, data and model together, the environment
#: (such as a broken plugin), or a remark on a valid spec.
Stage: TypeAlias = Literal["spec", "check", "environment", "remark"]


@dataclass(frozen=True, kw_only=True)
class Code:
    name: str
    summary: str
    meaning: str
    example: str
    fix: str
    stage: Stage = "spec"


#: All codes that dpspec emits, by name. Plugins may emit others.
CODES: Mapping[str, Code] = MappingProxyType(
    {
        name: Code(name=name, **entry)
        for name, entry in yaml.safe_load(files(__package__).joinpath("codes.yaml").read_text(encoding="utf-8")).items()
    }
)


WIDTH = 80


def explain(code: str, width: int = WIDTH) -> str:
    entry = CODES[code]
    texts = (f"{code}: {entry.summary}", entry.meaning, "Example:", "", f"Fix: {entry.fix}")
    head, meaning, title, _, fix = (textwrap.fill(text, width, break_on_hyphens=False) for text in texts)
    return "\n\n".join([head, meaning, title, textwrap.indent(entry.example.strip("\n"), "    "), fix])


_TAB = 4
_STYLES = {"error": "31;1", "warning": "33;1", "bold": "1", "gutter": "34;1"}


def render(
    diagnostics: Iterable[Diagnostic],
    *,
    color: bool = False,
    sources: Mapping[str, str] | None = None,
    internal: bool = False,
) -> str:
    """The first line of a paragraph is not wrapped, so that editors can parse it. Files not in ``sources`` are read.

    ``internal``: show values from the data.
    """
    painter = _Painter(color, dict(sources or {}), internal)
    return "\n".join(painter.paragraph(d) for d in diagnostics)


class _Painter:
    def __init__(self, color: bool, sources: dict[str, str], internal: bool) -> None:
        self.color = color
        self.sources = sources
        self.internal = internal
        self.lines: dict[str, list[str]] = {}

    def paragraph(self, diagnostic: Diagnostic) -> str:
        span, style = diagnostic.span, diagnostic.severity
        source = self._line(span) if span is not None else None
        location = visible(format_path(diagnostic.path))
        if span is not None:
            location = f"{visible(span.file)}:{span.line}:{span.column}"
        label = self._paint(style, f"{style}[{diagnostic.code}]")
        lines = [f"{self._paint('bold', location)}: {label}: {visible(diagnostic.message)}"]
        gutter = " "
        if span is not None and source is not None:
            number, bar = str(span.line), self._paint("gutter", "|")
            gutter = " " * len(number)
            end = span.end_column - 1 if span.end_line == span.line else len(source.rstrip())
            text, first, width = _window(source, span.column - 1, end, WIDTH - len(number) - 4)
            lines.append(f" {self._paint('gutter', number)} {bar} {text}".rstrip())
            lines.append(f" {gutter} {bar} {' ' * first}{self._paint(style, '^' * width)}")
        notes = {"help": diagnostic.help, "value": diagnostic.private if self.internal else None}
        for title, note in notes.items():
            if not note:
                continue
            head = f" {gutter} = {title}: "
            body = textwrap.wrap(visible(note), WIDTH - len(head), break_on_hyphens=False) or [""]
            lines.append(f"{self._paint('gutter', head.rstrip())} {body[0]}")
            lines += [" " * len(head) + line for line in body[1:]]
        return "\n".join(lines) + "\n"

    def _line(self, span: Span) -> str | None:
        if span.file not in self.lines:
            text = self.sources.get(span.file, "")
            if span.file not in self.sources:
                with contextlib.suppress(OSError, ValueError):
                    raw = read_regular(span.file, MAX_BYTES)
                    text = raw.decode("utf-8", errors="backslashreplace").removeprefix("\ufeff")
            self.lines[span.file] = LINE_END.split(text) if text else []
        lines = self.lines[span.file]
        return lines[span.line - 1] if 0 < span.line <= len(lines) else None

    def _paint(self, style: str, text: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.color else text


def _window(source: str, start: int, end: int, columns: int) -> tuple[str, int, int]:
    """About ``room`` columns of a line around the error, and the column and width of the caret."""
    cells = [" " * _TAB if c == "\t" else visible(c) for c in source]
    start = min(max(start, 0), len(cells))
    left = max(0, start - columns // 3) if len(cells) > columns else 0
    right = min(len(cells), left + columns)
    first, marked = (_width("".join(cells[a:b])) for a, b in ((left, start), (start, min(end, right))))
    return "".join(cells[left:right]), first, max(marked, 1)


def _width(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
