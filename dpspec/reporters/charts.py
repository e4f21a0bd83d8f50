"""Charts of the page as inline SVG in the colors of its style sheet: lines on two axes, an interval, 100 people."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dpspec import decimals
from dpspec.contract.results import Verdict
from dpspec.reporters.words import Bounds
from dpspec.text import plain, shortened, spaced

#: The margin on either side of the values, as a share of the range.
_MARGIN = 0.05

#: Smaller absolute values are equal to zero on a linear axis, and larger ones are not drawn.
_SMALLEST, _LARGEST = 1e-290, 1e300

#: Patterns of lines of one color in the drawing, and their names in the legend's style.
_DASHES = (("", "solid"), ("8 3.2", "dashed"), ("2.4 2.4", "dotted"))

#: The number of colors in the style sheet.
_COLORS = 8

#: A line with fewer points than this shows them.
_FEW = 25

#: Sizes in units of about one pixel: the drawing, the margins of the axes, the text, and a digit on narrow pages.
_WIDTH, _HEIGHT = 418.0, 247.0
_TOP, _RIGHT, _BELOW, _BESIDE = 7.0, 10.0, 40.0, 32.0
_TEXT, _DIGIT = 12.0, 8.0

#: The maximum number of characters of a label, of the upright one, of ticks, and the minimum distance of two points.
_LABEL, _UPRIGHT, _TICKS, _SPACING = 200, 34, 8, 2.0


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high``, different finite numbers: values, or their logarithms to base ten if ``log``."""

    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, values: Iterable[float], *, log: bool) -> "Axis":
        """With a margin around finite values, which are positive if ``log``."""
        placed = [math.log10(value) if log else value for value in values] or [0.0, 1.0]
        low, high = min(placed), max(placed)
        margin = _MARGIN * (high - low)
        if high - low <= max(1e-12 * max(abs(low), abs(high)), _SMALLEST):
            margin = 0.5 if log or abs(low) < _SMALLEST else _MARGIN * abs(low)
        return cls(low - margin, high + margin, log)

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """At most about ``_TICKS`` round values, as pairs of a place and a text."""
        if not self.log:
            rough = (self.high - self.low) / _TICKS
            power = math.floor(math.log10(rough))
            reached = ((digit, power) for digit in (1, 2, 5) if digit * 10.0**power >= rough * (1.0 - 1e-9))
            digit, power = next(reached, (1, power + 1))
            step = digit * 10.0**power
            numbers = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
            return [(self.share(number * step), _short(Decimal(number * digit).scaleb(power))) for number in numbers]
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        stride, digits = -(-len(powers) // _TICKS), (1, 2, 5) if len(powers) <= 4 else (1,)
        rounded = [(digit, power) for power in powers if power % stride == 0 for digit in digits]
        ticks = [
            ((math.log10(digit) + power - self.low) / (self.high - self.low), _short(Decimal(digit).scaleb(power)))
            for digit, power in rounded
        ]
        ticks = [(share, text) for share, text in ticks if -1e-9 <= share <= 1.0 + 1e-9]
        if len(ticks) > 2:
            return ticks
        ends = [(share, self.low + share * (self.high - self.low)) for share in (0.0, 0.5, 1.0)]
        return [(share, decimals.nearest(10.0 ** min(max(value, -323.0), 308.0), digits=3)) for share, value in ends]


def _short(value: Decimal) -> str:
    """All decimals of ordinary numbers, and an exponent for others."""
    if value == 0 or Decimal("0.0001") <= abs(value) < 1_000_000:
        return f"{value:f}"
    return f"{value.normalize():e}".replace("e+", "e")


@dataclass(frozen=True)
class Line:
    """Points in the order of the line; values without a place on the axes are omitted.

    ``is_bound``: False for a line without a guarantee, in a series with bounds.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    dash: int = 0
    is_bound: bool = True


@dataclass(frozen=True)
class Chart:
    """Lines on two axes; ``named`` are the entries of the legend if they are not the lines."""

    title: str
    lines: Sequence[Line]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    named: Sequence[Line] = ()

    def svg(self, name: str) -> str:
        """An element with a title for screen readers; ``name`` makes its ids unique on the page."""
        from markupsafe import escape

        drawn = [(line, list(filter(self._has, zip(line.x, line.y, strict=True)))) for line in self.lines]
        across = Axis.over([x for _, points in drawn for x, _ in points], log=self.log_x)
        up = Axis.over([y for _, points in drawn for _, y in points], log=self.log_y)
        left = min(_BESIDE + _DIGIT * max(len(text) for _, text in up.ticks()), 0.6 * _WIDTH)
        wide, high = _WIDTH - _RIGHT - left, _HEIGHT - _BELOW - _TOP
        ticks_x = [(left + wide * share, text) for share, text in across.ticks()]
        ticks_y = [(_TOP + high * (1.0 - share), text) for share, text in up.ticks()]
        elements = [*_frame(left, ticks_x, ticks_y, _label(self.x), shortened(plain(self.y), _UPRIGHT))]
        for line, points in drawn:
            points_on_page = [(left + wide * across.share(x), _TOP + high * (1.0 - up.share(y))) for x, y in points]
            elements += _drawn(line, points_on_page)
        return (
            f'<svg viewBox="0 0 {_n(_WIDTH)} {_n(_HEIGHT)}" role="img" '
            f'aria-labelledby="{name}-title"><title id="{name}-title">{escape(plain(self.title))}</title>'
            f'<g fill="currentColor" font-family="sans-serif" font-size="{_n(_TEXT)}">{"".join(elements)}</g></svg>'
        )

    @property
    def legend(self) -> list[tuple[str, str]]:
        """For each of several lines the style of its border in the legend, and its label."""
        shown = self.named or (self.lines if len(self.lines) > 1 else ())
        return [(f"{_dash(line)[1]} {_color(line)}", _label(line.label)) for line in shown]

    def _has(self, point: tuple[float, float]) -> bool:
        x, y = point
        return abs(x) <= _LARGEST and abs(y) <= _LARGEST and (x > 0 or not self.log_x) and (y > 0 or not self.log_y)


def _frame(
    left: float, ticks_x: list[tuple[float, str]], ticks_y: list[tuple[float, str]], x: str, y: str
) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BELOW
    grid = [f"M {_n(position)} {_n(_TOP)} V {_n(bottom)}" for position, _ in ticks_x]
    grid += [f"M {_n(left)} {_n(position)} H {_n(right)}" for position, _ in ticks_y]
    yield f'<path d="{" ".join(grid)}" fill="none" stroke="var(--grid)" stroke-width="0.6"/>'
    axes = f"M {_n(left)} {_n(_TOP)} V {_n(bottom)} H {_n(right)}"
    yield f'<path d="{axes}" fill="none" stroke="currentColor" stroke-width="0.8"/><g text-anchor="middle">'
    free = -math.inf
    for position, text in ticks_x:
        half = 0.5 * _DIGIT * len(text)
        if position - half > free:  # no text overlaps the one before
            yield _text(min(position, _WIDTH - half), bottom + 15.0, text)
            free = position + half + 4.0
    yield _text(0.5 * (left + right), bottom + 33.0, x)
    yield f'<g transform="translate(13 {_n(0.5 * (_TOP + bottom))}) rotate(-90)">{_text(0, 0, y)}</g>'
    yield '</g><g text-anchor="end">'
    yield from (_text(left - 6.5, position + 4.2, text) for position, text in ticks_y)
    yield "</g>"


def _drawn(line: Line, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    spaced = list(points[:1])
    for point in points[1:-1]:
        if math.dist(point, spaced[-1]) >= _SPACING:
            spaced.append(point)
    spaced += points[1:][-1:]
    if spaced:
        path, dashes = " ".join(f"{_n(x)} {_n(y)}" for x, y in spaced), _dash(line)[0]
        array = f' stroke-dasharray="{dashes}"' if dashes else ""
        yield f'<path d="M{path}" fill="none" stroke="{_color(line)}" stroke-width="1.6"{array}/>'
    if len(points) < _FEW:
        dots = "".join(f"M{_n(x)} {_n(y)}h0" for x, y in points)
        yield f'<path class="dots" d="{dots}" stroke="{_color(line)}"/>'


def _dash(line: Line) -> tuple[str, str]:
    """Further lines of a color have another pattern."""
    return _DASHES[(line.dash + max(line.color, 0) // _COLORS) % len(_DASHES)]


def _color(line: Line) -> str:
    return "currentColor" if line.color < 0 else f"var(--series-{line.color % _COLORS})"


def _text(x: float, y: float, text: str) -> str:
    from markupsafe import escape

    return f'<text x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


def _n(value: float) -> str:
    """A coordinate to a tenth."""
    return f"{round(value, 1) + 0.0:g}"


def _label(text: str) -> str:
    return shortened(plain(text), _LABEL)


#: The ratio of the axis' end to the largest number on it. Numbers with a larger ratio than the second are on a
#: logarithmic scale.
_ROOM, _SPREAD = 1.12, 40.0

#: The size of the interval's drawing, and of the text at its ends: at least 12 pixels on a page of 400.
_BAR_WIDTH, _BAR_HEIGHT, _END_TEXT = 400.0, 58.0, 15.0


def interval_chart(verdict: Verdict, bounds: Bounds) -> str:
    """Draw the bounds, the claim and the attack's lower bound on one axis, and a key with their numbers.

    The key is HTML, so that its text keeps its size on narrow pages.

    Args:
        verdict: The verdict with its numbers.
        bounds: The same in words.

    Returns:
        An SVG element and a list; empty without a bound or a positive finite number.
    """
    from markupsafe import escape

    lower, upper, claimed, shown = (
        number if number is not None and math.isfinite(number) and number >= 0.0 else None
        for number in (verdict.lower, verdict.upper, verdict.claimed, bounds.attacked)
    )
    numbers = [number for number in (lower, upper, claimed, shown) if number is not None]
    largest = max(numbers, default=0.0)
    if largest <= 0.0 or (lower is None and upper is None):
        return ""
    smallest = min(number for number in numbers if number > 0.0)
    axis = Axis(0.0, largest * _ROOM, log=False)
    least = 0.0
    if largest / smallest > _SPREAD:
        least = smallest / _ROOM**4
        axis = Axis(math.log10(least), math.log10(largest * _ROOM), log=True)

    def place(number: float) -> float:
        return 6.0 + (_BAR_WIDTH - 12.0) * min(1.0, max(0.0, axis.share(max(number, least))))

    by_theory = None if shown == lower else lower
    title = "; ".join(filter(None, (bounds.upper, bounds.lower)))
    low, high = (6.0 if lower is None else place(lower)), (_BAR_WIDTH - 6.0 if upper is None else place(upper))
    low, high = min(low, high), max(low, high)
    if bounds.is_approximate:  # an estimate is a point
        low = high = place(next(end for end in (upper, lower) if end is not None))
    color = "var(--bad)" if bounds.contradiction else "var(--series-0)"
    faded = ' opacity="0.45"' if by_theory is None or upper is None else ""
    elements = [
        f'<path d="M 6 18 H {_n(_BAR_WIDTH - 6.0)}" stroke="var(--grid)" stroke-width="8" stroke-linecap="round"/>',
        f'<rect x="{_n(low - 1.5)}" y="12" width="{_n(high - low + 3.0)}" height="12" rx="2" fill="{color}"{faded}/>',
        *(
            f'<rect x="{_n(place(end) - 1.5)}" y="10" width="3" height="16" fill="{color}"/>'
            for end in (by_theory, upper)
            if end is not None
        ),
    ]
    marks = [f"{spaced(verdict.quantity)}: {bounds}"]
    key = [("bar" if not bounds.contradiction else "bar wrong", title)] if title else []
    if shown is not None:
        elements.append(f'<circle cx="{_n(place(shown))}" cy="18" r="5.5" fill="var(--series-1)"/>')
        key.append(("dot", bounds.attack))
    if claimed is not None:
        elements.append(f'<path d="M {_n(place(claimed))} 4 V 32" stroke="currentColor" stroke-width="2"/>')
        marks.append(f"claimed {decimals.exact(claimed)}")
        key.append(("tick", marks[-1]))
    scale = [(6.0, decimals.nearest(least, digits=2), "start")]
    end_text = f"{decimals.nearest(largest * _ROOM, digits=2)}{', logarithmic' if axis.log else ''}"
    scale.append((_BAR_WIDTH - 6.0, f"{spaced(verdict.quantity)} {end_text}", "end"))
    elements += [
        f'<g text-anchor="{anchor}" font-size="{_n(_END_TEXT)}" opacity="0.8">{_text(x, 52.0, t)}</g>'
        for x, t, anchor in scale
    ]
    size = f'viewBox="0 0 {_n(_BAR_WIDTH)} {_n(_BAR_HEIGHT)}"'
    spoken = escape(plain(", ".join(marks)))
    listed = "".join(f'<li><i class="{mark}"></i>{escape(plain(text))}</li>' for mark, text in key)
    drawing = f'<svg class="interval" {size} role="img" aria-label="{spoken}">{"".join(elements)}</svg>'
    return f'{drawing}<ul class="legend key" aria-hidden="true">{listed}</ul>'


#: The distance of two people, their number in a row, and the height of a row.
_STEP, _ROW, _LINE = 15, 25, 18


def people(identified: int, guessed: int) -> str:
    """Draw 100 people: those that guessing identifies, those that an attacker identifies at most, and the others.

    Args:
        identified: The maximum number of identified people, 0 to 100.
        guessed: The number that guessing identifies.

    Returns:
        An SVG element.
    """
    kinds = ((guessed, "var(--quiet)"), (max(identified, guessed), "var(--bad)"), (100, "var(--line)"))
    elements, first = [], 0
    for last, color in kinds:
        heads, bodies = [], []
        while first < last:
            row, column = divmod(first, _ROW)
            number = min(last - first, _ROW - column)
            x, y = 9 + _STEP * column, 8 + _LINE * row
            # Dashes of length 0 with round ends are circles.
            heads.append(f"M{x} {y - 3}h{_STEP * (number - 1)}.1")
            bodies.append(f"M{x - 1} {y + 5}h{_STEP * (number - 1) + 2}.1")
            first += number
        if heads:
            elements.append(
                f'<path d="{"".join(heads)}" stroke="{color}" stroke-width="6.4" stroke-dasharray="0 {_STEP}"/>'
            )
            dashes = f"2 {_STEP - 2}"
            elements.append(
                f'<path d="{"".join(bodies)}" stroke="{color}" stroke-width="7" stroke-dasharray="{dashes}"/>'
            )
    label = f"{max(identified, guessed)} of 100 people identified at most, {guessed} by guessing"
    return (
        f'<svg class="people" viewBox="0 0 {_STEP * _ROW + 3} {_LINE * 4}" role="img" aria-label="{label}" fill="none" '
        f'stroke-linecap="round">{"".join(elements)}</svg>'
    )
