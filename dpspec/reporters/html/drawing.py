"""Lines, points and bands as inline SVG by matplotlib, in colours that the page's style sheet decides."""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpspec.engine.results import decimals
from dpspec.text import plain, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

#: What is drawn in these colours takes those of the page: dark or light, on screen or on paper.
_INK = "#0b0c0d"
_GRID = "#0b0c0e"
_QUIET = "#0b0c0f"
_SERIES = tuple(f"#0b0c{16 + i:02x}" for i in range(8))
_COLOURS = {_INK: "currentColor", _GRID: "var(--grid)", _QUIET: "var(--quiet)"} | {
    c: f"var(--series-{i})" for i, c in enumerate(_SERIES)
}

_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpspec",
    "text.usetex": False,
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.formatter.use_mathtext": False,
}

#: Lines of one colour are told apart by these.
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1, 2)))

#: A line of fewer points than this shows them.
_FEW = 25

#: Logarithmic axes that span less have ticks at 2 and 5 times the powers of ten too.
_FEW_DECADES = 300.0

#: Inches: of the axes with their labels, of a row of the legend, of a name down the side, beside such names.
_WIDTH, _HEIGHT, _LEGEND_ROW, _NAME_ROW, _ROOM = 5.8, 3.4, 0.2, 0.32, 0.2

#: So many characters of labels fit beside each other below the axes, so many of a name stand before them.
_LEGEND_WIDTH, _NAME_WIDTH = 66, 34

#: So many characters of a label are drawn. No figure has room for more, and laying out takes 15 us a character, at each
#: of the many times that matplotlib measures it.
_LABEL = 200


@dataclass(frozen=True)
class Line:
    """One line or one set of points: equally long ``x`` and ``y``; what is not finite is left out.

    colour, dash: lines that belong together share one and differ in the other. marker: draws points only, in
    matplotlib's code (``o``, ``D``). band: the lower and upper edge of a shaded area about the line.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dash: int = 0
    marker: str = ""
    band: tuple[Sequence[float], Sequence[float]] | None = None


#: Larger numbers, and those that are none, are left out: what lies between them is no floating point number any more,
#: and matplotlib cannot place ticks there.
_LARGEST = 1e300


@dataclass(frozen=True)
class Drawing:
    """What a figure shows: its lines and its axes. names: what stands down the side at 0, 1, ... instead of numbers."""

    title: str
    lines: Sequence[Line]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    identity: bool = False
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None
    names: tuple[str, ...] = ()


def _matplotlib() -> Any:
    """matplotlib, whatever backend the environment asks for: notebooks ask for one that other programs do not have."""
    asked = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib as mpl
    finally:
        if asked is not None:
            os.environ["MPLBACKEND"] = asked
    return mpl


def svg(drawing: Drawing, name: str) -> str:
    """The drawing as an SVG element with a title for screen readers; ``name`` makes its ids unique on the page."""
    mpl = _matplotlib()
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = _legend_columns(drawing)
    rows = math.ceil(len(drawing.lines) / columns) if len(drawing.lines) > 1 else 0
    height = 0.9 + _NAME_ROW * len(drawing.names) if drawing.names else _HEIGHT
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # what the user has set would draw the same result in another way
        mpl.rcParams.update(_SETTINGS)
        # The reader's fonts draw the text, not those that measure it here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(_WIDTH, height + _LEGEND_ROW * rows), layout="constrained")
        FigureCanvasSVG(figure)
        if drawing.names:  # room for names that a phone's style sheet makes longer
            figure.get_layout_engine().set(w_pad=_ROOM)  # type: ignore[union-attr, call-arg]
        axes = figure.add_subplot()
        for line in drawing.lines:
            _line(axes, line, drawing)
        _dress(axes, drawing)
        if rows:
            _legend(figure, columns)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _embeddable(out.getvalue(), plain(drawing.title), name)


def _line(axes: Axes, line: Line, drawing: Drawing) -> None:
    edges = line.band or (line.y, line.y)
    shown = [
        row
        for row in zip(line.x, line.y, *edges, strict=True)
        if all(abs(value) <= _LARGEST for value in row)
        and not (drawing.log_x and row[0] <= 0)
        and not (drawing.log_y and row[1] <= 0 and not drawing.names)
    ]
    if not shown:
        return
    xs, ys, low, high = zip(*shown, strict=True)
    colour = _SERIES[line.colour % len(_SERIES)]
    axes.plot(
        xs,
        ys,
        color=colour,
        label=_label(line.label),
        linewidth=1.6,
        linestyle="none" if line.marker else _DASHES[line.dash % len(_DASHES)],
        marker=line.marker or ("." if len(shown) < _FEW else ""),
        markersize=6 if line.marker else None,
        clip_on=not line.marker,  # a point at the edge is drawn whole
    )
    if line.band is not None:
        axes.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)


def _dress(axes: Axes, drawing: Drawing) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis, logarithmic, scale in (
        (axes.xaxis, drawing.log_x, axes.set_xscale),
        (axes.yaxis, drawing.log_y, axes.set_yscale),
    ):
        if logarithmic:
            scale("log")
            low, high = axis.get_view_interval()
            if high < _FEW_DECADES * low:
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: decimals.nearest(value)))
            axis.set_minor_formatter(NullFormatter())
    if drawing.limits is not None:
        axes.set_xlim(*drawing.limits[0])
        axes.set_ylim(*drawing.limits[1])
    if drawing.identity:
        low, high = axes.get_xlim()
        low = max(low, 1e-12) if drawing.log_x else low
        steps = [low * (high / low) ** (i / 64) if drawing.log_x else low + (high - low) * i / 64 for i in range(65)]
        axes.plot(steps, steps, color=_QUIET, linewidth=1.0, linestyle=":")
        axes.set_xlim(low, high)
    if drawing.names:
        axes.set_yticks(range(len(drawing.names)), [_short(name) for name in drawing.names])
        axes.set_ylim(len(drawing.names) - 0.5, -0.5)
    axes.set_xlabel(_label(drawing.x), color=_INK)
    axes.set_ylabel(_label(drawing.y), color=_INK, labelpad=9.0)
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    axes.tick_params(colors=_INK, which="both")
    for side, spine in axes.spines.items():
        spine.set_color(_INK)
        spine.set_visible(side in ("left", "bottom"))


def _legend(figure: Canvas, columns: int) -> None:
    """Below the axes, where it hides no line."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            labelcolor=_INK,
            fontsize=9.5,
            borderpad=0.0,
            columnspacing=2.4,  # on phones the style sheet makes all text larger
            handlelength=2.4,
        )


def _legend_columns(drawing: Drawing) -> int:
    longest = max((len(_label(line.label)) for line in drawing.lines), default=0)
    return max(1, min(4, len(drawing.lines), _LEGEND_WIDTH // (longest + 8)))


def _label(text: str) -> str:
    return shortened(plain(text), _LABEL)


def _short(name: str) -> str:
    return shortened(plain(name), _NAME_WIDTH)


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
