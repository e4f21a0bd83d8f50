"""Documents as GitHub-flavored Markdown, for a job summary, a comment or a published page."""

import shlex
from collections.abc import Iterator, Sequence

from dpspec.contract.results import Result
from dpspec.reporters.blocks import (
    Answer,
    Badge,
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
    Piece,
    Section,
    Sentence,
    Span,
    Table,
    Terms,
    Text,
    Values,
    spans,
)
from dpspec.reporters.documents.pull_request import pull_request
from dpspec.results.void_bounds import for_readers
from dpspec.text import markdown, plain

#: The length up to which droppable blocks are added. A comment on GitHub has at most 65,536 characters.
_MOST_CHARACTERS = 56_000


def render(result: Result, *, internal: bool = False) -> str:
    """The report for pull requests. Without ``internal``, data-dependent values are omitted."""
    return write(pull_request(for_readers(result, internal=internal)))


def write(document: Document) -> str:
    return "\n".join(_lines(document.blocks, _MOST_CHARACTERS)).rstrip() + "\n"


def _length(lines: Sequence[str]) -> int:
    return sum(len(line) + 1 for line in lines)


def _lines(blocks: Sequence[Block], most: int) -> list[str]:
    """The lines of blocks. Droppable ones are omitted beyond ``most`` characters."""
    written = [None if isinstance(block, Droppable) else list(_block(block, most)) for block in blocks]
    remaining = most - sum(_length(lines) for lines in written if lines is not None)
    for number, block in enumerate(blocks):
        if isinstance(block, Droppable):
            written[number] = lines = []
            omitted = 0
            for part in block.blocks:
                of_part = list(_block(part, most))
                if _length(of_part) > remaining:
                    omitted += 1
                    continue
                remaining -= _length(of_part)
                lines.extend(of_part)
            if (counted := block.omitted(omitted)) is not None:
                lines.extend(_block(counted, most))
    return [line for lines in written for line in lines or ()]


def _block(block: Block, most: int) -> Iterator[str]:
    match block:
        case Answer(headline, _, sentences):
            yield from (f"**{markdown(headline)}**", "")
            for sentence in sentences:
                yield from (markdown(sentence), "")
        case Lead(label, text):
            yield from (f"**{markdown(label.text)}** {markdown(text)}", "")
        case Section(title, contents, level):
            yield from (f"{'#' * level} {_inline(title)}", "")
            title_length = len(_inline(title)) + level + 3
            yield from _lines(contents, most - title_length)
        case Fold(title, contents):  # HTML escapes no foreign text: titles have none
            yield from (f"<details><summary>{title}</summary>", "")
            yield from _lines(contents, most)
            yield from ("</details>", "")
        case Cards(sections):
            yield from _lines(sections, most)
        case Drawing(_, text) if text:
            yield from (markdown(text), "")
        case Sentence(text):
            yield from (_inline(text), "")
        case Notice(label, cases, meaning):
            for case in cases:
                yield from (f"> **{label.upper()}** {_inline(case)}", "")
            for sentence in meaning:
                yield from (f"> {markdown(sentence)}", "")
        case Items(entries) if entries:
            for item in entries:
                yield f"- {_inline(item.text)}"
                yield from (f"  - {_inline(text)}" for text in item.items)
                yield from (f"  {markdown(text)}" for text in item.paragraphs)
            yield ""
        case Entry(label, text, numbers, reason, entries):
            yield f"- **{markdown(label.text)}** {_inline(text)}"
            yield from (f"  - {line}" for line in (_inline(numbers), markdown(reason), *map(_inline, entries)) if line)
            yield ""
        case Values(rigor, origin, values):
            yield from (f"**{markdown(rigor)}** {'; '.join(map(_inline, origin))}", "")
            yield from (*(f"- {_inline(text)}" for text in values), "")
        case Table(columns, rows):
            yield from table(columns, rows)
            yield ""
        case Figure(title, columns, rows, caption, otherwise, _, remark):
            caption = otherwise if rows is None else caption
            yield from (f"{markdown(title)}{f': {markdown(caption)}' if caption else ''}", "")
            if rows is not None:
                yield from (*table(columns, rows), "")
            if remark:
                yield from (markdown(remark), "")
        case Terms(rows):
            yield from (f"- {_inline(term)}: {markdown(text)}" for term, text in rows)
            yield ""
        case Command(arguments):
            line, fence = shlex.join(map(plain, arguments)), "```"
            while fence in line:
                fence += "`"
            yield from (f"{fence}sh", line, fence, "")


def table(columns: Sequence[Text], rows: Sequence[Sequence[Text]]) -> Iterator[str]:
    """The lines of a table."""
    yield "".join(f"| {_inline(column)} " if column else "| " for column in columns) + "|"
    yield f"|{'---|' * len(columns)}"
    yield from (f"| {' | '.join(map(_inline, row))} |" for row in rows)


def _inline(text: Text) -> str:
    return "".join(map(_span, spans(text))).strip()


def _span(span: Piece) -> str:
    """Escaped, with the blanks that separate it from its neighbors."""
    text = markdown(span.text)
    if isinstance(span, Badge) or (isinstance(span, Span) and span.role in ("strong", "unexpected")):
        return f"**{text}**"
    if isinstance(span, Span) and span.role == "code" and "`" not in span.text:
        return f"`{plain(span.text)}`"
    before, after = (" " if blank else "" for blank in (span.text[:1] == " ", span.text[-1:] == " "))
    return f"{before}{text}{after}" if text else " "
