"""The figures of an audit with their tables: proved curves with claims and attacks, and its series."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from dpspec import decimals
from dpspec.accounting import Polygon
from dpspec.contract import Json, Series
from dpspec.contract.results import AuditResult, claim_block
from dpspec.errors import ArgumentError, MissingLibraryError
from dpspec.language.load import claim_options
from dpspec.reporters import words
from dpspec.reporters.charts import Chart, Line
from dpspec.reporters.series import rounding, series_cell
from dpspec.results.evidence_weight import (
    TRADE_OFF,
    ProvenCurve,
    covers,
    group_size,
    is_profile,
    nodes_of,
    polygon,
    proven_curves,
    usable,
)
from dpspec.results.inequalities import implied_points
from dpspec.stats.attacks import evidence_tests
from dpspec.text import spaced

#: The maximum number of rows of a table; the JSON in the page has all rows.
MOST_ROWS = 30

#: The false-positive rates of drawn curves, 8 per decade, and of the table.
_RATES = tuple(10.0 ** (-6 + i / 8) for i in range(49))
_SHOWN = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.5)

#: Epsilons with a larger ratio are on a logarithmic axis.
_FAR = 200.0

#: A curve above this at all rates is vacuous.
_VACUOUS = 0.99

#: The maximum number of bins of a histogram.
_BINS = 40

#: Follows the label of a line without a guarantee, in a series with bounds.
_UNBOUNDED = " (no bound)"

#: The color of guessing, a gray, and the pattern of attacks.
_GUESSING, _ATTACK = 4, 2

_POWER = "Maximum power of membership inference against its false-positive rate"
_RATE_AXES = ("false-positive rate", "true-positive rate")
_CAPTION = "If the mechanism is as declared, no test has a higher rate on average than its bound; {tested}."
_DASHED = " Claims are dashed."
_DOTTED = " Attacks are dotted: observed rates, which chance can raise above a bound."


@dataclass(frozen=True)
class Figure:
    """A table with a chart, or without one; ``cut`` counts omitted rows."""

    title: str
    caption: str
    chart: Chart | None
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: int = 0


def figures(audit: AuditResult) -> Iterator[Figure]:
    if (figure := power(audit)) is not None:
        yield figure
    if not any(is_profile(series) for series in audit.series) and (curve := profile(audit)) is not None:
        yield curve
    for series in audit.series:
        if series.name != TRADE_OFF or figure is None:  # else drawn above, with claims and attacks
            yield _of_series(series)


#: The maximum number of lines of a cell, and of all cells, in one chart of a matrix.
_MOST_OF_CELL, _MOST_LINES = 3, 24


def overlaid(cells: Sequence[tuple[str, Chart | None]]) -> Chart | None:
    """One chart of the same figure of several cells: a color for each cell, a pattern for each of its lines.

    Args:
        parts: The name of each cell and its chart.

    Returns:
        None for fewer than two charts, or too many lines. Of many lines in a cell only bounds are drawn.
    """
    charts = [
        (name, chart if len(chart.lines) <= _MOST_OF_CELL else _bounding(chart)) for name, chart in cells if chart
    ]
    most = max((len(chart.lines) for _, chart in charts), default=0)
    if len({x for _, chart in charts for line in chart.lines for x in line.x}) < 2:  # a point for each cell
        return None
    if len(charts) < 2 or most > _MOST_OF_CELL or most * len(charts) > _MOST_LINES:
        return None
    lines = [
        replace(line, label=f"{name}: {line.label}" if len(chart.lines) > 1 else name, color=_color(cell), dash=dash)
        for cell, (name, chart) in enumerate(charts)
        for dash, line in enumerate(chart.lines)
    ]
    patterns = {tuple(line.label for line in chart.lines) for _, chart in charts}
    named: list[Line] = []
    if len(patterns) == 1 and most > 1:  # an entry for each cell and for each pattern
        named = [Line(name, (), (), color=_color(cell)) for cell, (name, _) in enumerate(charts)]
        named += [Line(label, (), (), color=-1, dash=dash) for dash, label in enumerate(patterns.pop())]
    heights = [y for line in lines for y in line.y if math.isfinite(y)]
    far = min(heights, default=0.0) > 0.0 and max(heights) > _FAR * min(heights)
    return replace(charts[0][1], lines=lines, log_y=charts[0][1].log_y or far, named=named)


def _bounding(chart: Chart) -> Chart:
    return replace(chart, lines=[line for line in chart.lines if line.is_bound])


def curve_points(audit: AuditResult) -> tuple[float, ...]:
    """The points of the curve of :func:`power_of_cells`; empty without one."""
    return tuple(float(power) for curve in proven_curves(audit)[:1] for power in curve.polygon.tpr(np.array(_RATES)))


def power_of_cells(cells: Sequence[tuple[str, AuditResult]]) -> Figure | None:
    """The maximum power of membership tests on the smallest group of each cell, in one chart."""
    charts: list[tuple[str, Chart | None]] = []
    rows: list[tuple[str, ...]] = []
    for name, audit in cells:
        bounds = proven_curves(audit)[:1]
        for curve in bounds:
            line = _line("", curve.polygon)
            charts.append((name, Chart(_POWER, [line], *_RATE_AXES, log_x=True, log_y=True)))
            rows.append((name, *(decimals.upper(float(curve.polygon.tpr(rate))) for rate in _SHOWN)))
    chart = overlaid(charts)
    if chart is None:
        return None
    guessing = Line("guessing", _RATES, _RATES, color=_GUESSING, dash=2)
    return Figure(
        _POWER, "", replace(chart, lines=[*chart.lines, guessing]), ("cell", *map(decimals.exact, _SHOWN)), tuple(rows)
    )


def _line(name: str, curve: Polygon) -> Line:
    """A curve of maximum rates with all its vertices."""
    rates = nodes_of(curve, _RATES)
    return Line(name, rates, list(map(float, curve.tpr(np.array(rates)))))


def draw_power(audit: AuditResult, axes: Any = None) -> Any:
    """Draw the chart of :func:`power` with matplotlib, on its ``axes`` or new ones; return them.

    Raises:
        MissingLibraryError: matplotlib is not installed.
        UsageError: No bound is proved that such a chart needs.
    """
    figure = power(audit)
    if figure is None or figure.chart is None:
        raise ArgumentError(f"no proved curve of {audit.name!r} says something about membership inference")
    if axes is None:
        try:
            pyplot = import_module("matplotlib.pyplot")
        except ImportError:
            raise MissingLibraryError("a plot needs matplotlib: pip install matplotlib") from None
        _, axes = pyplot.subplots()
    for line in figure.chart.lines:
        style = "o" if line.dash == _ATTACK and line.color != _GUESSING else "--" if line.dash else "-"
        axes.plot(list(line.x), list(line.y), style, label=line.label, markersize=3)
    axes.set(title=audit.name, xlabel=figure.chart.x, ylabel=figure.chart.y, xscale="log", yscale="log")
    axes.legend()
    return axes


def power(audit: AuditResult) -> Figure | None:
    """The maximum power of membership tests by proved bounds and claims, and the rates of attacks."""
    bounds = proven_curves(audit)
    curves = [(f"bound{words.curve(bound)}", bound.polygon) for bound in bounds]
    for verdict in audit.verdicts:
        block = claim_block(audit, verdict)
        try:
            points = implied_points(verdict.kind, claim_options(block))
        except (KeyError, TypeError, ValueError):  # an edited document
            continue
        if points and block.get("record") is None:
            curves.append((verdict.claim if verdict.claim == "claim" else f"claim {verdict.claim}", polygon(points)))
    lines = [
        replace(_line(name, curve), color=_color(i), dash=int(i >= len(bounds)))
        for i, (name, curve) in enumerate(curves)
    ]
    for evidence in audit.evidence:
        # A rate of 0 has no place on a logarithmic axis: at its left end it would be above a bound that holds.
        if observed := [(fpr, tpr) for fpr, tpr in evidence_tests.rates(evidence) if fpr > 0.0]:
            name = f"attack{words.groups(group_size(evidence), evidence.scope.unit)}"
            rates = [max(fpr, _RATES[0]) for fpr, _ in observed]
            lines.append(Line(name, rates, [tpr for _, tpr in observed], color=_color(len(lines)), dash=_ATTACK))
    if not bounds or all(min(line.y) > _VACUOUS for line in lines):
        return None
    lines.append(Line("guessing", _RATES, _RATES, color=_GUESSING, dash=2))
    rows = tuple(
        (decimals.exact(rate), *(decimals.upper(float(curve.tpr(rate))) for _, curve in curves)) for rate in _SHOWN
    )
    return Figure(
        _POWER,
        "".join(
            [
                _CAPTION.format(tested=_tested(audit, bounds)),
                _DASHED * (len(curves) > len(bounds)),
                _DOTTED * any(line.dash == _ATTACK for line in lines[:-1]),
            ]
        ),
        Chart(_POWER, lines, *_RATE_AXES, log_x=True, log_y=True),
        ("false-positive rate", *(name for name, _ in curves)),
        rows,
    )


def _tested(audit: AuditResult, bounds: Sequence[ProvenCurve]) -> str:
    """The number of attacks that the run tested the bounds with, and of the bounds' points."""
    attacks = [
        evidence for evidence in audit.evidence if evidence.quantity == "epsilon" and usable(evidence.assumptions)
    ]
    tested = [
        curve
        for curve in bounds
        if any(covers(curve.scope, e.scope) and group_size(e) <= curve.group_size for e in attacks)
    ]
    if not tested:
        return "no attack of this run tests these bounds"
    points = words.count(sum(len(curve.pairs) for curve in tested), "point")
    which = "the bounds" if len(tested) == len(bounds) else f"{len(tested)} of {len(bounds)} bounds"
    return f"{words.count(len(attacks), 'attack')} of this run tested {points} of {which}"


