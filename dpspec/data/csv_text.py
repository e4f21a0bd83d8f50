"""Lines of CSV files, and messages about their text that contain no cell."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, TypeAlias

from dpspec.contract import DataError
from dpspec.data.file_formats import HEAD, check_text
from dpspec.text import closest, did_you_mean, several, shortened

#: Separators of columns.
SEPARATORS = (",", ";", "\t", "|")

#: Maximum number of characters of the first line that are inspected for its separator.
_INSPECTED = 2**16

#: Numbered lines of cells.
Lines: TypeAlias = Iterator[tuple[int, list[str]]]


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(shortened, names[:20])) + (", ..." if len(names) > 20 else "")


@contextmanager
def csv_lines(
    path: object, file: TextIO, separator: str | None = None, encoding: str | None = None
) -> Iterator[tuple[list[str], Lines]]:
    """Yield the column names of a CSV file and its numbered lines. Every error becomes a ``DataError``.

    Skips blank lines. Specs without keys for ``separator`` and ``encoding`` have None, for a comma and UTF-8.
    """
    first, reader = 1, csv.reader(file, strict=True, delimiter=separator or ",")

    def lines() -> Lines:
        nonlocal first
        for cells in reader:
            if any(cell.strip() for cell in cells) or len(cells) > 1:
                yield first, cells
            first = reader.line_num + 1

    def same_width(header: Sequence[str], rows: Lines) -> Lines:
        for begin, (number, cells) in enumerate(rows):
            if len(cells) != len(header):
                message = f"{several(len(cells), 'value')} under {len(header)} column names"
                advice = _width_advice(header, cells, separator or ",", first_row=begin == 0)
                raise DataError(f"{path}:{number}: {message}{advice}", "path")
            yield number, cells

    try:
        check_text(path, file.buffer.read(HEAD), encoding)
        file.seek(0)
        first_line = file.readline(_INSPECTED)
        file.seek(0)
        _check_separator(path, first_line, separator)
        rows = lines()
        _, header = next(rows, (0, []))
        if not header:
            raise DataError(f"{path}: is empty: its first line must name the columns", "path")
        yield [name.strip() for name in header], same_width(header, rows)
    except UnicodeDecodeError as error:
        advice = "save it as UTF-8"
        if encoding is not None:
            example = "latin-1" if encoding == "cp1252" else "cp1252"
            advice = f"declare its encoding, for example encoding: {example}"
        message = f"not a readable CSV file: is not {encoding or 'utf-8'} text; {advice}"
        raise DataError(f"{path}{_undecodable_line(file)}: {message}", "path") from error
    except csv.Error as error:
        advice = "; within quotes write a quote twice" if "expected after" in str(error) else ""
        advice = "; a quote is not closed" if "end of data" in str(error) else advice
        raise DataError(f"{path}:{first}: not a readable CSV file: {error}{advice}", "path") from error
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path}: not a readable CSV file: {error}", "path") from error


def _undecodable_line(file: TextIO) -> str:
    """Return the number of the first line of a file that is not in its encoding, after a colon; empty for UTF-16."""
    file.buffer.seek(0)
    for number, line in enumerate(file.buffer if file.encoding != "utf-16" else (), 1):
        try:
            line.decode(file.encoding)
        except UnicodeDecodeError:
            return f":{number}"
    return ""


def _check_separator(path: object, first_line: str, separator: str | None) -> None:
    """Raise ``DataError`` if the first line declares a separator, or has one column and more with another separator."""
    declared = re.fullmatch(r'"?(sep=(.))"?', first_line.strip(" \r\n"), re.IGNORECASE)
    if declared:
        message = f"its first line declares its separator for a spreadsheet ({declared[1]!r})"
        advice = "" if separator is None else f" and write separator: {json.dumps(declared[2])}"
        raise DataError(f"{path}: {message}; remove this line{advice}", "path")
    widths = {mark: _width(first_line, mark) for mark in SEPARATORS}
    widest = max(SEPARATORS, key=lambda mark: widths[mark])
    if widths[separator or ","] <= 1 < widths[widest]:
        message = f"its first line has {widths[widest]} columns if they are separated by {widest!r}"
        advice = "separate them by commas" if separator is None else f"write separator: {json.dumps(widest)}"
        raise DataError(f"{path}: {message}; {advice}", "path")


def _width(line: str, separator: str) -> int:
    try:
        return len(next(csv.reader([line], strict=True, delimiter=separator), []))
    except csv.Error:
        return 0


def _width_advice(header: Sequence[str], cells: Sequence[str], separator: str, *, first_row: bool) -> str:
    """Return what to do about a line with more or fewer values than there are names; empty if unknown."""
    if len(cells) < len(header):
        if len(cells) == len(header) - 1 and not header[-1].strip():
            return "; remove the separator at the end of the first line"
        fitting_marks = [mark for mark in SEPARATORS if mark != separator and len(header) == _width(cells[0], mark)]
        if len(cells) == 1 and fitting_marks:
            return f"; it is separated by {fitting_marks[0]!r} and the first line by {separator!r}"
        return ""
    if not any(cell.strip() for cell in cells[len(header) :]):
        return "; remove the separators at the ends of lines"
    if first_row and len(cells) == len(header) + 1:
        return "; if its first column has row names (R), name it in the first line as well"
    return f"; quote values that contain {separator!r}, such as numbers with decimal commas" if separator == "," else ""


MISSING_ADVICE = "replace missing values by a public constant, or exclude the column (columns)"
DATE_ADVICE = "convert dates to numbers, such as days since a public date, or exclude the column (columns)"
_CATEGORY_ADVICE = "declare the values of a categorical column (categories), or exclude it (columns)"
_BARE_ADVICE = "write the number alone"

_EMPTY = "an empty cell"

#: Kinds of cells that are not numbers: the pattern of their lower-case text, and advice.
_KINDS = (
    (
        "a missing value",
        r"[+-]?(nan|na|n/a|n/d|null|none|missing)|\?|#n/a|-+|\.|\*",
        f"{MISSING_ADVICE}; or declare the values of the column (categories), or the spelling of missing values for a "
        "mechanism that imputes (missing)",
    ),
    ("an infinite number", r"[+-]?inf(inity)?", "replace infinite numbers by a public constant"),
    ("a number with a decimal comma", r"[+-]?\d+,\d+", 'write decimal: ","'),
    (
        "a number with separators of thousands",
        r"[+-]?\d{1,3}([.,'\s]\d{3})+([.,]\d+)?",
        "write numbers without separators of thousands",
    ),
    ("a date", r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*", DATE_ADVICE),
    ("a time", r"\d{1,2}:\d\d(:\d\d(\.\d+)?)?( ?[ap]m)?", "convert times to numbers, such as minutes since midnight"),
    ("a percentage", r"[+-]?[\d.,]+\s*%", _BARE_ADVICE),
    ("a number with a unit", r"[$€£¥]\s*[+-]?[\d.,]+|[+-]?[\d.,]+\s*([$€£¥]|[a-zµ°]{1,3})", _BARE_ADVICE),
    ("a Boolean value", "true|false", _CATEGORY_ADVICE),
)


def _number_of(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def kind_of_value(text: str) -> tuple[str, str]:
    """Describe a cell that is not a finite number without its content, and what to do about it."""
    text = text.strip()
    if not text:
        return _EMPTY, f"{MISSING_ADVICE}; for a mechanism that imputes, declare their spelling (missing)"
    for kind, pattern, advice in _KINDS:
        if re.fullmatch(pattern, text.lower()):
            return kind, advice
    value = _number_of(text)
    if value is None:
        return "text", _CATEGORY_ADVICE
    if math.isinf(value):
        return "a number that is too large", "scale the column"
    return "a number with a decimal point", "write all numbers with a decimal comma, or remove decimal"


def no_column(name: str, header: Sequence[str], where: object, key: str) -> DataError:
    """The error of a missing column. It lists the columns if one is similar and all are words."""
    suggestion, columns = closest(name, header), f"its columns: {listed(header)}"
    count = several(len(header), "column")
    advice = ""
    if header and header[0].startswith(("#", "%", "//")):
        advice = "; its first line must name the columns: remove comments"
    elif any(cell and kind_of_value(cell)[0] != "text" for cell in header):
        advice = "; its first line has numbers instead of names: add a line with the names of the columns"
    elif len(header) == 1:
        marks = ", ".join(map(json.dumps, SEPARATORS))
        advice = f"; its first line must name all columns, separated by one of {marks}, without a title above"
    elif suggestion is not None:
        return DataError(f"{where}: has no column {name!r}{did_you_mean(suggestion)} ({columns})", key)
    message = f"{where}: has no column {name!r} ({count}; --internal lists {'it' if len(header) == 1 else 'them'})"
    return DataError(f"{message}{advice}", key, private=columns)


def number(text: str, where: str, decimal: str) -> float:
    """Parse a finite number without underscores. Raises ``DataError`` with the kind of the cell."""
    value = None if decimal == "," and "." in text else _number_of(text.replace(decimal, "."))
    if value is not None and math.isfinite(value):
        return value
    kind, advice = kind_of_value(text)
    raise DataError(f"{where}: {kind} instead of a finite number; {advice}", private=text)
