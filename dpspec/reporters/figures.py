"""The figures of an audit with their tables: proved curves with claims and attacks, and its series."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.contract import Evidence, Json, Series
from dpspec.engine.judging.evidence_weight import group_size, is_profile, polygon, proven_curves
from dpspec.engine.judging.inequalities import implied_points
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.language.load import claim_options
from dpspec.reporters import words
from dpspec.reporters.charts import Chart, Line
from dpspec.reporters.layout import rounding, series_cell

#: The maximum number of rows of a table; the JSON in the page has all rows.
MOST_ROWS = 500

#: The false-positive rates of drawn curves, 16 per decade, and of the table.
_RATES = tuple(10.0 ** (-6 + i / 16) for i in range(97))
_SHOWN = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.5)

#: Epsilons with a larger ratio are on a logarithmic axis.
_FAR = 200.0

#: A curve above this at all rates is vacuous.
_VACUOUS = 0.99

#: The maximum number of points of sorted values.
_RANKS = 201

_CAPTION = (
    "No test exceeds a bound if the mechanism is as declared. Claims are dashed. Attacks are dotted: their observed "
    "rates vary by chance, guesses within one run count as if half were for inclusion, and those without a "
    "false alarm are at the left edge."
)


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
    if not any(is_profile(series) for series in audit.series) and (figure := profile(audit)) is not None:
        yield figure
    yield from map(_of_series, audit.series)


def power(audit: AuditResult) -> Figure | None:
    """The maximum power of membership tests by proved bounds and claims, and the rates of attacks."""
    bounds = proven_curves(audit)
    curves = [(f"bound{words.curve(bound)}", bound.polygon) for bound in bounds]
    for verdict in audit.verdicts:
        block = words.claim_block(audit, verdict)
        try:
            points = implied_points(verdict.kind, claim_options(block))
        except (KeyError, TypeError, ValueError):  # an edited document
            continue
        if points and block.get("record") is None:
            curves.append((f"claim {verdict.claim}", polygon(points)))
    lines = [
        Line(name, _RATES, list(map(float, curve.tpr(np.array(_RATES)))), color=i, dash=int(i >= len(bounds)))
        for i, (name, curve) in enumerate(curves)
    ]
    for evidence in audit.evidence:
        if observed := _attack_rates(evidence):
            name = f"attack{words.groups(group_size(evidence), evidence.scope.unit)}"
            rates = [max(fpr, _RATES[0]) for fpr, _ in observed]
            lines.append(Line(name, rates, [tpr for _, tpr in observed], color=len(lines), dash=2))
    if not bounds or all(min(line.y) > _VACUOUS for line in lines):
        return None
    title = "Maximum power of membership inference against its false-positive rate"
    lines.append(Line("guessing", _RATES, _RATES, color=4, dash=2))
    rows = tuple(
        (decimals.exact(rate), *(decimals.upper(float(curve.tpr(rate))) for _, curve in curves)) for rate in _SHOWN
    )
    return Figure(
        title,
        _CAPTION,
        Chart(title, lines, "false-positive rate", "true-positive rate", log_x=True, log_y=True),
        ("false-positive rate", *(name for name, _ in curves)),
        rows,
    )


def profile(audit: AuditResult) -> Figure | None:
    """Delta against epsilon by upper bounds at two or more deltas."""
    curves = [(f"bound{words.curve(one)}", one.pairs) for one in proven_curves(audit) if len(one.pairs) > 1]
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


def _attack_rates(evidence: Evidence) -> list[tuple[float, float]]:
    """Pairs of false- and true-positive rates. In one run half of the guesses and canaries count as present."""
    counts = evidence.statistics
    if evidence.kind == "many-run":
        absent, present = max(1, counts["absent"]), max(1, counts["present"])
        return [(counts["false_positives"] / absent, counts["true_positives"] / present)]
    if evidence.kind in ("one-run", "one-run-ladder"):
        canaries = max(1, int(counts["canaries"]))
        guessed, right = (counts[key] for key in ("guesses", "correct"))
        pairs = zip(guessed, right, strict=True) if isinstance(guessed, list | tuple) else [(guessed, right)]
        return [((int(g) - int(c)) / canaries, int(c) / canaries) for g, c in pairs]
    if evidence.kind != "many-run-ranked":
        return []
    outcomes = str(counts["outcomes"])
    present, absent = max(1, outcomes.count("1")), max(1, outcomes.count("0"))
    # Thresholds that 1, 2, 4, ... of the highest scores pass.
    tops = [outcomes[-(2**i) :] for i in range(len(outcomes).bit_length()) if 2**i < len(outcomes)]
    return [(top.count("0") / absent, top.count("1") / present) for top in tops]


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
    groups = _groups(series)
    if kind == "sorted" and len(groups) > 1:
        groups = [("all rows", list(range(len(series.columns[ys[0]])))), *groups]
    lines = []
    for j, y in enumerate(ys):
        unbounded = " (no bound)" if series.bounds and not {x, y} & set(series.bounds) and x else ""
        for i, (group, rows) in enumerate(groups):
            text = ", ".join(map(_spaced, filter(None, [group, y if len(ys) > 1 or not group else ""])))
            xs, values = _values(series, x, rows) if x else [], _values(series, y, rows)
            if not x:
                values = sorted(filter(math.isfinite, values))
                last = max(len(values) - 1, 0)
                ranks = sorted({round(last * k / (_RANKS - 1)) for k in range(_RANKS)}) if values else []
                xs, values = [rank / last if last else 0.5 for rank in ranks], [values[rank] for rank in ranks]
            color = i if len(groups) > 1 else j
            lines.append(Line(f"{text}{unbounded}", xs, values, color, dash=j if len(groups) > 1 else 0))
    return Chart(
        series.title,
        lines,
        x=_axis(series, x) if x else "share of the rows, in ascending order",
        y=_axis(series, ys[0]) if len(ys) == 1 else "",
        log_x="x" in log,
        log_y="y" in log,
    )


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
        rows.setdefault(item if isinstance(item, str) else f"{by} {words.value(item)}", []).append(row)
    return list(rows.items())


def _values(series: Series, column: str, rows: Sequence[int]) -> list[float]:
    cells = (series.columns[column][row] for row in rows)
    return [float(c) if isinstance(c, int | float) and not isinstance(c, bool) else math.nan for c in cells]


def _names(value: Json) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _axis(series: Series, column: str) -> str:
    unit = series.units.get(column, "")
    return f"{_spaced(column)} ({unit})" if unit and unit not in column else _spaced(column)


def _spaced(name: str) -> str:
    return name.replace("_", " ")
