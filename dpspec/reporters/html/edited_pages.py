"""Whether a page is the one that the result inside it makes: whatever was changed by hand is found and named.

The page is rendered anew and compared as a whole, character by character: text, markup, attributes, comments, styles,
scripts and drawings. Browsers show what styles and scripts make of a page, so nothing in it is harmless.

Two drawings are one where they are the same but for what another machine rounds otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from html.parser import HTMLParser

from dpspec.engine.results.result import Result
from dpspec.reporters.html.page import INTERNAL_MARK, generator, render
from dpspec.reporters.read_results import with_plain_result

#: A drawing as a page holds it: drawings hold none themselves.
FIGURE = re.compile(r"<svg[ >].*?</svg>", re.DOTALL)

#: Coordinates that differ by less are drawn at the same place.
_TOLERANCE = 0.05

_TAG = re.compile(r"(<[^>]*>)")
_NUMBER = re.compile(r"(?<![\w.#-])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")


def same_drawing(one: str, other: str) -> bool:
    """Whether all but the coordinates in the tags is equal, and these nearly so."""
    if one == other:
        return True
    a, b = (_TAG.split(text) for text in (one, other))
    return len(a) == len(b) and all(
        x == y or (i % 2 == 1 and _near(x, y)) for i, (x, y) in enumerate(zip(a, b, strict=True))
    )


def _near(one: str, other: str) -> bool:
    if "data:" in one or _NUMBER.sub("0", one) != _NUMBER.sub("0", other):
        return False  # digits of a picture are no coordinates
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= _TOLERANCE for a, b in pairs)


#: Elements whose text is no text of the page: code, and drawings, which are compared as they stand.
_UNSEEN = frozenset({"script", "style", "svg"})

_HEADINGS = frozenset({"h1", "h2", "h3", "caption"})

#: Differences of more pieces of text than this squared are told as one, and none at greater length than this.
_MOST, _LONGEST = 4_000_000, 300

#: Attributes that are read out, or put in the place of text.
_SPOKEN = ("aria-label", "data-sort", "style")

#: How a page names its writer.
_GENERATOR = re.compile(r'<meta name="generator" content="([^"]*)">')

#: What is shown before and behind a difference in what is no text.
_AROUND = 60


@dataclass(frozen=True)
class Edited:
    """A place where a page is not as its result makes it: under which heading, what is there, and what should be."""

    under: str
    shown: str
    expected: str


def compared(page: str, result: Result) -> tuple[list[Edited], str]:
    """Every place where a page is not the one that its result makes here, and why it could not be compared.

    Another version of dpspec words and draws a page in another way: then there is nothing to compare it with. The
    reason is empty where all was compared.
    """
    named = _GENERATOR.findall(page)
    here = generator()
    writer = named[0] if len(named) == 1 else ""
    if writer == here:
        return list(edited(page, result)), ""
    return [], f"rendered by {writer or 'nobody who says so'}, and this is {here}"


def edited(page: str, result: Result) -> Iterator[Edited]:
    """Every place where a page is not the one that its result makes, rendered anew by this version of dpspec."""
    again = _again(page, result)
    if page == again:
        return
    page, again = with_plain_result(page), with_plain_result(again)
    shown, due = (list(FIGURE.findall(text)) for text in (page, again))
    if len(shown) == len(due) and all(map(same_drawing, shown, due)):
        # Another machine may round otherwise in what only draws.
        page, again = _without_figures(page), _without_figures(again)
    yield from _edited(page, again)


def _edited(page: str, again: str) -> Iterator[Edited]:
    if page == again:
        return
    texts = list(_other_texts(_texts(page), _texts(again)))
    yield from texts
    if not texts:
        yield _other_markup(page, again)


def _again(page: str, result: Result) -> str:
    text = render(result, internal=INTERNAL_MARK in page)
    return text if text.endswith("\n") or not page.endswith("\n") else f"{text}\n"


def _without_figures(page: str) -> str:
    return FIGURE.sub("<svg>", page)


def _other_texts(seen: list[tuple[str, str]], due: list[tuple[str, str]]) -> Iterator[Edited]:
    first = next((i for i, (a, b) in enumerate(zip(seen, due, strict=False)) if a[1] != b[1]), min(len(seen), len(due)))
    a, b = seen[first:], due[first:]
    while a and b and a[-1][1] == b[-1][1]:
        a, b = a[:-1], b[:-1]
    if len(a) * len(b) > _MOST:
        yield Edited(a[0][0], _joined(a), _joined(b))
        return
    match = SequenceMatcher(None, [text for _, text in a], [text for _, text in b], autojunk=False)
    for kind, i, j, k, m in match.get_opcodes():
        if kind != "equal":
            under = (a[i : i + 1] or a[-1:] or seen[-1:] or [("", "")])[0][0]
            yield Edited(under, _joined(a[i:j]), _joined(b[k:m]))


def _other_markup(page: str, again: str) -> Edited:
    """The first place where pages of the same text differ: markup, styles, scripts, comments, the result's JSON."""
    at = next((i for i, (a, b) in enumerate(zip(page, again, strict=False)) if a != b), min(len(page), len(again)))
    line = page.count("\n", 0, at) + 1
    place = f"line {line} of its {_part(page[:at])}"
    start = max(0, at - _AROUND)
    return Edited(place, page[start : at + _AROUND], again[start : at + _AROUND])


def _part(before: str) -> str:
    """What a place in a page is in: the innermost element of those that are no text, by what was opened last."""
    for tag, name in (("style", "styles"), ("script", "scripts"), ("svg", "figures")):
        if before.rfind(f"<{tag}") > before.rfind(f"</{tag}>"):
            return name
    return "markup"


def _joined(texts: list[tuple[str, str]]) -> str:
    text = " | ".join(text for _, text in texts) or "nothing"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _texts(page: str) -> list[tuple[str, str]]:
    parser = _Texts()
    parser.feed(page)
    parser.close()
    return parser.texts


class _Texts(HTMLParser):
    """Every piece of a page's text with the heading above it, whitespace aside."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self._heading = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        if tag in _HEADINGS:
            self._heading = ""
        if not _UNSEEN & set(self._open):
            self.texts.extend((self._heading, value) for name, value in attrs if name in _SPOKEN and value)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        text = " ".join(data.split())
        if not text or _UNSEEN & set(self._open):
            return
        if _HEADINGS & set(self._open):
            self._heading = f"{self._heading} {text}".strip()
        self.texts.append((self._heading, text))