def _color(number: int) -> int:
    """The color of a line by its number; the gray of guessing is skipped."""
    return number + (number >= _GUESSING)


def profile(audit: AuditResult) -> Figure | None:
    """Delta against epsilon by upper bounds at two or more deltas."""
    curves = [(f"bound{words.curve(curve)}", curve.pairs) for curve in proven_curves(audit) if len(curve.pairs) > 1]
    if not curves:
        return None
    lines = [
        Line(text, [epsilon for epsilon, _ in pairs], [delta for _, delta in pairs], color=i)
        for i, (text, pairs) in enumerate(curves)
    ]
    shown = [x for line in lines for x in line.x if x > 0.0]
    far = max(shown, default=1.0) > _FAR * min(shown, default=1.0)
    title = "Delta against epsilon"
    rows = tuple((text, decimals.upper(e), decimals.exact(d)) for text, pairs in curves for e, d in pairs)
    chart = Chart(title, lines, "epsilon", "delta", log_x=far, log_y=True)
    return Figure(title, "", chart, ("curve", "epsilon", "delta"), rows)


def _of_series(series: Series) -> Figure:
    rows = len(next(iter(series.columns.values()), ()))
    rounded = rounding(series) if series.bounds else ""
    return Figure(
        title=series.title,
        caption="; ".join(part for part in (words.value(series.rigor), series.source, rounded) if part),
        chart=series_chart(series),
        head=tuple(series.columns),
        rows=tuple(
            tuple(series_cell(series, column, cells[row]) for column, cells in series.columns.items())
            for row in range(min(rows, MOST_ROWS))
        ),
        cut=max(0, rows - MOST_ROWS),
    )


