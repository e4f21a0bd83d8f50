"""The blocks of a document: the content of a report, in order, without a format.

Modules of ``dpspec.reporters.documents`` build documents of results. Renderers lay the blocks out, escape their texts
and add no words.

>>> claim = Entry(Badge("proved", "proved"), (Span("main", "name"), ": epsilon 3"))
>>> [span.text for span in spans(claim.text)]
['main', ': epsilon 3']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from dpspec.reporters.charts import Chart

#: The role of a part of a text.
Role: TypeAlias = Literal["", "strong", "name", "code", "quiet", "value", "unexpected", "warning"]


@dataclass(frozen=True)
class Span:
    """A part of a text with its role. ``link``: the key of the section, entry or term that it leads to."""

    text: str
    role: Role = ""
    link: str = ""


@dataclass(frozen=True)
class Badge:
    """A verdict or a conformance, to be highlighted.

    Attributes:
        text: The words. After a comma, conditions of the verdict.
        status: The verdict, the conformance, or ``rejected`` for a test; empty for another label.
        control: Whether a control has this status on purpose; then it raises no alarm.
    """

    text: str
    status: str = ""
    control: bool = False


@dataclass(frozen=True)
class State:
    """The status of an assumption or of a channel: ``unchecked``."""

    text: str


@dataclass(frozen=True)
class Break:
    """The end of a line in a cell."""

    text: str = " "


#: A part of a text.
Piece: TypeAlias = Span | Badge | State | Break

#: A text: one string, or its parts in order.
Text: TypeAlias = str | tuple[str | Piece, ...]


def spans(text: Text) -> tuple[Piece, ...]:
    """The parts of a text that are not empty."""
    pieces = (text,) if isinstance(text, str) else text
    return tuple(span for span in (Span(piece) if isinstance(piece, str) else piece for piece in pieces) if span.text)


@dataclass(frozen=True)
class Answer:
    """The outcome of a report in one sentence, with its tone and further sentences."""

    headline: str
    tone: Literal["good", "bad", "open"]
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A title with its blocks.

    Attributes:
        level: 1 for the report, 2 for its parts, 3 for one audit or matrix of a report, or a part of a part.
        key: The name that links lead to; empty if none do.
        kind: The subject of a section that some formats lay out differently.
        summary: The sentence that a format shows in place of a folded section; empty for a section that is not folded.
        is_open: Whether a folded section is open at first.
    """

    title: Text
    blocks: tuple[Block, ...]
    level: int = 2
    key: str = ""
    kind: Literal["", "audit", "card", "claim", "matrix", "remedies"] = ""
    summary: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Cards:
    """Short sections that a wide format shows side by side."""

    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Fold:
    """Details that a format may fold below their title."""

    title: str
    blocks: tuple[Block, ...]
    is_open: bool = False


@dataclass(frozen=True)
class Droppable:
    """Blocks whose last ones a format with a maximum length omits, and the block that counts the omitted ones."""

    blocks: tuple[Block, ...]
    omitted: Callable[[int], Block | None]


@dataclass(frozen=True)
class Sentence:
    """A paragraph.

    ``kind``: ``apart`` for a remark on the whole report, not on the blocks above it; ``lead`` for an introduction,
    ``note`` and ``quiet`` for remarks, ``warning`` for one that must be read, ``control`` for the ones about controls.
    """

    text: Text
    kind: Literal["", "apart", "lead", "note", "quiet", "warning", "control"] = ""


@dataclass(frozen=True)
class Lead:
    """The outcome in one line: its status, and a sentence."""

    label: Badge
    text: str


@dataclass(frozen=True)
class Notice:
    """A warning that precedes all else: a label, a text for each case, and the meaning for the reader."""

    label: str
    cases: tuple[Text, ...]
    meaning: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """An entry of a list, with entries below it, and paragraphs. Links lead to ``key``."""

    text: Text
    items: tuple[Text, ...] = ()
    paragraphs: tuple[str, ...] = ()
    key: str = ""


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


#: The content of the cells of a column, and the fault of a row.
Meaning: TypeAlias = Literal["", "cell", "says", "number"]
Mark: TypeAlias = Literal["", "rejected", "printed"]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        columns: The heads of the columns.
        rows: A text for each column.
        titles: For each row the title that replaces its first ``keys`` cells, if the rows are too wide for a table.
        keys: The number of columns that name a row.
        prose: The number of the column with sentences, which a narrow format folds; None without one.
        title: A caption of the rows.
        kind: ``overview`` for claims and channels, ``broad`` for many columns, ``tests`` for tests of conformance,
            ``numbers``, and ``sortable`` for cells of a matrix.
        meanings: For each column whether its cells are names, sentences or numbers, or empty.
        marks: For each row ``rejected`` for a failed test, ``printed`` for a formula that is wrong, or empty.
    """

    columns: tuple[Text, ...]
    rows: tuple[tuple[Text, ...], ...]
    titles: tuple[str, ...] = ()
    keys: int = 0
    prose: int | None = None
    title: str = ""
    kind: Literal["overview", "broad", "tests", "numbers", "sortable"] = "broad"
    meanings: tuple[Meaning, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Figure:
    """Numbers in columns, with a chart or without one.

    Attributes:
        rows: The texts of the rows; None if there are too many for any table.
        caption: The rounding, rigor and source.
        otherwise: Replaces ``caption`` if a format has no room for the rows.
        chart: The chart of the numbers.
        remark: Which rows are omitted; empty if none are.
        key: The name of the drawing.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] | None
    caption: str
    otherwise: str = ""
    chart: Chart | None = None
    remark: str = ""
    key: str = ""


@dataclass(frozen=True)
class Drawing:
    """A drawing as SVG, and the words that say the same; no words if the text next to it does."""

    svg: str
    text: str = ""


@dataclass(frozen=True)
class Terms:
    """Terms with their texts. ``is_glossary``: links lead to the terms by their names."""

    rows: tuple[tuple[Text, str], ...]
    is_glossary: bool = False


@dataclass(frozen=True)
class Command:
    """A command to copy."""

    arguments: tuple[str, ...]


Block: TypeAlias = (
    Answer
    | Section
    | Cards
    | Fold
    | Droppable
    | Sentence
    | Lead
    | Notice
    | Items
    | Entry
    | Values
    | Table
    | Figure
    | Drawing
    | Terms
    | Command
)


@dataclass(frozen=True)
class Document:
    """All that one report says, in order."""

    blocks: tuple[Block, ...]
