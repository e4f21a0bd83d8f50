"""Lines, points and bands with their axes as inline SVG, in the colors of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dpspec.engine.results import decimals
from dpspec.text import plain, shortened

#: The margin on either side of the values, as a share of the range.
_MARGIN = 0.05

#: Logarithmic axes with a smaller ratio of their ends also have ticks at 2 and 5 times the powers of ten.
_FEW_DECADES = 300.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)

#: The maximum distance of a place from the axis, in lengths of the axis.
_FAR = 1e4


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high``, different finite values; logarithms to base ten if ``log``."""

    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, values: Iterable[float], *, log: bool) -> Axis:
        """A margin around finite values, which are positive if ``log``."""
        placed = [math.log10(value) if log else value for value in values]
        if not placed:
            return cls(0.0, 1.0, log)
        low, high = min(placed), max(placed)
        if high - low <= 1e-12 * max(abs(low), abs(high)):
            room = 0.5 if log else 0.05 * abs(low) or 0.05
        else:
            room = _MARGIN * (high - low)
        return cls(low - room, high + room, log)

    @classmethod
    def between(cls, low: float, high: float, *, log: bool) -> Axis:
        return cls(math.log10(low), math.log10(high), log) if log else cls(low, high, log)

    @property
    def ends(self) -> tuple[float, float]:
        """The values at both ends, positive if logarithmic."""
        if not self.log:
            return self.low, self.high
        return max(10.0 ** max(self.low, -323.0), 5e-324), 10.0 ** min(self.high, 308.0)

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        placed = math.log10(value) if self.log else value
        return min(max((placed - self.low) / (self.high - self.low), -_FAR), 1.0 + _FAR)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """About ``most`` ticks at round values, as pairs of a place and a text."""
        found = list(self._powers(most)) if self.log else []
        if len(found) < 3:
            low, high = self.ends
            found = [
                (value, _plain(value, step)) for value, step in _round(low, high, most) if value > 0 or not self.log
            ]
        places: dict[str, float] = {}
        for value, text in found:  # subnormal numbers may have equal texts
            places.setdefault(text, value)
        return [(self.share(value), text) for text, value in places.items()]

    def _powers(self, most: int) -> Iterator[tuple[float, str]]:
        """Powers of ten, on a short axis also 2 and 5 times these."""
        first, last = max(-323, math.ceil(self.low - 1e-9)), min(308, math.floor(self.high + 1e-9))
        if self.high - self.low >= math.log10(_FEW_DECADES):
            stride = max(1, -(-(last - first + 1) // most))
            for power in range(-(-first // stride) * stride, last + 1, stride):
                yield 10.0**power, decimals.nearest(10.0**power, digits=4)
            return
        for power in range(max(-323, first - 1), last + 1):
            for times in (1.0, 2.0, 5.0):
                value = float(f"{times}e{power}")
                if self.low - 1e-9 <= math.log10(value) <= self.high + 1e-9:
                    yield value, decimals.nearest(value, digits=4)


def _round(low: float, high: float, most: int) -> list[tuple[float, float]]:
    """Multiples of a round step, at most ``most``, each with the step."""
    rough = max((high - low) / most, 5e-324)
    power = math.floor(math.log10(rough))
    scale = 10.0 ** max(power, -307)
    step = next(times * scale for times in _STEPS if times * scale >= rough * (1.0 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(number * step, step) for number in range(first, min(last, first + 2 * most) + 1)]


def _plain(value: float, step: float) -> str:
    """With the decimals that distinguish the value from adjacent multiples of ``step``."""
    largest = max(abs(value), step)
    if step < 1e-4 or largest >= 1e7:
        return decimals.nearest(value, digits=min(17, max(4, 2 + math.floor(math.log10(largest / step)))))
    quarter = abs(step / 10.0 ** math.floor(math.log10(step) + 1e-9) - 2.5) < 1e-6
    places = max(0, (1 if quarter else 0) - math.floor(math.log10(step) + 1e-9))
    return f"{value + 0.0:.{places}f}" if abs(value) >= 0.5 * step else f"{0.0:.{places}f}"


#: Dash patterns of lines of one color.
_DASHES = ("", "8 3.2", "2.4 2.4", "9.6 3.2 1.6 3.2")

#: The number of colors in the style sheet.
_COLOURS = 8

#: A line with fewer points than this shows them.
_FEW = 25

#: Sizes in units of about one pixel: the drawing's width, the axes' height, a row of the legend, a row of a name.
_WIDTH, _HEIGHT, _LEGEND_ROW, _NAME_ROW = 418.0, 205.0, 14.4, 23.0
_TOP, _RIGHT, _BELOW, _BESIDE = 6.0, 10.0, 36.0, 22.0

#: The sizes of text, and the average width of a character relative to them.
_TEXT, _LEGEND_TEXT, _CHARACTER = 10.0, 9.5, 0.58

#: The width of a digit in the larger text of narrow pages.
_DIGIT = 7.0

#: The length of a line in the legend, the gap after it, and the gap between columns.
_HANDLE, _GAP, _COLUMN = 23.0, 7.0, 20.0

#: The maximum number of characters in a row of the legend, and in a name at the side.
_LEGEND_WIDTH, _NAME_WIDTH = 66, 34
_LABEL = 200
_TICKS_X, _TICKS_Y = 9, 8

#: The minimum distance of two consecutive points of a line.
_SPACING = 0.5
_LARGEST = 1e300

#: Corners of a point around (0, 0), by its code: square, diamond, triangle.
_CORNERS: dict[str, tuple[tuple[float, float], ...]] = {
    "s": ((-3, -3), (3, -3), (3, 3), (-3, 3)),
    "D": ((0, -4.8), (4.8, 0), (0, 4.8), (-4.8, 0)),
    "^": ((0, -3.4), (3.4, 3), (-3.4, 3)),
}

#: Radii of a round marker, and of a point on a line.
_ROUND, _DOT = 3.6, 1.9


@dataclass(frozen=True)
class Line:
    """A line, or points only with a ``marker``: ``o`` or one of ``_CORNERS``. ``band`` is a shaded area."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dash: int = 0
    marker: str = ""
    band: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True)
class Drawing:
    """``names`` are texts at 0, 1, ... on the vertical axis instead of numbers."""

    title: str
    lines: Sequence[Line]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    identity: bool = False
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None
    names: tuple[str, ...] = ()


def svg(drawing: Drawing, name: str) -> str:
    """An element with a title for screen readers; ``name`` makes its ids unique on the page."""
    from markupsafe import escape

    lines = [_shown(line, drawing) for line in drawing.lines]
    frame = _Frame.of(drawing, lines)
    longest = max((len(_label(line.label)) for line in drawing.lines), default=0)
    columns = max(1, min(4, len(drawing.lines), _LEGEND_WIDTH // (longest + 8)))
    rows = math.ceil(len(lines) / columns) if len(lines) > 1 else 0
    height = frame.bottom + _BELOW + rows * _LEGEND_ROW
    identity = []
    if drawing.identity:
        low, high = frame.x.ends
        low = max(low, 1e-12) if drawing.log_x else low
        steps = [low * (high / low) ** (i / 64) if drawing.log_x else low + (high - low) * i / 64 for i in range(65)]
        places = [frame.place(value, value) for value in steps if value > 0.0 or not drawing.log_y]
        identity = [f'<path d="{_path(places)}" fill="none" stroke="var(--quiet)" stroke-dasharray="1 1.65"/>']
    parts = [
        *_grid(frame, drawing),
        f'<g clip-path="url(#{name}-clip)">',
        *identity,
        *(part for line in lines if not line.marker for part in _line(frame, line)),
        "</g>",
        *(part for line in lines if line.marker for part in _line(frame, line)),
        *(_legend(lines, columns, frame.bottom + _BELOW) if rows else ()),
    ]
    inside = f'x="{_n(frame.left)}" y="0" width="{_n(frame.right - frame.left)}" height="{_n(frame.bottom)}"'
    return (
        f'<svg viewBox="0 0 {_n(_WIDTH)} {_n(height)}" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-labelledby="{name}-title"><title id="{name}-title">{escape(plain(drawing.title))}</title>'
        f'<clipPath id="{name}-clip"><rect {inside}/></clipPath>'
        f'<g fill="currentColor" font-family="sans-serif" font-size="{_n(_TEXT)}">{"".join(parts)}</g></svg>'
    )


@dataclass(frozen=True)
class _Frame:
    x: Axis
    y: Axis
    left: float
    right: float
    bottom: float

    @classmethod
    def of(cls, drawing: Drawing, lines: Sequence[Line]) -> _Frame:
        xs = [x for line in lines for x in line.x]
        edges = [edge for line in lines for edge in (line.y, *(line.band or ()))]
        ys = [y for edge in edges for y in edge]
        across = Axis.over(xs, log=drawing.log_x)
        if drawing.identity:
            ys += [end for end in across.ends if end > 0.0 or not drawing.log_y]
        up = Axis.over(ys, log=drawing.log_y and not drawing.names)
        if drawing.limits is not None:
            across = Axis.between(*drawing.limits[0], log=drawing.log_x)
            up = Axis.between(*drawing.limits[1], log=drawing.log_y)
        if drawing.names:
            up = Axis.between(len(drawing.names) - 0.5, -0.5, log=False)
            texts, height = [_label(one, _NAME_WIDTH) for one in drawing.names], _NAME_ROW * len(drawing.names)
        else:
            texts, height = [text for _, text in up.ticks(_TICKS_Y)], _HEIGHT
        left = 8.0 + _DIGIT * max(map(len, texts), default=0) + (_BESIDE if drawing.y else 0.0)
        return cls(across, up, min(left, 0.6 * _WIDTH), _WIDTH - _RIGHT, _TOP + height)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """From the upper left corner."""
        return (
            self.left + (self.right - self.left) * self.x.share(x),
            self.bottom - (self.bottom - _TOP) * self.y.share(y),
        )


def _shown(line: Line, drawing: Drawing) -> Line:
    """Without points that have no place on these axes."""
    edges = line.band or (line.y, line.y)
    rows = [
        row
        for row in zip(line.x, line.y, *edges, strict=True)
        if all(abs(value) <= _LARGEST for value in row)
        and not (drawing.log_x and row[0] <= 0)
        and not (drawing.log_y and min(row[1:]) <= 0 and not drawing.names)
    ]
    columns = [tuple(float(row[i]) for row in rows) for i in range(4)]
    return replace(line, x=columns[0], y=columns[1], band=(columns[2], columns[3]) if line.band else None)


def _grid(frame: _Frame, drawing: Drawing) -> Iterator[str]:
    across = [(frame.left + (frame.right - frame.left) * at, text) for at, text in frame.x.ticks(_TICKS_X)]
    if drawing.names:
        up = [
            (frame.bottom - (frame.bottom - _TOP) * frame.y.share(i), _label(n, _NAME_WIDTH))
            for i, n in enumerate(drawing.names)
        ]
    else:
        up = [(frame.bottom - (frame.bottom - _TOP) * at, text) for at, text in frame.y.ticks(_TICKS_Y)]
    behind = [f"M {_n(x)} {_n(_TOP)} V {_n(frame.bottom)}" for x, _ in across]
    behind += [f"M {_n(frame.left)} {_n(y)} H {_n(frame.right)}" for y, _ in up]
    marks = [f"M {_n(x)} {_n(frame.bottom)} v 3.5" for x, _ in across]
    marks += [f"M {_n(frame.left)} {_n(y)} h -3.5" for y, _ in up]
    marks.append(f"M {_n(frame.left)} {_n(_TOP)} V {_n(frame.bottom)} H {_n(frame.right)}")
    yield f'<path d="{" ".join(behind)}" fill="none" stroke="var(--grid)" stroke-width="0.6"/>'
    yield f'<path d="{" ".join(marks)}" fill="none" stroke="currentColor" stroke-width="0.8"/>'
    yield '<g text-anchor="middle">'
    spaced = -math.inf
    for x, text in across:
        half = 0.5 * _DIGIT * len(text)
        if x - half > spaced:  # no label overlaps the one before; its tick stays
            yield _text(min(x, _WIDTH - half), frame.bottom + 14.0, text)
            spaced = x + half + 4.0
    yield _text(0.5 * (frame.left + frame.right), frame.bottom + 29.0, _label(drawing.x)) if drawing.x else ""
    yield '</g><g text-anchor="end">'
    for y, text in up:
        yield _text(frame.left - 6.5, y + 3.6, text)
    yield "</g>"
    if drawing.y:
        middle = _n(0.5 * (_TOP + frame.bottom))
        yield f'<g text-anchor="middle" transform="translate(11 {middle}) rotate(-90)">'
        yield f"{_text(0, 0, _label(drawing.y))}</g>"


def _line(frame: _Frame, line: Line) -> Iterator[str]:
    places = [frame.place(x, y) for x, y in zip(line.x, line.y, strict=True)]
    if line.band is not None and places and not line.marker:
        low, high = ([frame.place(x, y) for x, y in zip(line.x, edge, strict=True)] for edge in line.band)
        yield f'<path d="{_path([*low, *reversed(high)])} Z" fill="{_colour(line)}" fill-opacity="0.2"/>'
    if places:
        yield from _stroke(line, _path(places), places)


def _stroke(line: Line, path: str, dots: Sequence[tuple[float, float]]) -> Iterator[str]:
    """The path with dots if the line has few points; markers only if it has a marker."""
    if not line.marker:
        dashes = _DASHES[line.dash % len(_DASHES)]
        array = f' stroke-dasharray="{dashes}"' if dashes else ""
        style = f'stroke="{_colour(line)}" stroke-width="1.6" stroke-linejoin="round"{array}'
        yield f'<path d="{path}" fill="none" {style}/>'
    if line.marker or 0 < len(line.x) < _FEW:
        yield _marks(dots, line.marker, _colour(line))


def _colour(line: Line) -> str:
    return f"var(--series-{line.colour % _COLOURS})"


def _marks(places: Sequence[tuple[float, float]], marker: str, colour: str) -> str:
    if marker in _CORNERS:
        paths = [_path([(x + dx, y + dy) for dx, dy in _CORNERS[marker]]) + " Z" for x, y in places]
    else:
        radius = _n(_ROUND if marker else _DOT)
        over = _n(2.0 * (_ROUND if marker else _DOT))
        arcs = f"a {radius} {radius} 0 1 0 {over} 0 a {radius} {radius} 0 1 0 -{over} 0"
        paths = [f"M {_n(x - float(radius))} {_n(y)} {arcs}" for x, y in places]
    return f'<path d="{" ".join(paths)}" fill="{colour}"/>'


def _legend(lines: Sequence[Line], columns: int, top: float) -> Iterator[str]:
    rows = math.ceil(len(lines) / columns)
    left = 2.0
    yield f'<g font-size="{_n(_LEGEND_TEXT)}">'
    for first in range(0, len(lines), rows):
        column = lines[first : first + rows]
        for row, line in enumerate(column):
            y = top + _LEGEND_ROW * (row + 0.5)
            yield from _stroke(line, f"M {_n(left)} {_n(y)} h {_n(_HANDLE)}", [(left + 0.5 * _HANDLE, y)])
            yield _text(left + _HANDLE + _GAP, y + 3.4, _label(line.label))
        widest = max(len(_label(line.label)) for line in column)
        left += _HANDLE + _GAP + _CHARACTER * _LEGEND_TEXT * widest + _COLUMN
    yield "</g>"


def _path(places: Sequence[tuple[float, float]]) -> str:
    kept = list(places[:1])
    for place in places[1:-1]:
        if math.dist(place, kept[-1]) >= _SPACING:
            kept.append(place)
    kept += places[1:][-1:]
    return "M " + " L ".join(f"{_n(x)} {_n(y)}" for x, y in kept)


def _text(x: float, y: float, text: str) -> str:
    from markupsafe import escape

    return f'<text x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


def _n(value: float) -> str:
    """A coordinate to a hundredth."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _label(text: str, most: int = _LABEL) -> str:
    return shortened(plain(text), most)
