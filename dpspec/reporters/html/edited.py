"""Whether a page still shows what the result inside it says: text that was changed by hand is found and named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from html.parser import HTMLParser

from dpspec.engine.result import Result
from dpspec.reporters.html.page import INTERNAL_MARK, generator, render

#: Elements whose text is no text of the page: code, and drawings, which differ between versions of what draws them.
_UNSEEN = frozenset({"script", "style", "svg"})

_HEADINGS = frozenset({"h1", "h2", "h3", "caption"})

#: Differences of more pieces of text than this squared are told as one, and none at greater length than this.
_MOST, _LONGEST = 4_000_000, 300

#: Attributes that are read out, or put in the place of text.
_SPOKEN = ("aria-label", "data-sort", "style")


@dataclass(frozen=True)
class Edited:
    """A place where a page says something else than its result: under which heading, what, and what it should be."""

    under: str
    shown: str
    expected: str


def comparable(page: str) -> bool:
    """Whether this version of dpspec wrote the page: another one may word it in another way."""
    return f'<meta name="generator" content="{generator()}">' in page


def edited(page: str, result: Result) -> Iterator[Edited]:
    """Every place where the text of a page is not that of its result, rendered anew by this version of dpspec.

    The curves of the figures are not compared, but the tables behind them are.
    """
    seen = _texts(page)
    due = _texts(render(result, internal=INTERNAL_MARK in page))
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
