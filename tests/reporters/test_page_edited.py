"""A page whose text was changed by hand no longer shows what its result says, and the place is named."""

from __future__ import annotations

import dataclasses

import pytest
from support import results as factory

from dpspec.contract import FrozenMap
from dpspec.engine.results.codec import load
from dpspec.engine.results.result import Result
from dpspec.reporters import page as html
from dpspec.reporters.page import compared, generator
from dpspec.reporters.phrases import place
from dpspec.reporters.read_results import extract


def result() -> Result:
    table = factory.series({"k": [1, 2], "epsilon": [2.5, 7.25]}, name="t", title="A table")
    return factory.result(factory.audit(series=(table,)))


def told(page: str) -> list[tuple[str, str, str]]:
    return [(one.under, one.shown, one.expected) for one in compared(page, load(extract(page)))[0]]


@pytest.mark.parametrize("internal", [True, False])
def test_a_page_as_it_was_written_is_as_it_should_be(internal: bool) -> None:
    page = html.render(result(), internal=internal)
    assert compared(page, load(extract(page))) == ([], "")


def test_an_edited_number_is_named_with_its_place() -> None:
    page = html.render(result())
    assert page.count(">7.25<") == 1
    assert told(page.replace(">7.25<", ">1.25<")) == [("A table", "1.25", "7.25")]


def test_a_page_of_another_version_is_not_compared_and_said_so() -> None:
    page = html.render(result())
    for other in (page.replace(generator(), "dpspec 0.0.1"), page.replace('name="generator"', 'name="g"')):
        edits, reason = compared(other, result())
        assert edits == []
        assert reason.startswith("rendered by ")
    twice = page.replace("<head>", f'<head><meta name="generator" content="{generator()}">')
    assert compared(twice, result())[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("</style>", '.verdict.open{font-size:0}.verdict.open::after{content:"proved";font-size:1rem}</style>'),
        ('<span class="verdict proved">', '<span class="verdict proved" hidden>'),
        ('<span class="verdict proved">', '<svg><text>refuted</text></svg><span class="verdict proved">'),
        ("<body>", "<body><!-- nothing -->"),
        ("</body>", "<script>1</script></body>"),
        ('name="robots"', 'name="robot"'),
        ('class="tally"', 'class="hidden"'),
        ('"confidence": 0.95', '"confidence": 0.950'),
        ('style="left:', 'style="left:9'),
        ('aria-label="epsilon in', 'aria-label="mu in'),
        ("<h2 id=", "<p>All is well.</p><h2 id="),
        ("<li>No number here covers", "<li hidden>Nothing"),
    ],
)
def test_nothing_in_a_page_is_harmless(old: str, new: str) -> None:
    """Styles, scripts, attributes and comments make what a browser shows as much as text does."""
    page = html.render(result())
    assert old in page
    edits, reason = compared(page.replace(old, new, 1), load(extract(page)))
    assert edits
    assert reason == ""


def test_a_drawing_is_that_of_its_series() -> None:
    columns, plot = {"k": [1, 2], "epsilon": [2.5, 7.25]}, {"x": "k", "y": ["epsilon"]}
    drawn = factory.series(columns, plot, name="t", title="A figure")
    page = html.render(factory.result(factory.audit(series=(drawn,))))
    assert told(page) == []
    assert told(page.replace('stroke-width="1.6"', 'stroke-width="9"'))
    # What only rounding moves is the same drawing.
    assert told(page.replace('stroke-width="1.6"', 'stroke-width="1.601"')) == []
    # Under any other name it would be what the page or another figure calls so first.
    assert told(page.replace("a0-f0-title", "claims"))
    assert told(page.replace("a0-f0-title", "a0-f0-title2"))
    edits = told(page.replace(">7.25<", ">1.25<"))
    assert edits == [("A figure", "1.25", "7.25")]


def test_very_different_pages_are_told_apart_at_once() -> None:
    rows = {"n": list(range(400)), **{f"c{i}": [float(i)] * 400 for i in range(8)}}
    series = factory.series(rows)
    changed = dataclasses.replace(series, columns=FrozenMap({**rows, "n": [n + 9.5 for n in range(400)]}))
    page = html.render(factory.result(factory.audit(series=(changed,))))
    assert compared(page, factory.result(factory.audit(series=(series,))))[0]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("findings[0].value", "demo: findings[0].value (epsilon <= 2.5, delta 1e-6, group_size 1, pld)"),
        ("verdicts[0].upper", "demo: verdicts[0].upper (claim one)"),
        ("checks[0].p_value", "demo: checks[0].p_value (noise-scale, chi-square)"),
        ("series[0].columns.x[1]", "demo: series[0].columns.x[1] (A table)"),
        ("evidence[0].statistics.correct", "demo: evidence[0].statistics.correct (e)"),
        ("power[0].epsilon", "demo: power[0].epsilon (one-run, delta 1e-6)"),
        ("findings[99].value", "demo: findings[99].value"),
        ("digest", "demo: digest"),
    ],
)
def test_places_are_named(what: str, said: str) -> None:
    assert place(result(), "demo", what) == said
    assert place(result(), "", "notes") == "notes"
    assert place(result(), "gone", "findings[0].value") == "gone: findings[0].value"
