"""Ranked bars as inline SVG: each is hatched where nothing is seen, light where some of it is, full where all is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpspec.reporters.html.axes import Axis
from dpspec.text import plain, shortened

#: In the drawing's units, of which a page shows about one a pixel: the width, a bar with its text above it, the height
#: of the bar alone, the room around the bars and below them.
_WIDTH, _ROW, _BAR, _SIDE, _BELOW = 418.0, 30.0, 9.0, 6.0, 36.0

#: So many characters have room on a line, names and what stands at its other end together.
_LINE = 62

#: So many ticks the axis has at most.
_TICKS = 7

#: Hatches are so far apart.
_HATCH = 5.0


@dataclass(frozen=True)
class Bar:
    """A name, what is said of it, and shares of the axis: hatched up to ``low``, light up to ``high``, full beyond.

    name: without its ``words``, which stand before it, where there is no room for them. bad: the whole bar in the
    colour of what is wrong.
    """

    name: str
    said: str
    low: float
    high: float
    words: str = ""
    bad: bool = False


def svg(title: str, shown: Sequence[Bar], axis: Axis, label: str, name: str, *, unit: str = "") -> str:
    """The bars as an SVG element with a title for screen readers; ``name`` makes its ids unique on the page.

    unit: written behind every number of the axis.
    """
    from markupsafe import escape

    bottom = _ROW * len(shown)
    parts = [*_ticks(axis, bottom, unit), *(part for i, bar in enumerate(shown) for part in _bar(bar, i * _ROW, name))]
    parts.append(f'<g text-anchor="middle">{_text(0.5 * _WIDTH, bottom + 30.0, label)}</g>')
    return (
        f'<svg viewBox="0 0 {_n(_WIDTH)} {_n(bottom + _BELOW)}" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-labelledby="{name}-title"><title id="{name}-title">{escape(plain(title))}</title>'
        f'<pattern id="{name}-unseen" width="{_n(_HATCH)}" height="{_n(_HATCH)}" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="{_n(_HATCH)}" height="{_n(_HATCH)}" fill="var(--open-bg)"/>'
        f'<rect width="{_n(0.5 * _HATCH)}" height="{_n(_HATCH)}" fill="var(--open)"/></pattern>'
        f'<g fill="currentColor" font-family="sans-serif" font-size="10">{"".join(parts)}</g></svg>'
    )


def _ticks(axis: Axis, bottom: float, unit: str) -> Iterator[str]:
    """Lines behind the bars, and their numbers below, none of which touches the one before."""
    placed = [(_place(share), f"{text}{unit}") for share, text in axis.ticks(_TICKS)]
    yield f'<path d="{" ".join(f"M {_n(x)} 0 V {_n(bottom + 3.0)}" for x, _ in placed)}" stroke="var(--grid)"/>'
    yield '<g text-anchor="middle">'
    spaced = -math.inf
    for x, text in placed:
        half = 4.4 * len(text)  # in the larger text of narrow pages
        middle = min(max(x, half), _WIDTH - half)
        if middle - half > spaced:
            yield _text(middle, bottom + 14.0, text)
            spaced = middle + half + 4.0
    yield "</g>"


def _bar(bar: Bar, top: float, name: str) -> Iterator[str]:
    y = top + _ROW - _BAR - 4.0
    said = shortened(plain(bar.said), _LINE // 2)
    named = f"{bar.words} ({bar.name})" if bar.words else bar.name
    if len(named) > _LINE - len(said):
        named = bar.name
    yield _text(_SIDE, y - 4.0, shortened(plain(named), _LINE - len(said)))
    yield f'<g text-anchor="end">{_text(_WIDTH - _SIDE, y - 4.0, said)}</g>'
    if bar.bad:
        yield _piece(0.0, 1.0, y, 'fill="var(--bad)"')
        return
    yield _piece(0.0, bar.low, y, f'fill="url(#{name}-unseen)"')
    yield _piece(bar.low, bar.high, y, 'fill="var(--series-0)" fill-opacity="0.35"')
    yield _piece(bar.high, 1.0, y, 'fill="var(--series-0)"')


def _piece(first: float, last: float, y: float, look: str) -> str:
    if last <= first:
        return ""
    x = _place(first)
    return f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(_place(last) - x)}" height="{_n(_BAR)}" {look}/>'


def _place(share: float) -> float:
    return _SIDE + (_WIDTH - 2.0 * _SIDE) * share


def _text(x: float, y: float, text: str) -> str:
    from markupsafe import escape

    return f'<text x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


def _n(value: float) -> str:
    """A coordinate to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
