"""Documents as HTML. All texts are escaped; drawings are the only markup that a document has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import assert_never

from markupsafe import Markup, escape

from dpspec.reporters import words
from dpspec.reporters.blocks import (
    Answer,
    Badge,
    Block,
    Break,
    Cards,
    Command,
    Document,
    Drawing,
    Droppable,
    Entry,
    Figure,
    Fold,
    Item,
    Items,
    Lead,
    Notice,
    Piece,
    Section,
    Sentence,
    Span,
    State,
    Table,
    Terms,
    Text,
    Values,
    spans,
)
from dpspec.text import plain

#: Text without a line break. The lookbehind starts one match per run of digits: without it, 8,000 digits take 0.3
#: seconds and twice as many four times as long.
_WHOLE = re.compile(r"((?<![0-9.])[0-9.]+(?:e-[0-9]+| %)|DP-SGD)")

#: The mark of an answer by its tone, so that the color is not the only difference.
_MARKS = {"good": "\u2713", "bad": "\u2717", "open": "!"}

#: The tags of roles, and the classes of spans for the others.
_TAGS = {"strong": "strong", "name": "code", "code": "code"}
_CLASSES = {"quiet": "quiet", "value": "value", "unexpected": "unexpected", "warning": "flag"}

#: The classes of sentences.
_SENTENCES = {"": "", "apart": "", "lead": "lead", "note": "note", "quiet": "quiet", "warning": "warning"}

#: A figure of at least this number of columns and without a chart needs the width of the page.
_BROAD = 6


def write(document: Document) -> Markup:
    """The blocks, for the body of a page."""
    return _blocks(document.blocks)


def _blocks(blocks: Iterable[Block]) -> Markup:
    groups = []
    for is_figure, members in groupby(blocks, key=lambda block: isinstance(block, Figure)):
        written = Markup("\n").join(filter(None, map(_block, members)))
        groups.append(Markup('<div class="figures">\n{}\n</div>').format(written) if is_figure else written)
    return Markup("\n").join(groups)


def _block(block: Block) -> Markup:
    match block:
        case Answer(headline, tone, sentences):
            texts = _join(Markup("<p>{}</p>").format(_whole(sentence)) for sentence in sentences)
            return Markup(
                '<div class="tile {}"><span class="mark" aria-hidden="true">{}</span>\n<p class="headline">{}</p>\n'
                "{}</div>"
            ).format(tone, _MARKS[tone], _whole(headline), texts)
        case Section():
            return _section(block)
        case Cards(sections):
            return Markup('<div class="cards">\n{}\n</div>').format(_blocks(sections))
        case Fold(title, contents, is_open):
            return _details(_whole(title), _blocks(contents), is_open=is_open)
        case Droppable(contents, omitted):
            remark = omitted(0)
            return _blocks(contents if remark is None else (*contents, remark))
        case Sentence(text, kind):
            return _paragraph(_inline(text), "made" if kind == "control" else _SENTENCES[kind])
        case Lead(label, text):
            return _paragraph(_inline((label, " ", text)))
        case Notice(label, cases, meaning):
            alarm = Markup('<p class="alarm"><strong>{}:</strong> {}</p>')
            alarms = (_join([_inline(case), *map(_whole, meaning)], ". ") for case in cases)
            return Markup("\n").join(alarm.format(label.capitalize(), text) for text in alarms)
        case Items():
            return _list(block)
        case Entry(label, text, numbers, reason, tests):
            lines = (_inline((label, " ", *spans(text))), _inline(numbers), _whole(reason))
            below = Items(tuple(map(Item, tests)))
            return _paragraph(Markup("<br>").join(filter(None, lines))) + _list(below)
        case Values(rigor, origin, values):
            head = _paragraph(Markup("<strong>{}</strong> ").format(_text(rigor)) + _join(map(_inline, origin), "; "))
            return head + _list(Items(tuple(map(Item, values))))
        case Table():
            return _table(block)
        case Figure():
            return _figure(block)
        case Drawing(svg):
            return Markup(svg)
        case Terms(rows, is_glossary):
            entries = _join(_term(term, text, is_glossary=is_glossary) for term, text in rows)
            return Markup('<dl class="{}">{}</dl>').format("words" if is_glossary else "audited", entries)
        case Command(arguments):
            return Markup('<pre tabindex="0"><code>{}</code></pre>').format(shlex.join(map(plain, arguments)))
        case _:
            assert_never(block)


def _section(section: Section) -> Markup:
    title, contents = _inline(section.title), _blocks(section.blocks)
    if section.level == 1:
        return Markup("<h1>{}</h1>\n{}").format(title, contents)
    key = plain(section.key)
    level = 2 if section.kind in ("audit", "matrix", "card", "remedies") else section.level
    if section.kind == "audit":
        heading = Markup('<h2 id="{}-h">{}</h2>').format(key, title)
        if section.summary:
            head = Markup("{} {}").format(heading, _whole(section.summary))
            folded = _details(head, contents, is_open=section.is_open, kind="cell")
        else:
            folded = heading + "\n" + contents
        return Markup('<article id="{}" aria-labelledby="{}-h">\n{}\n</article>').format(key, key, folded)
    attributes = Markup(' class="{}"').format(section.kind) if section.kind else Markup("")
    if key:
        attributes += Markup(' id="{}"').format(key)
    heading = Markup("<h{}>{}</h{}>").format(level, title, level)
    if key and level == 2:
        attributes += Markup(' aria-labelledby="{}-h"').format(key)
        heading = Markup('<h2 id="{}-h">{}</h2>').format(key, title)
    return Markup("<section{}>{}\n{}\n</section>").format(attributes, heading, contents)


def _details(title: Markup, contents: Markup, *, is_open: bool = False, kind: str = "") -> Markup:
    attributes = Markup(' class="{}"').format(kind) if kind else Markup("")
    attributes += " open" if is_open else ""
    return Markup("<details{}><summary>{}</summary>\n{}</details>").format(attributes, title, contents)


def _paragraph(text: Markup, kind: str = "") -> Markup:
    return Markup('<p class="{}">{}</p>').format(kind, text) if kind else Markup("<p>{}</p>").format(text)


def _list(block: Items) -> Markup:
    if not block.items:
        return Markup("")
    if not block.marked:
        return Markup("\n").join(_paragraph(_inline(item.text)) + _below(item) for item in block.items)
    has_states = all(isinstance(spans(item.text)[0], State) for item in block.items if item.text)
    entries = _join(_item(item, has_state=has_states) for item in block.items)
    return Markup("<ul{}>{}</ul>").format(Markup(' class="assumptions"') if has_states else "", entries)


def _item(item: Item, *, has_state: bool) -> Markup:
    first, *remaining = spans(item.text) or (Span(""),)
    text = _piece(first, whole=True)
    if has_state:
        text = Markup("{} <span>{}</span>").format(text, _inline(tuple(remaining)).strip())
    else:
        text += _inline(tuple(remaining))
    key = Markup(' id="{}"').format(plain(item.key)) if item.key else ""
    return Markup("<li{}>{}{}</li>\n").format(key, text, _below(item))


def _below(item: Item) -> Markup:
    paragraphs = _join(Markup("<p>{}</p>").format(_whole(text)) for text in item.paragraphs)
    return _list(Items(tuple(map(Item, item.items)))) + paragraphs


def _table(table: Table) -> Markup:
    classes = "broad tests" if table.kind == "tests" else table.kind
    region = Markup('<div class="wide" tabindex="0" role="region" aria-label="{}">').format(
        _text(f"{table.title}, table" if table.kind == "numbers" else table.title)
    )
    caption = Markup('<caption class="hidden">{}</caption>').format(_text(table.title)) if table.title else ""
    heads = _join(map(_head(table), table.columns))
    rows = _join(_rows(table))
    return Markup('{}<table class="{}">\n{}\n<thead><tr>{}</tr></thead>\n<tbody>{}</tbody>\n</table></div>').format(
        region, classes, caption, heads, rows
    )


def _head(table: Table) -> Callable[[Text], Markup]:
    def written(column: Text) -> Markup:
        text = _inline(column, whole=False)
        if table.kind == "numbers":  # a name may be broken after its underscores only
            text = Markup("_<wbr>").join(map(_text, "".join(span.text for span in spans(column)).split("_")))
        elif table.kind == "overview" and isinstance(column, str):
            text = _text(words.sentence(column))
        return Markup('<th scope="col">{}</th>').format(text)

    return written


def _rows(table: Table) -> Iterator[Markup]:
    """Cells with sentences, and of matrices, are read as text; others are numbers and names."""
    marks: Sequence[str] = table.marks or ("",) * len(table.rows)
    meanings: Sequence[str] = table.meanings or ("",) * len(table.columns)
    for row, mark in zip(table.rows, marks, strict=True):
        cells = (
            Markup("<td{}>{}</td>").format(
                Markup(' class="{}"').format(meaning) if meaning else "",
                _inline(cell, whole=meaning == "says" or table.kind == "sortable"),
            )
            for cell, meaning in zip(row, meanings, strict=True)
        )
        yield Markup("<tr{}>{}</tr>\n").format(Markup(' class="{}"').format(mark) if mark else "", _join(cells))


def _figure(figure: Figure) -> Markup:
    rows = figure.rows or ()
    is_broad = figure.chart is None and len(figure.columns) >= _BROAD
    title = _text(figure.title)
    caption = Markup('<br><span class="quiet">{}</span>').format(_text(figure.caption)) if figure.caption else ""
    drawing = Markup("")
    if figure.chart is not None:
        svg = Markup(figure.chart.svg(figure.key))
        plot = Markup('<div class="plot" tabindex="0" role="region" aria-label="{}, figure">{}</div>\n')
        drawing = plot.format(title, svg)
        if legend := figure.chart.legend:
            entry = Markup('<li><span style="border-top:2px {}"></span>{}</li>')
            entries = _join(entry.format(style, _text(label)) for style, label in legend)
            drawing += Markup('<ul class="legend">{}</ul>\n').format(entries)
    table = _table(Table(figure.columns, rows, title=figure.title, kind="numbers"))
    remark = _paragraph(_text(figure.remark), "quiet") if figure.remark else Markup("")
    details = _details(Markup("Table"), table + remark, is_open=figure.chart is None)
    return Markup("<figure{}>\n<figcaption><strong>{}</strong>{}</figcaption>\n{}{}\n</figure>").format(
        Markup(' class="broad"') if is_broad else "", title, caption, drawing, details
    )


def _term(term: Text, text: str, *, is_glossary: bool) -> Markup:
    name = "".join(span.text for span in spans(term))
    key = Markup(' id="{}"').format(term_key(name)) if is_glossary and isinstance(term, str) else ""
    return Markup("<div{}><dt>{}</dt><dd>{}</dd></div>\n").format(key, _inline(term, whole=False), _whole(text))


def term_key(name: str) -> str:
    """``term-gamma-kappa``: the key of a term of the glossary."""
    return f"term-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"


def _inline(text: Text, *, whole: bool = True) -> Markup:
    return _join(_piece(piece, whole=whole) for piece in spans(text))


def _piece(piece: Piece, *, whole: bool) -> Markup:
    match piece:
        case Break():
            return Markup("<br>")
        case Badge(text, status, control):
            kind = "as-declared" if status == "but-cautions" else status
            return Markup('<span class="verdict {}{}">{}</span>').format(
                plain(kind), " control" if control else "", _text(text)
            )
        case State(status):
            symbol = words.SYMBOLS.get(status, "")
            return Markup('<span class="status {}">{} {}</span>').format(plain(status), symbol, _text(status))
        case Span(text, role, link):
            written = _whole(text) if whole and role not in _TAGS else _text(text)
            if role in _TAGS:
                written = Markup("<{}>{}</{}>").format(_TAGS[role], written, _TAGS[role])
            elif role in _CLASSES:
                written = Markup('<span class="{}">{}</span>').format(_CLASSES[role], written)
            if link:
                kind = Markup(' class="term"') if link.startswith("term-") else ""
                written = Markup('<a{} href="#{}">{}</a>').format(kind, plain(link), written)
            return written
        case _:
            assert_never(piece)


def _text(text: str) -> Markup:
    return escape(plain(text))


def _whole(text: str) -> Markup:
    """With signs of comparison, and no line breaks inside numbers and names: browsers break ``1e-5`` at its hyphen."""
    pieces = _WHOLE.split(plain(text).replace("<=", "\u2264").replace(">=", "\u2265"))
    marked = (f'<span class="whole">{escape(part)}</span>' if i % 2 else escape(part) for i, part in enumerate(pieces))
    return Markup("").join(map(Markup, marked))


def _join(pieces: Iterable[Markup], separator: str = "") -> Markup:
    return Markup(separator).join(pieces)
