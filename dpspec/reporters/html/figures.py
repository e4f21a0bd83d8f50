"""The figures of an audit with their tables, and the bar of a claim's interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from dpspec.contract import Series
from dpspec.engine.judging.evidence_weight import is_profile
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Verdict
from dpspec.reporters import labels
from dpspec.reporters.html import curves, series_plots
from dpspec.reporters.html.curves import CAPTION
from dpspec.reporters.html.drawing import svg
from dpspec.reporters.layout import pictures, rounding, series_cell

#: The ratio of the bar's end to the largest number on it.
_ROOM = 1.12

#: Numbers with a larger ratio are on a logarithmic scale.
_SPREAD = 40.0


def bar(verdict: Verdict) -> SimpleNamespace | None:
    """Places in percent of the width; None without a positive finite number."""
    ends = [x for x in (verdict.lower, verdict.upper, verdict.claimed) if x is not None and math.isfinite(x) and x >= 0]
    largest = max(ends, default=0.0)
    if largest <= 0.0 or (verdict.lower is None and verdict.upper is None):
        return None
    positive = [x for x in ends if x > 0.0]
    logarithmic = largest / min(positive) > _SPREAD
    least = min(positive) / _ROOM**4 if logarithmic else 0.0

    def at(value: float) -> float:
        if logarithmic:
            share = math.log(max(value, least) / least) / math.log(largest * _ROOM / least)
        else:
            share = value / (largest * _ROOM)
        return 100.0 * min(1.0, max(0.0, share))

    lower = verdict.lower if verdict.lower is not None and math.isfinite(verdict.lower) else None
    upper = verdict.upper if verdict.upper is not None and math.isfinite(verdict.upper) else None
    low, high = 0.0 if lower is None else at(lower), 100.0 if upper is None else at(upper)
    return SimpleNamespace(
        low=min(low, high),
        high=max(low, high),
        width=max(abs(high - low), 0.6),
        claimed=None if verdict.claimed is None or not math.isfinite(verdict.claimed) else at(verdict.claimed),
        open_below=lower is None,
        open_above=upper is None,
        crossed=low > high,
        scale="log" if logarithmic else "linear",
        least=decimals.nearest(least, digits=2),
        most=decimals.nearest(largest * _ROOM, digits=2),
    )


#: The maximum number of rows of a table; the JSON in the page has all rows.
MOST_ROWS = 500

#: A table of at least this number of columns takes the width of the page.
_BROAD = 6

_GUESSING = " The thin dotted line is the rate of guessing."

_CAPTION = "No test exceeds a bound if the mechanism is as declared."
_CLAIMS = " Claims are dashed, in the color of the bound for their group size."
_POINTS = (
    " Points are the observed rates of attacks, which vary by chance; guesses within one run count as if half of them "
    "were for inclusion. Attacks without a false alarm are at the left edge."
)


@dataclass(frozen=True)
class Figure:
    """``svg`` is markup without foreign text, empty for a table without a figure."""

    title: str
    caption: str
    svg: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: int = 0

    @property
    def broad(self) -> bool:
        return not self.svg and len(self.head) >= _BROAD


def figures(audit: AuditResult, name: str) -> Iterator[Figure]:
    """``name`` is unique to the audit on its page."""
    plot = curves.power(audit)
    if plot is not None:
        drawing, (head, rows) = plot
        caption = _CAPTION + _GUESSING + _CLAIMS + (_POINTS if any(line.marker for line in drawing.lines) else "")
        yield Figure(drawing.title, caption, svg(drawing, f"{name}-tradeoff"), head, rows)
    plot = curves.profile(audit)
    if plot is not None and not any(is_profile(series) for series in audit.series):
        drawing, (head, rows) = plot
        yield Figure(drawing.title, CAPTION, svg(drawing, f"{name}-profile"), head, rows)
    for i, series in enumerate(audit.series):
        yield _of_series(series, f"{name}-series{i}", audit)


def _of_series(series: Series, name: str, audit: AuditResult) -> Figure:
    head = tuple(column for column in series.columns if column not in pictures(series))
    rows = list(zip(*(series.columns[column] for column in head), strict=True))
    drawing = series_plots.drawing(series, audit)
    rounded = rounding(series) if series.bounds else ""
    caption = "; ".join(part for part in (labels.value(series.rigor), series.source, rounded) if part)
    if drawing is not None and any(line.marker for line in drawing.lines) and not drawing.names:
        caption += f". {CAPTION}"
    if drawing is not None and drawing.identity:
        caption = f"{caption.removesuffix('.')}.{_GUESSING}"
    return Figure(
        title=series.title,
        caption=caption,
        svg=series_plots.svg(series, name) if drawing is None else svg(drawing, name),
        head=head,
        rows=tuple(tuple(map(series_cell, [series] * len(head), head, row)) for row in rows[:MOST_ROWS]),
        cut=max(0, len(rows) - MOST_ROWS),
    )
