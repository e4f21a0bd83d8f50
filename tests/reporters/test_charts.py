"""Charts as SVG: places of values, ticks, well-formed markup of any numbers, and the bar of an interval."""

import dataclasses
import math
import re
from importlib import resources
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import results as factory

from dpspec.reporters.charts import Axis, Chart, Line, interval_chart, people
from dpspec.reporters.words import Bounds

STYLE = resources.files("dpspec.reporters").joinpath("assets/page.css").read_text(encoding="utf-8")

NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-10, 10) | st.just(0.0)


def lines(drawn: str) -> list[list[tuple[float, float]]]:
    paths = re.findall(r'<path d="M([0-9][^"]*)" fill="none" stroke="var\(--series', drawn)
    numbers = [list(map(float, path.split())) for path in paths]
    return [list(zip(places[::2], places[1::2], strict=True)) for places in numbers]


def texts(drawn: str) -> dict[float, tuple[float, float]]:
    found = re.findall(r'<text x="([^"]*)" y="([^"]*)">([^<]*)</text>', drawn)
    return {float(text): (float(x), float(y)) for x, y, text in found if text not in ("x", "y")}


def test_values_are_where_the_ticks_beside_them_say() -> None:
    drawn = Chart("T", [Line("a", [0.0, 1.0, 4.0], [10.0, 30.0, 20.0])], "x", "y").svg("n")
    across, up = map(texts, drawn.split('text-anchor="end"'))
    ((first, middle, last),) = lines(drawn)
    for place, x, y in ((first, 0.0, 10.0), (middle, 1.0, 30.0), (last, 4.0, 20.0)):
        assert place[0] == pytest.approx(across[x][0], abs=0.02)
        assert place[1] == pytest.approx(up[y][1] - 4.2, abs=0.02)


def test_the_text_of_a_chart_has_12_pixels() -> None:
    """A column of a page of 1280 pixels draws a chart with 456, a page of 400 with 320, with a rule for its text."""
    drawn = Chart("T", [Line("a", [1e-6, 1.0], [1e-6, 0.5])], "x", "y", log_x=True, log_y=True).svg("n")
    (width,) = map(float, re.findall(r'viewBox="0 0 ([0-9.]+) ', drawn))
    sizes = [float(size) for size in re.findall(r'font-size="([0-9.]+)"', drawn)]
    assert min(sizes) * 456 / width >= 12.0
    (narrow,) = map(float, re.findall(r"figure svg text \{ font-size: ([0-9.]+)px", STYLE))
    assert narrow * 320 / width >= 12.0


def test_an_upright_label_is_not_longer_than_its_axis() -> None:
    drawn = Chart("T", [Line("a", [0.0, 1.0], [0.0, 1.0])], "x", "share of the " + "long " * 20 + "value").svg("n")
    (label,) = re.findall(r"rotate\(-90\)\"><text x=\"0\" y=\"0\">([^<]*)<", drawn)
    assert len(label) <= 34
    assert label.startswith("share of the long")


def test_marks_of_a_key_are_printed() -> None:
    """Browsers print no background, which these marks are, unless the style asks for it."""
    assert re.search(r"\.key i \{[^}]*print-color-adjust: exact", STYLE)


@pytest.mark.parametrize(
    ("low", "high", "log", "texts"),
    [
        (0.0, 1.0, False, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-3.0, 12.0, False, ["-2", "0", "2", "4", "6", "8", "10", "12"]),
        (1.0, 100.0, True, ["1", "2", "5", "10", "20", "50", "100"]),
        (1e-6, 1.0, True, ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]),
        (3.0, 4.0, True, ["3", "3.46", "4"]),
    ],
)
def test_ticks_are_round(low: float, high: float, log: bool, texts: list[str]) -> None:
    ticks = Axis(math.log10(low) if log else low, math.log10(high) if log else high, log).ticks()
    assert [text for _, text in ticks] == texts
    for share, text in ticks:
        value = math.log(float(text) / low) / math.log(high / low) if log else (float(text) - low) / (high - low)
        assert share == pytest.approx(value, abs=5e-3)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1), st.booleans())
def test_every_axis_has_its_values_and_few_ticks(values: list[float], log: bool) -> None:
    values = [abs(value) or 5e-324 for value in values] if log else values
    axis = Axis.over(values, log=log)
    assert all(0.0 <= axis.share(value) <= 1.0 for value in values)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 13
    assert all(-1e-6 <= share <= 1.0 + 1e-6 for share, _ in ticks)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=6), st.booleans(), st.booleans(), st.text(max_size=20))
def test_whatever_is_drawn_is_one_element_of_finite_coordinates(rows, log_x, log_y, text) -> None:
    x, y = ([row[i] for row in rows] for i in range(2))
    chart = Chart(text, [Line(text, x, y), Line("b", x, y, color=9, dash=7)], text, "y", log_x=log_x, log_y=log_y)
    drawn = chart.svg("n")
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<title.*?</title>|<text.*?</text>", "", drawn))
    assert [style for style, _ in chart.legend] == ["solid var(--series-0)", "dotted var(--series-1)"]


