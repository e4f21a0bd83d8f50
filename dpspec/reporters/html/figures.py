"""The figures of an audit, each with the table behind it: the curves, and every series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpspec.contract import Json, Series
from dpspec.engine import numbers
from dpspec.engine.result import AuditResult
from dpspec.reporters import words
from dpspec.reporters.grid import pictures as picture_columns
from dpspec.reporters.html import curves, pictures
from dpspec.reporters.html import series as of_series
from dpspec.reporters.html.drawing import svg
from dpspec.reporters.html.marks import CAPTION
from dpspec.reporters.proved import is_profile

#: A table behind a figure is cut here; the JSON in the page has the whole.
_MOST_ROWS = 500

#: Tables of so many columns are wider than a figure.
_BROAD = 6

_CAPTION = (
    "No test beats a bound at any level if the mechanism is as declared. Claims are dashed, in the colour of the bound "
    "for their group size."
)
_POINTS = (
    " Points are the rates that attacks had, which chance may lift; guesses within one run count as if half of them "
    "had said that a record was there."
)


@dataclass(frozen=True)
class Figure:
    """A figure and its table; ``svg`` is markup of our own making, empty for a table without a figure."""

    title: str
    caption: str
    svg: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: int = 0

    @property
    def broad(self) -> bool:
        """Whether it is a table alone that wants the width of the page."""
        return not self.svg and len(self.head) >= _BROAD


def figures(audit: AuditResult, name: str) -> Iterator[Figure]:
    """Every figure of an audit; ``name`` is unique to the audit on its page."""
    found = curves.power(audit)
    if found is not None:
        drawing, (head, rows) = found
        caption = _CAPTION + (_POINTS if any(line.marker for line in drawing.lines) else "")
        yield Figure(drawing.title, caption, svg(drawing, f"{name}-tradeoff"), head, rows)
    found = curves.profile(audit)
    if found is not None and not any(is_profile(series) for series in audit.series):
        drawing, (head, rows) = found
        yield Figure(drawing.title, CAPTION, svg(drawing, f"{name}-profile"), head, rows)
    for i, series in enumerate(audit.series):
        yield _of_series(series, f"{name}-series{i}", audit)


def _of_series(series: Series, name: str, audit: AuditResult) -> Figure:
    shown = picture_columns(series)
    head = tuple(column for column in series.columns if column not in shown)
    rows = list(zip(*(series.columns[column] for column in head), strict=True))
    drawing = of_series.drawing(series, audit)
    caption = "; ".join(part for part in (words.value(series.rigor), series.source) if part)
    if drawing is not None and any(line.marker for line in drawing.lines) and not drawing.names:
        caption += f". {CAPTION}"
    return Figure(
        title=series.title,
        caption=caption,
        svg=pictures.svg(series, name) if drawing is None else svg(drawing, name),
        head=head,
        rows=tuple(tuple(_cell(item) for item in row) for row in rows[:_MOST_ROWS]),
        cut=max(0, len(rows) - _MOST_ROWS),
    )


def _cell(item: Json) -> str:
    if item is None:
        return "-"
    return numbers.nearest(item) if isinstance(item, float) else words.value(item)
