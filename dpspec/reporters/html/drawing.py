"""Lines and points as inline SVG by matplotlib, in colours that the page's style sheet decides."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpspec.engine import numbers
from dpspec.reporters.escape import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What is drawn in these colours takes those of the page: dark or light, on screen or on paper.
_INK = "#0b0c0d"
_GRID = "#0b0c0e"
_SERIES = tuple(f"#0b0c{16 + i:02x}" for i in range(8))
_COLOURS = {_INK: "currentColor", _GRID: "var(--grid)"} | {c: f"var(--series-{i})" for i, c in enumerate(_SERIES)}

_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpspec",
    "text.usetex": False,
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.formatter.use_mathtext": False,
}


#: A line of fewer points than this shows them.
_FEW = 25


@dataclass(frozen=True)
class Line:
    """One line or one set of points: equally long ``x`` and ``y``; what is not finite is left out."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    points: bool = False


@dataclass(frozen=True)
class Drawing:
    """What a figure shows: its lines and its axes."""

    title: str
    lines: Sequence[Line]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    identity: bool = False
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None


def svg(drawing: Drawing, name: str) -> str:
    """The drawing as an SVG element with a title for screen readers; ``name`` makes its ids unique on the page."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        # The reader's fonts draw the text, not those that measure it here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(6.4, 3.9), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for i, line in enumerate(drawing.lines):
            _line(axes, line, _SERIES[i % len(_SERIES)], drawing)
        _dress(axes, drawing)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _embeddable(out.getvalue(), plain(drawing.title), name)


def _line(axes: Axes, line: Line, colour: str, drawing: Drawing) -> None:
    shown = [
        (x, y)
        for x, y in zip(line.x, line.y, strict=True)
        if math.isfinite(x) and math.isfinite(y) and not (drawing.log_x and x <= 0) and not (drawing.log_y and y <= 0)
    ]
    if not shown:
        return
    xs, ys = zip(*shown, strict=True)
    style = "none" if line.points else "--" if line.dashed else "-"
    marker = "o" if line.points else "." if len(shown) < _FEW else ""
    axes.plot(xs, ys, color=colour, label=plain(line.label), linewidth=1.6, linestyle=style, marker=marker)


def _dress(axes: Axes, drawing: Drawing) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis, logarithmic, scale in (
        (axes.xaxis, drawing.log_x, axes.set_xscale),
        (axes.yaxis, drawing.log_y, axes.set_yscale),
    ):
        if logarithmic:
            scale("log")
            axis.set_major_formatter(FuncFormatter(lambda value, _: numbers.nearest(value)))
            axis.set_minor_formatter(NullFormatter())
    if drawing.limits is not None:
        axes.set_xlim(*drawing.limits[0])
        axes.set_ylim(*drawing.limits[1])
    if drawing.identity:
        low, high = axes.get_xlim()
        low = max(low, 1e-12) if drawing.log_x else low
        steps = [low * (high / low) ** (i / 64) if drawing.log_x else low + (high - low) * i / 64 for i in range(65)]
        axes.plot(steps, steps, color=_GRID, linewidth=1.0, linestyle=":")
        axes.set_xlim(low, high)
    axes.set_xlabel(plain(drawing.x), color=_INK)
    axes.set_ylabel(plain(drawing.y), color=_INK)
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    axes.tick_params(colors=_INK, which="both")
    for side, spine in axes.spines.items():
        spine.set_color(_INK)
        spine.set_visible(side in ("left", "bottom"))
    if len(drawing.lines) > 1:
        axes.legend(frameon=False, labelcolor=_INK, fontsize=8.5)


def _embeddable(text: str, title: str, name: str) -> str:
    """The svg element alone: ids of its own, the page's colours, no size in points."""
    from markupsafe import escape

    text = text[text.index("<svg") :]
    head, body = text.split(">", 1)
    head = re.sub(r' (width|height|xmlns:xlink)="[^"]*"', "", head)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'xlink:href="#([^"]*)"', rf'href="#{name}-\1"', body)
    for placeholder, colour in _COLOURS.items():
        body = body.replace(placeholder, colour)
    label = f' role="img" aria-labelledby="{name}-title"'
    return f'{head}{label}><title id="{name}-title">{escape(title)}</title>{body}'
