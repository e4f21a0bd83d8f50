"""Every renderer lays out every document, and a new format is as long as its list of blocks."""

import dataclasses
import html
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any, assert_never, get_args

import pytest
from support import results as factory

from dpspec.contract import FrozenMap
from dpspec.contract.executed import ExecutedSection, FiredRule, SectionGroup
from dpspec.contract.findings import Channel
from dpspec.contract.results import Result
from dpspec.reporters import blocks, markdown, page, statement, terminal
from dpspec.reporters import html as pages
from dpspec.reporters.blocks import (
    Answer,
    Block,
    Cards,
    Command,
    Document,
    Drawing,
    Droppable,
    Entry,
    Figure,
    Fold,
    Items,
    Lead,
    Notice,
    Section,
    Sentence,
    Table,
    Terms,
    Text,
    Values,
)
from dpspec.reporters.documents.brief import brief
from dpspec.reporters.documents.full import full
from dpspec.reporters.documents.page import page as page_document
from dpspec.reporters.documents.pull_request import pull_request
from dpspec.results.redact import redact


def org(document: Iterable[Block], depth: int = 1) -> Iterator[str]:
    """A report format for Emacs: each block in a line or two."""
    for block in document:
        match block:
            case Section(title, contents) | Fold(title, contents):
                yield from (f"{'*' * depth} {words(title)}", *org(contents, depth + 1))
            case Cards(contents) | Droppable(contents):
                yield from org(contents, depth)
            case Answer(text) | Sentence(text) | Drawing(_, text):
                yield words(text)
            case Lead(label, text) | Entry(label, text):
                yield f"- {label.text} :: {words(text)}"
            case Notice(label, cases):
                yield from (f"#+{label}: {words(case)}" for case in cases)
            case Items(entries):
                yield from (f"- {words(entry.text)}" for entry in entries)
            case Values(rigor, _, values):
                yield from (f"- {words(value)} ({rigor})" for value in values)
            case Table(columns, rows) | Figure(_, columns, rows):
                yield from (f"| {' | '.join(map(words, row))} |" for row in (columns, *(rows or ())))
            case Terms(terms):
                yield from (f"- {words(term)} :: {text}" for term, text in terms)
            case Command(arguments):
                yield f": {shlex.join(arguments)}"
            case _:
                assert_never(block)


def words(text: Text) -> str:
    return "".join(span.text for span in blocks.spans(text))


DOCUMENTS: dict[str, Callable[[Result], Document]] = {
    "brief": brief,
    "full": full,
    "pull request": pull_request,
    "page": lambda result: page_document(result, internal=False),
    "statement": statement.statement,
}


def html_text(page_text: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page_text)).replace("\u2264", "<=").replace("\u2265", ">=")


RENDERERS: dict[str, Callable[[Document], str]] = {
    "terminal": terminal.write,
    "Markdown": lambda document: html.unescape(markdown.write(document)).replace("\\", ""),
    "HTML": lambda document: html_text(pages.write(document)),
}


def recorded() -> Any:
    rule = FiredRule(name="guessable-seed", text="The seed is 0.", why="Seeds are guessed.", fix="Use a secret seed.")
    rows = (Channel(name="noise", status="violated", text="a tenth of the declared noise"),)
    group = SectionGroup(
        title="Channels", columns=("channel", "status", "text"), rows=rows, sentences=("One sentence.",)
    )
    section = ExecutedSection(ran="an MLP", groups=(group,), rules=(rule,), confirm=("Each record is one person.",))
    threat = {"adjacency": "zero-out", "group_size": [1]}
    claim = {"id": "one", "kind": "approx-dp", "epsilon": 3.0, "delta": 1e-6, "group_size": 1}
    document = FrozenMap({"dpspec": 1, "name": "run", "threat_model": threat, "claims": [claim]})
    return factory.audit("run", recording=section, document=document, trials=(), planned_trials=0)


@pytest.fixture
def results(result: Result) -> list[Result]:
    """A hostile result, one of several audits with a recording, a deviation and a figure, and a large matrix."""
    series = factory.series({"step": [1, 2], "epsilon": [1.0, 2.0]}, {"x": "step", "y": ["epsilon"]}, title="A curve")
    deviating = factory.audit("bad", conformance=factory.conformance("deviates", expected=False), series=(series,))
    cells = [
        dataclasses.replace(factory.audit(f"sweep[{noise}]"), cell=FrozenMap({"mechanism.noise": noise}))
        for noise in range(9)
    ]
    return [redact(one) for one in (result, factory.result(recorded(), deviating), factory.result(*cells))]


def test_a_new_format_renders_every_block(results: list[Result]) -> None:
    for result in results:
        for build in DOCUMENTS.values():
            text = "\n".join(org(build(result).blocks))
            assert all(verdict.claim in text for audit in result.audits for verdict in audit.verdicts[:1])
    kinds = {
        type(block) for result in results for build in DOCUMENTS.values() for block in inside(build(result).blocks)
    }
    assert kinds == set(get_args(Block)), "each kind of block is in a document"


def inside(some: Iterable[Block]) -> Iterator[Block]:
    """The blocks, and the blocks in them."""
    for block in some:
        yield block
        match block:
            case Section(_, contents) | Fold(_, contents) | Cards(contents) | Droppable(contents):
                yield from inside(contents)


@pytest.mark.parametrize("format_name", RENDERERS)
@pytest.mark.parametrize("document_name", DOCUMENTS)
def test_each_renderer_says_all_of_each_document(results: list[Result], document_name: str, format_name: str) -> None:
    for result in results[1:]:
        document = DOCUMENTS[document_name](result)
        text = squeezed(RENDERERS[format_name](document))
        for block in inside(document.blocks):
            missing = [said for said in stated(block) if squeezed(said) not in text]
            assert not missing, type(block)


def squeezed(text: str) -> str:
    """Without blanks, markup of Markdown and capitals, which layouts add."""
    return re.sub(r"[\s*`|]", "", text).lower()


def stated(block: Block) -> list[str]:
    """The texts of a block without those of blocks in it."""
    match block:
        case Answer(headline, _, sentences):
            return [headline, *sentences]
        case Section(title) | Fold(title):
            return [words(title)]
        case Sentence(text):
            return [words(text)]
        case Lead(label, text):
            return [label.text, text]
        case Notice(label, cases, meaning):
            return [label, *map(words, cases), *meaning]
        case Items(entries):
            return [said for item in entries for said in (words(item.text), *map(words, item.items), *item.paragraphs)]
        case Entry(label, text, numbers, reason, tests):
            return [label.text, words(text), words(numbers), reason, *map(words, tests)]
        case Values(rigor, origin, values):
            return [rigor, *map(words, origin), *map(words, values)]
        case Terms(rows):
            return [said for term, text in rows for said in (words(term), text)]
        case Table(columns, rows, prose=None):
            return [words(cell) for row in (columns, *rows) for cell in row]
        case Figure(title):
            return [title]
        case Command(arguments):
            return [shlex.join(arguments)]
    return []


def test_texts_with_markup_are_escaped_in_every_format(result: Result) -> None:
    """The claims and reasons of the hostile result have markup of three languages."""
    for build in DOCUMENTS.values():
        document = build(result)
        assert "\x1b" not in terminal.write(document) + markdown.write(document)
        assert "<b>" not in pages.write(document)
        assert "<b>" not in markdown.write(document)


def test_the_page_is_its_document(result: Result) -> None:
    text = page.render(result)
    assert pages.write(page_document(redact(result), internal=False)) in text
