"""Detect manual edits of a page: render its result again and compare text, markup, styles, scripts and drawings.

Drawings are equal if they differ only in coordinates, and by less than a rounding error of another machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape

from dpspec.engine.results.result import Result
from dpspec.reporters.html.page import INTERNAL_MARK, generator, render
from dpspec.reporters.read_results import with_plain_result
from dpspec.text import shortened

#: A drawing in a page; drawings are not nested.
FIGURE = re.compile(r"<svg[ >].*?</svg>", re.DOTALL)

#: The maximum difference of equal coordinates.
_TOLERANCE = 0.05

#: The maximum length of a shown difference, and the number of characters before a difference in markup.
_SHOWN, _BEFORE = 300, 60

_TAG = re.compile(r"(<[^>]*>)")
_NUMBER = re.compile(r"(?<![\w.#-])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
_HEADING = re.compile(r"<(h[123]|caption)\b[^>]*>(.*?)</\1>", re.DOTALL)
_GENERATOR = re.compile(r'<meta name="generator" content="([^"]*)">')


@dataclass(frozen=True)
class Edited:
    """A difference: the heading above it, the page's text and the text that its result renders to."""

    under: str
    shown: str
    expected: str


def compared(page: str, result: Result) -> tuple[list[Edited], str]:
    """Differences, and the reason why a page of another version cannot be compared."""
    named, here = _GENERATOR.findall(page), generator()
    writer = named[0] if len(named) == 1 else ""
    if writer != here:
        return [], f"rendered by {writer or 'an unknown program'}, and this is {here}"
    return list(edited(page, result)), ""


def edited(page: str, result: Result) -> Iterator[Edited]:
    """Each line that differs from the rendered result; all lines if their numbers differ."""
    again = render(result, internal=INTERNAL_MARK in page)
    again = again if again.endswith("\n") or not page.endswith("\n") else f"{again}\n"
    if page == again:
        return
    page, again = with_plain_result(page), with_plain_result(again)
    shown, due = FIGURE.findall(page), FIGURE.findall(again)
    if len(shown) == len(due) and all(map(same_drawing, shown, due)):
        page, again = FIGURE.sub("<svg>", page), FIGURE.sub("<svg>", again)
    lines, expected = page.split("\n"), again.split("\n")
    if len(lines) != len(expected):
        first = next((i for i, (a, b) in enumerate(zip(lines, expected, strict=False)) if a != b), 0)
        yield _difference(lines, expected, first)
        return
    for number, (line, other) in enumerate(zip(lines, expected, strict=True)):
        if line != other:
            yield _difference(lines, expected, number)


def _difference(lines: list[str], expected: list[str], number: int) -> Edited:
    headings = _HEADING.findall("\n".join(expected[: number + 1]))
    under = " ".join(_words(headings[-1][1]).split()) if headings else f"line {number + 1}"
    line, other = (one[number] if number < len(one) else "" for one in (lines, expected))
    a, b = _words(line).split(), _words(other).split()
    if a == b:
        at = next((i for i, (x, y) in enumerate(zip(line, other, strict=False)) if x != y), min(len(line), len(other)))
        start = max(0, at - _BEFORE)
        return Edited(under, *(text[start : start + _SHOWN] or "nothing" for text in (line, other)))
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    return Edited(under, *(shortened(" ".join(text), _SHOWN) or "nothing" for text in (a, b)))


def _words(markup: str) -> str:
    return unescape(_TAG.sub(" ", markup)).strip()


def same_drawing(one: str, other: str) -> bool:
    """Equal except for rounding errors of coordinates in tags."""
    if one == other:
        return True
    a, b = (_TAG.split(text) for text in (one, other))
    if len(a) != len(b) or a[::2] != b[::2]:
        return False
    for tag, due in zip(a[1::2], b[1::2], strict=True):
        if tag == due:
            continue
        if "data:" in tag or _NUMBER.sub("0", tag) != _NUMBER.sub("0", due):
            return False  # digits of a picture are not coordinates
        pairs = zip(_NUMBER.findall(tag), _NUMBER.findall(due), strict=True)
        if any(abs(float(x) - float(y)) > _TOLERANCE for x, y in pairs):
            return False
    return True
