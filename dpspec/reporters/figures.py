"""The figures of an audit with their tables: proved curves with claims and attacks, and its series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpspec.contract import Evidence, Series
from dpspec.engine.judging.evidence_weight import group_size, is_profile, polygon, proven_curves
from dpspec.engine.judging.inequalities import implied_points
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.language.load import claim_options
from dpspec.reporters import labels, series_plots
from dpspec.reporters.drawing import Drawing, Line, svg
from dpspec.reporters.layout import pictures, rounding, series_cell
from dpspec.reporters.series_plots import ATTACKS, marks

#: The maximum number of rows of a table; the JSON in the page has all rows.
MOST_ROWS = 500

#: The false-positive rates of drawn curves, 16 per decade.
_RATES = tuple(10.0 ** (-6 + i / 16) for i in range(97))

#: The false-positive rates of the table.
_SHOWN = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.5)

#: Epsilons with a larger ratio are on a logarithmic axis.
_FAR = 200.0

#: A curve above this at all rates is vacuous.
_VACUOUS = 0.99

_GUESSING = " The thin dotted line is the rate of guessing."
_CAPTION = (
    f"No test exceeds a bound if the mechanism is as declared.{_GUESSING} Claims are dashed, in the color of the bound "
    "for their group size."
)
_POINTS = (
    " Points are the observed rates of attacks, which vary by chance; guesses within one run count as if half of them "
    "were for inclusion. Attacks without a false alarm are at the left edge."
)


@dataclass(frozen=True)
class Figure:
    """``svg`` is markup without foreign text, empty for a table without a figure; ``cut`` counts omitted rows."""

    title: str
    caption: str
    svg: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: int = 0


def figures(audit: AuditResult, name: str) -> Iterator[Figure]:
    """``name`` is unique to the audit on its page."""
    if (plot := power(audit)) is not None:
        drawing, head, rows = plot
        caption = _CAPTION + (_POINTS if any(line.marker for line in drawing.lines) else "")
        yield Figure(drawing.title, caption, svg(drawing, f"{name}-tradeoff"), head, rows)
    plot = profile(audit)
    if plot is not None and not any(is_profile(series) for series in audit.series):
        drawing, head, rows = plot
        yield Figure(drawing.title, series_plots.CAPTION, svg(drawing, f"{name}-profile"), head, rows)
    for i, series in enumerate(audit.series):
        yield _of_series(series, f"{name}-series{i}", audit)


#: A drawing with the head and the rows of its table.
Plot = tuple[Drawing, tuple[str, ...], tuple[tuple[str, ...], ...]]


def power(audit: AuditResult) -> Plot | None:
    """The maximum power of membership tests by proved bounds and claims, and the rates of attacks."""
    bounds = proven_curves(audit)
    sizes = [bound.group_size for bound in bounds]
    curves = [(f"bound{labels.curve(bound)}", i, 0, bound.polygon) for i, bound in enumerate(bounds)]
    dashes: dict[int, int] = {}
    for verdict in audit.verdicts:
        block = labels.claim_block(audit, verdict)
        try:
            points = implied_points(verdict.kind, claim_options(block))
        except (KeyError, TypeError, ValueError):  # an edited document
            continue
        if not points or block.get("record") is not None:
            continue
        size = int(block.get("group_size") or 1)
        dashes[size] = dashes.get(size, 0) + 1
        sizes += [] if size in sizes else [size]
        curves.append((f"claim {verdict.claim}", sizes.index(size), dashes[size], polygon(points)))
    lines = [
        Line(name, _RATES, [float(p) for p in curve.tpr(np.array(_RATES))], colour=colour, dash=dash)
        for name, colour, dash, curve in curves
    ]
    for evidence in audit.evidence:
        size = group_size(evidence)
        sizes += [] if size in sizes else [size]
        if observed := _attack_rates(evidence):
            rates = [max(fpr, _RATES[0]) for fpr, _ in observed]
            text = f"attack{labels.groups(size, evidence.scope.unit)}"
            lines.append(Line(text, rates, [tpr for _, tpr in observed], sizes.index(size), marker=ATTACKS))
    if not bounds or all(min(line.y) > _VACUOUS for line in lines):
        return None
    drawing = Drawing(
        title="Maximum power of membership inference against its false-positive rate",
        lines=lines,
        x="false-positive rate",
        y="true-positive rate",
        log_x=True,
        log_y=True,
        identity=True,
        limits=((1e-6, 1.0), (1e-6, 1.3)),
    )
    rows = tuple(
        (decimals.exact(rate), *(decimals.upper(float(curve.tpr(rate))) for *_, curve in curves)) for rate in _SHOWN
    )
    return drawing, ("false-positive rate", *(name for name, *_ in curves)), rows


def profile(audit: AuditResult) -> Plot | None:
    """Delta against epsilon by upper bounds at two or more deltas."""
    bounds = [bound for bound in proven_curves(audit) if len(bound.pairs) > 1]
    if not bounds:
        return None
    lines, rows = [], []
    for i, bound in enumerate(bounds):
        text = f"bound{labels.curve(bound)}"
        lines.append(Line(text, [e for e, _ in bound.pairs], [d for _, d in bound.pairs], colour=i))
        rows += [(text, decimals.upper(e), decimals.exact(d)) for e, d in bound.pairs]
    lines += marks(audit, "epsilon", "delta", [bound.group_size for bound in bounds], len(bounds))
    shown = [x for line in lines for x in line.x if x > 0.0]
    far = max(shown, default=1.0) > _FAR * min(shown, default=1.0)
    drawing = Drawing(title="Delta against epsilon", lines=lines, x="epsilon", y="delta", log_x=far, log_y=True)
    return drawing, ("curve", "epsilon", "delta"), tuple(rows)


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


def _of_series(series: Series, name: str, audit: AuditResult) -> Figure:
    pictured, rows = pictures(series), len(next(iter(series.columns.values()), ()))
    drawing = series_plots.drawing(series, audit)
    rounded = rounding(series) if series.bounds else ""
    caption = "; ".join(part for part in (labels.value(series.rigor), series.source, rounded) if part)
    if drawing is not None and any(line.marker for line in drawing.lines) and not drawing.names:
        caption += f". {series_plots.CAPTION}"
    if drawing is not None and drawing.identity:
        caption = f"{caption.removesuffix('.')}.{_GUESSING}"
    return Figure(
        title=series.title,
        caption=caption,
        svg="" if drawing is None else svg(drawing, name),
        head=tuple(series.columns),
        rows=tuple(
            tuple(
                series_plots.picture(series, column, row)
                if column in pictured
                else series_cell(series, column, cells[row])
                for column, cells in series.columns.items()
            )
            for row in range(min(rows, MOST_ROWS))
        ),
        cut=max(0, rows - MOST_ROWS),
    )
