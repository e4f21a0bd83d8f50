"""Figures as SVG: where values stand, which ticks axes have, and that every drawing is well-formed markup."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.reporters.drawing import Axis, Drawing, Line, svg

#: All that a figure may be given.
NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-10, 10) | st.just(0.0)


def lines(drawn: str) -> list[list[tuple[float, float]]]:
    """The places that each drawn line runs through."""
    paths = re.findall(r'<path d="M ([^"]*)" fill="none" stroke="var\(--series', drawn)
    parts = [path.split(" L ") for path in paths if " h " not in path]
    return [[(float(x), float(y)) for x, y in (part.split() for part in places)] for places in parts]


def texts(drawn: str) -> list[tuple[tuple[float, float], str]]:
    """Everything written that may be a number or a name, with its place."""
    found = re.findall(r'<text x="([^"]*)" y="([^"]*)">([^<]*)</text>', drawn)
    return [((float(x), float(y)), text) for x, y, text in found if text not in ("x", "y")]


def test_values_stand_where_the_ticks_beside_them_say() -> None:
    drawn = svg(Drawing("T", [Line("a", [0.0, 1.0, 4.0], [10.0, 30.0, 20.0])], "x", "y"), "n")
    across, up = ({float(text): place for place, text in texts(part)} for part in drawn.split('text-anchor="end"'))
    ((first, middle, last),) = lines(drawn)
    for place, x, y in ((first, 0.0, 10.0), (middle, 1.0, 30.0), (last, 4.0, 20.0)):
        assert place[0] == pytest.approx(across[x][0], abs=0.02)
        assert place[1] == pytest.approx(up[y][1] - 3.6, abs=0.02)


@pytest.mark.parametrize(
    ("low", "high", "log", "texts"),
    [
        (0.0, 1.0, False, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-3.0, 12.0, False, ["-2", "0", "2", "4", "6", "8", "10", "12"]),
        (0.0, 0.2, False, ["0.000", "0.025", "0.050", "0.075", "0.100", "0.125", "0.150", "0.175", "0.200"]),
        (1e9, 4e9, False, ["1e9", "1.5e9", "2e9", "2.5e9", "3e9", "3.5e9", "4e9"]),
        (1.0, 100.0, True, ["1", "2", "5", "10", "20", "50", "100"]),
        (1e-6, 1.0, True, ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]),
        (1e-12, 1.0, True, ["1e-12", "1e-10", "1e-8", "1e-6", "0.0001", "0.01", "1"]),
        (3.0, 4.0, True, ["3.0", "3.2", "3.4", "3.6", "3.8", "4.0"]),
    ],
)
def test_ticks_are_round(low: float, high: float, log: bool, texts: list[str]) -> None:
    ticks = Axis.between(low, high, log=log).ticks(9)
    assert [text for _, text in ticks] == texts
    for share, text in ticks:
        value = math.log(float(text) / low) / math.log(high / low) if log else (float(text) - low) / (high - low)
        assert share == pytest.approx(value, abs=1e-9)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1), st.booleans())
def test_every_axis_has_its_values_and_few_ticks_with_texts_of_their_own(values: list[float], log: bool) -> None:
    values = [abs(value) or 5e-324 for value in values] if log else values
    axis = Axis.over(values, log=log)
    assert all(0.0 <= axis.share(value) <= 1.0 for value in values)
    ticks = axis.ticks(8)
    assert len(ticks) <= 17
    assert all(-1e-6 <= share <= 1.0 + 1e-6 for share, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=6),
    st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["", "o", "D", "s", "^", "v", "P", "*", "X", "?"]),
    st.text(max_size=20),
)  # fmt: skip
def test_whatever_is_drawn_is_one_element_of_finite_coordinates(rows, log_x, log_y, identity, marker, text) -> None:
    x, y, low, high = ([row[i] for row in rows] for i in range(4))
    given_lines = [Line(text, x, y, marker=marker), Line("b", x, y, colour=9, dash=7, band=(low, high))]
    drawn = svg(Drawing(text, given_lines, text, "y", log_x=log_x, log_y=log_y, identity=identity), "n")
    element = ET.fromstring(drawn)
    assert element.tag.endswith("svg")
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<title.*?</title>|<text.*?</text>", "", drawn))


def test_what_is_no_number_or_has_no_logarithm_is_left_out() -> None:
    drawn = svg(Drawing("T", [Line("a", [1.0, 2.0, -1.0, math.nan, 3.0], [1.0, 1.0, 1.0, 1.0, 9.0])], "x", "y"), "n")
    assert [len(line) for line in lines(drawn)] == [4]
    drawn = svg(
        Drawing("T", [Line("a", [1.0, 2.0, -1.0, math.inf, 3.0], [1.0, 0.0, 1.0, 1.0, 9.0])], "x", "y", True, True), "n"
    )
    assert [len(line) for line in lines(drawn)] == [2]


def test_names_stand_beside_their_points() -> None:
    drawn = svg(Drawing("T", [Line("a", [1.0, 2.0], [0.0, 1.0], marker="s")], "x", "", names=("first", "second")), "n")
    places = [y - 3.6 for (_, y), text in texts(drawn) if text in ("first", "second")]
    corners = re.findall(r"M [\d.]+ ([\d.]+) L", re.findall(r'<path d="([^"]*Z)" fill="var', drawn)[0])
    assert places == pytest.approx([float(y) + 3.0 for y in corners], abs=0.03)


def test_a_dense_line_keeps_its_ends_and_its_shape() -> None:
    xs = [i / 1000 for i in range(20_001)]
    drawn = svg(Drawing("T", [Line("a", xs, [math.sin(x) for x in xs])], "x", "y"), "n")
    (points,) = lines(drawn)
    assert len(points) < 2500
    full = {float(text): place for place, text in texts(drawn.split('text-anchor="end"')[0])}
    assert points[-1][0] == pytest.approx(full[20.0][0], abs=0.02)
    gaps = [math.dist(a, b) for a, b in pairwise(points)]
    assert max(gaps) < 1.0