def series_chart(series: Series) -> Chart | None:
    """The chart that ``series.plot`` declares; None without one, or if its columns are missing."""
    plot = series.plot
    kind, ys, log = plot.get("kind", "lines"), _names(plot.get("y")), _names(plot.get("log"))
    x = "" if kind == "sorted" else str(plot.get("x", ""))
    if kind not in ("lines", "sorted") or not ys or not {*ys, *filter(None, [x])} <= series.columns.keys():
        return None
    if kind == "lines" and not x:
        return None
    if kind == "sorted":
        return _histogram(series, ys)
    groups = _groups(series)
    lines = []
    for j, y in enumerate(ys):
        is_bound = not series.bounds or bool({x, y} & set(series.bounds))
        for i, (group, rows) in enumerate(groups):
            text = ", ".join(map(spaced, filter(None, [group, y if len(ys) > 1 or not group else ""])))
            color = i if len(groups) > 1 else j
            dash = j if len(groups) > 1 else 0
            xs, values = _values(series, x, rows), _values(series, y, rows)
            lines.append(Line(f"{text}{'' if is_bound else _UNBOUNDED}", xs, values, color, dash, is_bound))
    return Chart(
        series.title,
        lines,
        x=_axis(series, x),
        y=_axis(series, ys[0]) if len(ys) == 1 else _axis_of_all(series, ys),
        log_x="x" in log,
        log_y="y" in log,
    )


