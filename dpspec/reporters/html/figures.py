"""The figures of an audit, each with the table behind it: the trade-off curve, and every series that can be drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpspec.contract import Evidence, Finding, Json, Series
from dpspec.engine import numbers
from dpspec.engine.result import AuditResult
from dpspec.reporters import words
from dpspec.reporters.html.drawing import Drawing, Line, svg

#: False-positive rates at which curves are drawn: from 1e-6 to 1, and their share of a decade.
_RATES = tuple(10.0 ** (-6 + i / 16) for i in range(97))

#: Those of the table behind the curve.
_SHOWN = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.5)

#: A table behind a figure is cut here; the JSON in the page has the whole.
_MOST_ROWS = 500


@dataclass(frozen=True)
class Figure:
    """A figure and its table; ``svg`` is markup of our own making, empty for a table without a figure."""

    title: str
    caption: str
    svg: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: int = 0


def figures(audit: AuditResult, name: str) -> Iterator[Figure]:
    """Every figure of an audit; ``name`` is unique to the audit on its page."""
    curve = _tradeoff(audit, f"{name}-tradeoff")
    if curve is not None:
        yield curve
    for i, series in enumerate(audit.series):
        yield _of_series(series, f"{name}-series{i}")


def _of_series(series: Series, name: str) -> Figure:
    head = tuple(series.columns)
    rows = list(zip(*(series.columns[column] for column in head), strict=True))
    drawing = _drawing(series)
    caption = "; ".join(part for part in (words.value(series.rigor), series.source) if part)
    return Figure(
        title=series.title,
        caption=caption,
        svg="" if drawing is None else svg(drawing, name),
        head=head,
        rows=tuple(tuple(_cell(item) for item in row) for row in rows[:_MOST_ROWS]),
        cut=max(0, len(rows) - _MOST_ROWS),
    )


def _drawing(series: Series) -> Drawing | None:
    plot = series.plot
    x, ys, by = str(plot.get("x", "")), [str(y) for y in plot.get("y", ())], str(plot.get("by", ""))
    if not ys or any(name not in series.columns for name in (x, *ys)):
        return None
    groups = series.columns.get(by)
    lines = []
    for y in ys:
        for group in dict.fromkeys(groups) if groups is not None else [None]:
            chosen = [i for i in range(len(series.columns[x])) if groups is None or groups[i] == group]
            label = y if group is None else f"{by} {words.value(group)}" + (f", {y}" if len(ys) > 1 else "")
            xs, values = ([_number(series.columns[name][i]) for i in chosen] for name in (x, y))
            lines.append(Line(label, xs, values))
    log = plot.get("log", ())
    return Drawing(
        title=series.title,
        lines=lines,
        x=_axis(series, x),
        y=_axis(series, ys[0]) if len(ys) == 1 else "",
        log_x="x" in log,
        log_y="y" in log,
        identity=bool(plot.get("identity", False)),
    )


def _axis(series: Series, column: str) -> str:
    unit = series.units.get(column, "")
    return f"{column} ({unit})" if unit and unit not in column else column


def _tradeoff(audit: AuditResult, name: str) -> Figure | None:
    """The most that any test of membership can reach, by the upper bounds and by the claims; the attacks' points."""
    bounds = {f"bound{_groups(size)}": points for size, points in sorted(_upper_points(audit.findings).items())}
    stated = {str(claim["id"]): claim for claim in audit.document.get("claims", ())}
    claims = {
        f"claim {verdict.claim}": ((float(claim["epsilon"]), float(claim["delta"])),)
        for verdict in audit.verdicts
        if verdict.kind == "approx-dp" and (claim := stated.get(verdict.claim)) is not None
    }
    if not bounds:
        return None
    lines = [Line(label, _RATES, [_power(points, rate) for rate in _RATES]) for label, points in bounds.items()]
    lines += [
        Line(label, _RATES, [_power(points, rate) for rate in _RATES], dashed=True) for label, points in claims.items()
    ]
    lines += [point for evidence in audit.evidence if (point := _attacked(evidence)) is not None]
    drawing = Drawing(
        title="Power of the best test of membership against its false-positive rate",
        lines=lines,
        x="false-positive rate",
        y="true-positive rate",
        log_x=True,
        log_y=True,
        identity=True,
        limits=((1e-6, 1.0), (1e-6, 1.3)),
    )
    curves = {**bounds, **claims}
    rows = [(numbers.exact(rate), *(numbers.upper(_power(p, rate)) for p in curves.values())) for rate in _SHOWN]
    return Figure(
        title=drawing.title,
        caption="No test does better than the bound at any level if the mechanism is as declared. Claims are dashed.",
        svg=svg(drawing, name),
        head=("false-positive rate", *curves),
        rows=tuple(rows),
    )


def _attacked(evidence: Evidence) -> Line | None:
    """The two rates that an attack over many runs had; other attacks measure no rates."""
    counts = evidence.statistics
    if not {"present", "absent", "true_positives", "false_positives"} <= set(counts):
        return None
    fpr, tpr = (
        counts["false_positives"] / max(1, counts["absent"]),
        counts["true_positives"] / max(1, counts["present"]),
    )
    return Line(f"attack {evidence.method}", (max(fpr, _RATES[0]),), (tpr,), points=True)


def _upper_points(findings: Sequence[Finding]) -> dict[int, list[tuple[float, float]]]:
    """(epsilon, delta) of every proved upper bound in both directions, by group size."""
    found: dict[int, list[tuple[float, float]]] = {}
    for finding in findings:
        proved = finding.rigor in ("certified", "theorem") and (finding.printed is None or not finding.printed.refuted)
        here = finding.quantity == "epsilon" and finding.bound == "upper" and finding.scope.direction == "both"
        if proved and here and "delta" in finding.at and "alpha" not in finding.at and math.isfinite(finding.value):
            size = int(finding.at.get("group_size", 1))
            found.setdefault(size, []).append((finding.value, float(finding.at["delta"])))
    return found


def _power(points: Sequence[tuple[float, float]], rate: float) -> float:
    """min over (epsilon, delta) of e^epsilon rate + delta and 1 - e^-epsilon (1 - delta - rate), at most 1."""
    best = 1.0
    for epsilon, delta in points:
        grown = math.exp(min(epsilon, 700.0))
        best = min(best, grown * rate + delta, 1.0 - max(0.0, 1.0 - delta - rate) / grown)
    return max(best, 0.0)


def _groups(size: int) -> str:
    return "" if size == 1 else f", groups of {size}"


def _number(item: Json) -> float:
    return float(item) if isinstance(item, int | float) and not isinstance(item, bool) else math.nan


def _cell(item: Json) -> str:
    if item is None:
        return "-"
    return numbers.nearest(item) if isinstance(item, float) else words.value(item)
