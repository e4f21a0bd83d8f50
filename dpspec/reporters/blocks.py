"""The blocks of a document: what a report says, in order, without a format.

Modules of ``dpspec.reporters.documents`` build documents of results. Renderers lay the blocks out, escape their texts
and add no words.

>>> claim = Entry(Badge("proved", "proved"), (Span("main", "name"), ": epsilon 3"))
>>> [span.text for span in spans(claim.text)]
['main', ': epsilon 3']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: The role of a part of a text.
Role: TypeAlias = Literal["", "strong", "name", "code", "quiet", "value", "unexpected", "warning"]


@dataclass(frozen=True)
class Span:
    """A part of a text with its role."""

    text: str
    role: Role = ""


@dataclass(frozen=True)
class Badge:
    """A verdict or a conformance, which stands out.

    Attributes:
        text: The words. After a comma, conditions of the verdict.
        status: The verdict, the conformance, or ``rejected`` for a test; empty for another label.
    """

    text: str
    status: str = ""


@dataclass(frozen=True)
class State:
    """The status of an assumption or of a channel: ``unchecked``."""

    text: str


#: A text: one string, or its parts in order.
Text: TypeAlias = str | tuple[str | Span | Badge | State, ...]


def spans(text: Text) -> tuple[Span | Badge | State, ...]:
    """The parts of a text that are not empty."""
    pieces = (text,) if isinstance(text, str) else text
    return tuple(span for span in (Span(piece) if isinstance(piece, str) else piece for piece in pieces) if span.text)


@dataclass(frozen=True)
class Answer:
    """The outcome of a report in one sentence, with its tone."""

    headline: str
    tone: Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Section:
    """A title, and what belongs to it. Level 2 is a part of the report, level 3 one audit or matrix."""

    title: Text
    blocks: tuple[Block, ...]
    level: int = 2


@dataclass(frozen=True)
class Fold:
    """Details that a format may fold below their title."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Droppable:
    """Blocks of which a format with a maximum length omits the last ones, and the block that then counts these."""

    blocks: tuple[Block, ...]
    omitted: Callable[[int], Block | None]


@dataclass(frozen=True)
class Sentence:
    """A paragraph. ``apart``: a remark on the whole report, not on the blocks above it."""

    text: Text
    apart: bool = False


@dataclass(frozen=True)
class Lead:
    """The outcome in one line: its status, and a sentence."""

    label: Badge
    text: str


@dataclass(frozen=True)
class Notice:
    """A warning that precedes all else: a label, a text for each case, and what it means for the reader."""

    label: str
    cases: tuple[Text, ...]
    meaning: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """An entry of a list, with entries below it, and paragraphs."""

    text: Text
    items: tuple[Text, ...] = ()
    paragraphs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Items:
    """A list; ``marked`` with bullets, else one line each."""

    items: tuple[Item, ...]
    marked: bool = True


def items(*texts: Text, marked: bool = True) -> Items:
    """A list of texts."""
    return Items(tuple(Item(text) for text in texts), marked)


@dataclass(frozen=True)
class Entry:
    """A claim, the conformance or a remedy: its status, statement, numbers, reason, and the tests below it."""

    label: Badge
    text: Text
    numbers: Text = ()
    reason: str = ""
    items: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Values:
    """Numbers of one rigor, origin and scope."""

    rigor: str
    origin: tuple[Text, ...]
    values: tuple[Text, ...]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        columns: The heads of the columns.
        rows: A text for each column.
        titles: For each row the title that replaces its first ``keys`` cells, if the rows are too wide for a table.
        keys: The number of columns that name a row.
        prose: The number of the column with sentences, which a narrow format folds; None without one.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    titles: tuple[str, ...] = ()
    keys: int = 0
    prose: int | None = None


@dataclass(frozen=True)
class Numbers:
    """Numbers of a series in columns; ``otherwise`` replaces ``caption`` if a format has no room for the rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] | None
    caption: str
    otherwise: str


@dataclass(frozen=True)
class Terms:
    """Terms with their texts."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Command:
    """A command to copy."""

    arguments: tuple[str, ...]


Block: TypeAlias = (
    Answer
    | Section
    | Fold
    | Droppable
    | Sentence
    | Lead
    | Notice
    | Items
    | Entry
    | Values
    | Table
    | Numbers
    | Terms
    | Command
)


@dataclass(frozen=True)
class Document:
    """All that one report says, in order."""

    blocks: tuple[Block, ...]