def _histogram(series: Series, columns: Sequence[str]) -> Chart | None:
    """The number of rows by value, as steps, with the largest value and constant upper bounds as vertical lines."""
    rows = range(len(series.columns[columns[0]]))
    log = "y" in _names(series.plot.get("log"))
    lines: list[Line] = []
    for color, column in enumerate(columns):
        values = np.array([v for v in _values(series, column, rows) if math.isfinite(v) and (v > 0.0 or not log)])
        if not values.size:
            continue
        edges = np.histogram_bin_edges(np.log10(values) if log else values, bins=min(_BINS, values.size))
        counts, _ = np.histogram(np.log10(values) if log else values, bins=edges)
        if log:
            edges = 10.0**edges
        xs = [float(edge) for edge in edges for _ in range(2)]
        heights = [0.0, *(float(count) for count in counts for _ in range(2)), 0.0]
        worst = float(values.max())
        label = f"worst {spaced(column)}: {series_cell(series, column, worst)}"
        lines.append(Line(spaced(column), xs, heights, color))
        lines.append(Line(label, [worst, worst], [0.0, float(counts.max())], color, dash=1))
    if not lines:
        return None
    highest = max(height for line in lines for height in line.y)
    for name in (column for column, side in series.bounds.items() if side == "upper"):
        bounds = {value for value in _values(series, name, rows) if math.isfinite(value)}
        if len(bounds) == 1:  # the same for all rows: the worst case
            (bound,) = bounds
            label = f"{spaced(name)}: {series_cell(series, name, bound)}"
            lines.append(Line(label, [bound, bound], [0.0, highest], len(lines), dash=1))
    return Chart(series.title, lines, x=_axis(series, columns[0]), y="rows", log_x=log)


def _groups(series: Series) -> list[tuple[str, list[int]]]:
    """The rows of each value of the column ``by``; all rows without such a column."""
    by = str(series.plot.get("by", ""))
    if by not in series.columns:
        return [("", list(range(len(next(iter(series.columns.values()))))))]
    column = series.columns[by]
    order = list(range(len(column)))
    if all(isinstance(item, int | float) for item in column):
        order = sorted(order, key=lambda row: column[row])
    rows: dict[str, list[int]] = {}
    for row in order:
        item = column[row]
        rows.setdefault(item if isinstance(item, str) else f"{spaced(by)} {words.value(item)}", []).append(row)
    return list(rows.items())


def _values(series: Series, column: str, rows: Sequence[int]) -> list[float]:
    cells = (series.columns[column][row] for row in rows)
    return [float(c) if isinstance(c, int | float) and not isinstance(c, bool) else math.nan for c in cells]


def _names(value: Json) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


#: The maximum number of characters of the joined names of several columns on an axis.
_LONGEST_AXIS = 48


def _axis_of_all(series: Series, columns: Sequence[str]) -> str:
    """The common unit of several columns, else their names if these are short; the legend has the names."""
    names, units = ", ".join(map(spaced, columns)), {series.units.get(column, "") for column in columns}
    if len(units) == 1 and (unit := units.pop()):
        return str(unit)
    return names if len(names) <= _LONGEST_AXIS else ", ".join(sorted(units - {""})) or "value"


def _axis(series: Series, column: str) -> str:
    unit = series.units.get(column, "")
    return f"{spaced(column)} ({unit})" if unit and unit not in column else spaced(column)
