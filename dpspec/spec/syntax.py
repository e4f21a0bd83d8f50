"""What is wrong with text that is not YAML, in our own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from dpspec.contract import Diagnostic, Span
from dpspec.spec.words import clipped

#: A piece of the parser's message, what we say instead, and what to do.
_TEXTS: tuple[tuple[str, str, str | None], ...] = (
    ("mapping values are not allowed", "a ': ' cannot stand here", "a line holds one 'key: value'; quote other colons"),
    ("'\\t' that cannot start", "a tab cannot stand here", "indent with spaces"),
    ("could not find expected ':'", "a key without ':'", "write 'key: value', with a space after the colon"),
    ("expected <block end>", "this line does not fit the indentation above it", "align it with its neighbours"),
    ("expected ',' or ']'", "a list that '[' opened is not closed here", "separate items by ',' and close with ']'"),
    ("expected ',' or '}'", "a map that '{' opened is not closed here", "separate entries by ',' and close with '}'"),
    ("unexpected end of stream", "a quoted text is not closed", "close it with the quote that opened it"),
    ("unexpected document separator", "a quoted text is not closed", "close it with the quote that opened it"),
    ("found undefined alias", "this alias has no anchor", "write &name before the value that it should repeat"),
    ("found duplicate anchor", "this anchor was used before", "give each anchor its own name"),
    ("unknown escape character", "no such escape in quotes", "use single quotes for text with backslashes"),
    ("expected escape sequence", "an escape in quotes is not complete", "use single quotes for text with backslashes"),
    ("cannot start any token", "this character cannot begin a value", "put the value in quotes"),
    ("sequence entries are not allowed", "a list item cannot begin here", "begin the list on a line of its own"),
    ("expected '<document start>'", "a second YAML document begins here", "a file holds one spec"),
    ("block mapping", "this is not an entry 'key: value'", None),
)


def syntax_diagnostic(error: yaml.YAMLError, mark_span: Callable[[Any], Span]) -> Diagnostic:
    """The diagnostic for an error of the parser; ``mark_span`` turns its marks into spans."""
    problem, mark = "this is not YAML", None
    if isinstance(error, yaml.MarkedYAMLError):
        problem = error.problem or problem
        mark = error.problem_mark or error.context_mark
    span = mark_span(mark) if mark is not None else None
    said = f"{problem} {getattr(error, 'context', '') or ''}"
    for piece, message, hint in _TEXTS:
        if piece in said:
            return Diagnostic(code="syntax", message=message, span=span, help=hint)
    return Diagnostic(code="syntax", message=f"not YAML: {clipped(problem, 100)}", span=span)