@pytest.mark.parametrize(("log", "last", "points"), [(False, math.nan, 4), (True, math.inf, 2)])
def test_what_is_no_number_or_has_no_logarithm_is_left_out(log: bool, last: float, points: int) -> None:
    line = Line("a", [1.0, 2.0, -1.0, last, 3.0], [1.0, 0.0, 1.0, 1.0, 9.0])
    assert [len(one) for one in lines(Chart("T", [line], "x", "y", log, log).svg("n"))] == [points]


def test_a_dense_line_keeps_its_ends_and_its_shape() -> None:
    xs = [i / 1000 for i in range(20_001)]
    drawn = Chart("T", [Line("a", xs, [math.sin(x) for x in xs])], "x", "y").svg("n")
    (points,) = lines(drawn)
    assert len(points) < 2500
    assert points[-1][0] == pytest.approx(texts(drawn.split('text-anchor="end"')[0])[20.0][0], abs=0.02)
    assert max(math.dist(a, b) for a, b in pairwise(points)) < 3.0


def test_no_label_is_longer_than_a_chart_has_room_for() -> None:
    text = "1" * 50_000
    chart = Chart("T", (Line(text, (0.0, 1.0), (0.0, 1.0)), Line("b", (0.0, 1.0), (1.0, 0.0))), text, text)
    for written in (chart.svg("n"), chart.legend[0][1]):
        assert 100 < max(map(len, re.findall("1+", written))) <= 200


def in_words(upper: str, attack: float | None) -> Bounds:
    attacked = "" if attack is None else f"attack shows at least {attack:g}"
    return Bounds(attacked, upper, "at least 1", attack, "no bound", contradiction=False)


@pytest.mark.parametrize(
    ("lower", "upper", "claimed", "attack"),
    [
        (0.5, 2.0, 3.0, 0.25),
        (None, 2.0, 3.0, None),
        (0.01, 50.0, 3.0, 0.01),
        (1.0, 4.0, 3.0, 2.0),
    ],
)
def test_intervals_keep_the_order_of_the_numbers_and_show_each(lower, upper, claimed, attack):
    drawn = interval_chart(factory.verdict(lower=lower, upper=upper, claimed=claimed), in_words("at most 2", attack))
    places = [float(x) + 1.5 for x in re.findall(r'<rect x="([0-9.]+)" y="10"', drawn)]
    (line,) = map(float, re.findall(r"M ([0-9.]+) 4 V", drawn))
    circles = list(map(float, re.findall(r'cx="([0-9.]+)"', drawn)))
    values = [
        value for value in (None if attack == lower else lower, upper) if value is not None and math.isfinite(value)
    ]
    ordered = [
        *zip(values, places, strict=True),
        (claimed, line),
        *zip([attack] if attack else [], circles, strict=True),
    ]
    assert sorted(ordered) == sorted(ordered, key=lambda pair: pair[1])
    assert ">at most 2; at least 1</li>" in drawn
    assert "claimed 3" in drawn
    assert ("attack shows at least" in drawn) == (attack is not None)
    assert ("logarithmic" in drawn) == (lower == 0.01)
    assert drawn.count("<i class=") == 2 + (attack is not None)  # a key for each mark
    sizes = [float(size) for size in re.findall(r'font-size="([0-9.]+)"', drawn)]
    assert min(sizes) * 320 / 400 >= 12.0  # on a page of 400 pixels, of which the drawing has at least 320


def test_an_empty_interval_has_the_color_of_a_contradiction() -> None:
    crossed = dataclasses.replace(in_words("x", None), contradiction=True)
    assert "var(--bad)" in interval_chart(factory.verdict(lower=4.0, upper=2.0, claimed=3.0), crossed)
    assert interval_chart(factory.verdict(lower=None, upper=None, claimed=3.0), in_words("", None)) == ""
    assert interval_chart(factory.verdict(lower=None, upper=0.0, claimed=None), in_words("x", None)) == ""


@pytest.mark.parametrize("identified", [0, 1, 26, 100])
def test_each_person_is_drawn_once(identified: int) -> None:
    drawn = people(identified, 1)
    heads = {
        color: sum(1 + int(length) // 15 for length in re.findall(r"h(\d+)\.1", path))
        for path, color in re.findall(r'd="([^"]+)" stroke="([^"]+)" stroke-width="6.4"', drawn)
    }
    shown = max(identified, 1)
    expected = {"var(--quiet)": 1, "var(--bad)": shown - 1, "var(--line)": 100 - shown}
    assert heads == {color: number for color, number in expected.items() if number}
    assert f"{shown} of 100 people identified at most, 1 by guessing" in drawn
