"""Plain YAML scalars by the 1.2 core schema (``1e-6`` is a number, ``no`` a string, ``010`` ten), and syntax errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

from dpspec.contract import Diagnostic, Json, Span
from dpspec.text import clipped

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.?(nan|inf|infinity)", re.IGNORECASE)
_MAX_INTEGER = 2**63 - 1


def read_scalar(text: str) -> Json:
    """Return the value of an unquoted scalar: None, a bool, an int, a float, or the string itself.

    Unlike in the core schema, ``.nan`` and ``.inf`` are strings.

    Raises:
        ValueError: A number does not fit in a 64-bit integer or overflows or underflows float64.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return _int(text, 10)
    if _BASED.fullmatch(text):
        return _int(text[2:], 8 if text[1] == "o" else 16)
    if _FLOAT.fullmatch(text):
        return _float(text)
    return text


def is_not_finite(text: str) -> bool:
    """Return True if a string is a spelling of NaN or an infinity."""
    return _NOT_FINITE.fullmatch(text) is not None


def _int(digits: str, base: int) -> int:
    # Check the length first: int() takes quadratic time and raises its own error from 4,300 digits on.
    value = int(digits, base) if len(digits.lstrip("+-0")) <= 20 else _MAX_INTEGER + 1
    if abs(value) > _MAX_INTEGER:
        raise ValueError("is too large: the largest integer is 9223372036854775807")
    return value


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("is too large for a 64-bit float")
    if value == 0 and re.search("[1-9]", text.lower().partition("e")[0]):
        raise ValueError("is too small for a 64-bit float: it would become 0")
    return value + 0.0  # turns -0.0 into 0.0, so that equal specs have equal digests


#: Part of the parser's message, our message, and the help.
_TEXTS: tuple[tuple[str, str, str | None], ...] = (
    ("mapping values are not allowed", "': ' is not allowed here", "a line holds one 'key: value'; quote other colons"),
    ("'\\t' that cannot start", "a tab is not allowed here", "indent with spaces"),
    ("could not find expected ':'", "a key without ':'", "write 'key: value', with a space after the colon"),
    ("expected <block end>", "this line does not fit the indentation above it", "align it with its neighbours"),
    ("expected ',' or ']'", "a list that '[' opened is not closed here", "separate items by ',' and close with ']'"),
    ("expected ',' or '}'", "a map that '{' opened is not closed here", "separate entries by ',' and close with '}'"),
    ("unexpected end of stream", "a quoted text is not closed", "close it with the quote that opened it"),
    ("unexpected document separator", "a quoted text is not closed", "close it with the quote that opened it"),
    ("found undefined alias", "this alias has no anchor", "write &name before the value to repeat"),
    ("found duplicate anchor", "this anchor was used before", "give each anchor its own name"),
    ("unknown escape character", "no such escape in quotes", "use single quotes for text with backslashes"),
    ("expected escape sequence", "an escape in quotes is not complete", "use single quotes for text with backslashes"),
    ("cannot start any token", "this character cannot begin a value", "put the value in quotes"),
    ("sequence entries are not allowed", "a list item cannot begin here", "begin the list on a new line"),
    ("expected '<document start>'", "a second YAML document begins here", "a file contains one spec"),
    ("block mapping", "this is not an entry 'key: value'", None),
)


def syntax_diagnostic(error: yaml.YAMLError, mark_span: Callable[[Any], Span]) -> Diagnostic:
    """Return the diagnostic of a parser error; ``mark_span`` converts its marks to spans."""
    problem, mark = "this is not YAML", None
    if isinstance(error, yaml.MarkedYAMLError):
        problem = error.problem or problem
        mark = error.problem_mark or error.context_mark
    span = mark_span(mark) if mark is not None else None
    text = f"{problem} {getattr(error, 'context', '') or ''}"
    for piece, message, hint in _TEXTS:
        if piece in text:
            return Diagnostic(code="syntax", message=message, span=span, help=hint)
    return Diagnostic(code="syntax", message=f"not YAML: {clipped(problem, 100)}", span=span)
