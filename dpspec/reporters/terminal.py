"""Documents as lines of a terminal or a log: the brief report, or the full report with ``-v``."""

from collections.abc import Sequence

from dpspec.contract.results import Result
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
    Items,
    Lead,
    Notice,
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
from dpspec.reporters.documents.brief import brief
from dpspec.reporters.documents.full import full
from dpspec.reporters.layout import Page, text_table
from dpspec.results.void_bounds import for_readers

_STYLES = {
    "contradicted": "bold white on red",
    "refuted": "bold red",
    "proved": "bold green",
    "as-declared": "bold yellow",
    "but-cautions": "bold red",
    "supported": "green",
    "open": "yellow",
    "no-deviation-found": "green",
    "deviates": "bold red",
    "checks-missing": "bold red",
    "not-run": "yellow",
    "rejected": "bold red",
    "false": "bold red",
    "unchecked": "yellow",
}

#: The styles of roles.
_ROLES = {"strong": "bold", "name": "bold", "value": "cyan", "unexpected": "bold red", "warning": "yellow"}

#: The style of the answer, and of a line about the whole run, by its tone or status.
_TONES = {"good": "bold green", "bad": "bold red", "open": "bold yellow", "proved": "bold green"}

#: The width of the column of verdicts; ``contradicted`` is the longest.
_VERDICT_WIDTH = 12

#: Blanks before the paragraphs of a section and before lists, and further ones before what belongs to them.
_INDENT = 2

#: The minimum number of blanks between a verdict and its claim.
_GAP = 2


def render(result: Result, *, internal: bool = False, width: int = 80, color: bool = False) -> str:
    """The full report. Without ``internal``, data-dependent and per-record values are omitted and counted."""
    return write(full(for_readers(result, internal=internal)), width=width, color=color)


def render_brief(result: Result, *, internal: bool = False, width: int = 80, color: bool = False) -> str:
    document = brief(for_readers(result, internal=internal), internal=internal)
    return write(document, width=width, color=color)


def write(document: Document, *, width: int = 80, color: bool = False) -> str:
    page = Page(width, color=color)
    _write(page, document.blocks, indent=0)
    return page.text()


def _write(page: Page, blocks: Sequence[Block], *, indent: int) -> None:
    """``indent``: the blanks before paragraphs."""
    for block in blocks:
        match block:
            case Answer(headline, tone, sentences):
                page.line((f"{headline}.", _TONES[tone]))
                for sentence in sentences:
                    page.line(sentence)
            case Lead(label, text):
                page.line((_capitals(label.text), _TONES.get(label.status, "bold red")), f"  {text}", hang=_INDENT)
            case Section(title, contents, level):
                if level == 3:
                    page.line(*((text, "underline") for text, _ in _styled(title)), indent=indent)
                    _write(page, contents, indent=indent)
                else:
                    page.blank()
                    page.line(*((text, "bold") for text, _ in _styled(title)))
                    _write(page, contents, indent=_INDENT)
            case Fold(title, contents):
                page.line((title, "bold"), indent=indent)
                _write(page, contents, indent=indent)
            case Droppable(contents, omitted):
                remark = omitted(0)
                _write(page, contents if remark is None else (*contents, remark), indent=indent)
            case Cards(sections):
                _write(page, sections, indent=indent)
            case Drawing(_, text) if text:
                page.line(text, indent=indent)
            case Sentence(text, kind):
                if kind == "apart":
                    page.blank()
                page.line(*_styled(text), indent=indent)
            case Notice(label, cases, meaning):
                for case in cases:
                    text = "".join(text for text, _ in _styled(case))
                    page.line((f"!! {label.upper()}: {text}", _STYLES.get(label, "bold red")), hang=3)
                for sentence in meaning:
                    page.line(sentence, indent=3)
            case Items():
                _list(page, block)
            case Entry():
                _entry(page, block)
            case Values(rigor, origin, values):
                page.line((rigor, "bold"), indent=_INDENT, hang=_INDENT)
                for text in origin:
                    page.line(*_styled(text), indent=2 * _INDENT, hang=_INDENT)
                for text in values:
                    page.line(*_styled(text), indent=3 * _INDENT, hang=_INDENT)
            case Table():
                _table(page, block)
            case Figure():
                _figure(page, block)
            case Terms(rows):
                for term, text in rows:
                    page.line(*_styled(term), f": {text}", indent=2 * _INDENT, hang=_INDENT)
            case Command(arguments):
                page.command(arguments)


def _capitals(label: str) -> str:
    """A label in capitals, without its conditions."""
    name, comma, conditions = label.partition(",")
    return f"{name.upper()}{comma}{conditions}"


def _styled(text: Text) -> list[tuple[str, str]]:
    styled = []
    for span in spans(text):
        match span:
            case Badge(label, status):
                styled.append((_capitals(label), _STYLES.get(status, "")))
            case State(status):
                styled.append((status, _STYLES.get(status, "")))
            case Break(blank):
                styled.append((blank, ""))
            case Span(plain, role):
                styled.append((plain, _ROLES.get(role, "")))
    return styled


def _list(page: Page, block: Items) -> None:
    for item in block.items:
        if block.marked:
            page.item(*_styled(item.text), indent=_INDENT)
        else:
            page.line(*_styled(item.text), indent=_INDENT, hang=_INDENT)
        for text in item.items:
            page.item(*_styled(text), indent=2 * _INDENT)
        for paragraph in item.paragraphs:
            page.line(paragraph, indent=2 * _INDENT)


def _entry(page: Page, entry: Entry) -> None:
    """A line that begins with a label in capitals, in the column of verdicts."""
    label, column = entry.label, _VERDICT_WIDTH + _GAP
    gap = " " * max(_GAP, column - len(label.text))
    style = _STYLES.get(label.status, "")
    page.line((_capitals(label.text), style), gap, *_styled(entry.text), indent=_INDENT, hang=column)
    if entry.numbers:
        page.line(*_styled(entry.numbers), indent=_INDENT + column, hang=_INDENT)
    if entry.reason:
        page.line(entry.reason, indent=_INDENT + column)
    for text in entry.items:
        page.item(*_styled(text), indent=2 * _INDENT)


def _table(page: Page, table: Table) -> None:
    head, *rows = [["".join(span.text for span in spans(cell)) for cell in row] for row in (table.columns, *table.rows)]
    if table.prose is not None:
        page.table([head, *rows], indent=_INDENT, folded=table.prose)
        return
    lines = text_table([head, *rows])
    if table.titles and max(map(len, lines)) > page.width - _INDENT:
        lines = tuple(
            f"{title}: {_named_cells(head[table.keys :], row[table.keys :])}"
            for title, row in zip(table.titles, rows, strict=True)
        )
    for line in lines:
        page.line(line, indent=_INDENT, hang=_INDENT)


def _named_cells(names: Sequence[str], cells: Sequence[str]) -> str:
    """``epsilon-2: proved [1, 2]; conformance: not tested``"""
    return "; ".join(f"{name}: {cell}" for name, cell in zip(names, cells, strict=True) if cell)


def _figure(page: Page, figure: Figure) -> None:
    lines = () if figure.rows is None else text_table([figure.columns, *figure.rows], justify="right")
    indent = 3 * _INDENT
    fits = bool(lines) and len(max(lines, key=len)) <= page.width - indent
    caption = figure.caption if fits else figure.otherwise
    page.line(f"{figure.title}{f': {caption}' if caption else ''}", indent=2 * _INDENT, hang=_INDENT)
    for line in lines if fits else ():
        page.line(line, indent=indent)
    if fits and figure.remark:
        page.line(figure.remark, indent=indent)
