"""The page: whole in itself, harmless whatever names it shows; each edit of it is found."""

import dataclasses
import hashlib
import json
import math
import re
import zlib
from base64 import b64encode
from html.parser import HTMLParser

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support import audits
from support import results as factory

from dpspec.contract import FrozenMap
from dpspec.contract.results import Result
from dpspec.errors import ResultError
from dpspec.reporters import page as html
from dpspec.reporters import read_results
from dpspec.reporters.page import compared, generator
from dpspec.reporters.read_results import ELEMENT, extract, is_page
from dpspec.reporters.words import place
from dpspec.results.codec import dump, load
from dpspec.results.redact import redact


class Page(HTMLParser):
    """The elements of a page, in their order, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def plotted() -> Result:
    curve = factory.series(
        {"x": [1.0, 2.0, 4.0], "a": [1.0, None, 3.0], "b": [2.0, 3.0, math.pi]},
        {"x": "x", "y": ["a", "b"], "log": ["y"]},
        title="A curve",
        units=FrozenMap({"x": "records"}),
        source="Somebody 2020, Theorem 1",
    )
    document = FrozenMap({"claims": [{"id": "one", "epsilon": 3.0, "delta": 1e-6}], "description": "What it is"})
    verdicts = (factory.verdict(lower_finding=None),)
    return factory.result(
        factory.audit(series=(curve,), findings=(audits.bound(2.5, 1e-6),), document=document, verdicts=verdicts)
    )


def test_the_page_asks_nothing_of_any_server() -> None:
    page = Page(html.render(plotted()))
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form action")
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert attributes.get(name, "#").startswith("#"), (tag, name, attributes[name])
        assert not any(name.startswith("on") for name in attributes)
    policy = [a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0].startswith("default-src 'none'")
    (script,) = re.findall(r"<script>(.*?)</script>", html.render(plotted()), re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy[0], "a browser runs that script and no other"
    assert not re.search(r"url\((?!#)|@import", html.render(plotted()))


def test_every_figure_has_a_title_and_a_table() -> None:
    page = html.render(plotted())
    assert page.count("<svg") == page.count('role="img" aria-label')
    assert page.count('role="img" aria-labelledby=') == 2
    assert page.count("<figure") == 2
    assert len(re.findall(r"<details[^>]*><summary>Table", page)) == 2
    ids = re.findall(r'\bid="([^"]+)"', page.split('<script type="application/json"')[0])
    assert len(ids) == len(set(ids))


def test_each_next_step_names_who_acts() -> None:
    audit = plotted().audits[0]
    unfinished = html.render(factory.result(dataclasses.replace(audit, planned_trials=len(audit.trials) + 3)))
    screen = Page(unfinished.split('<section id="claims"')[0]).text
    assert "What is missing for the engineer" in screen
    assert "Run the same command again" in screen
    assert "What this does not cover for the privacy officer" in screen
    assert "What is missing" not in html.render(plotted())


def test_claims_as_expected_are_folded_and_others_are_not() -> None:
    verdicts = (factory.verdict("good"), factory.verdict("bad", verdict="open", expected=False))
    page = html.render(factory.result(factory.audit(verdicts=verdicts)))
    (folded,) = re.findall(r"<details><summary>1 claim as expected: reasons.*?</details>", page, re.DOTALL)
    sections = re.findall(r'<section class="claim" id="a0-c(\d)">.*?<code>(\w+)</code>', page, re.DOTALL)
    assert sections == [("0", "bad"), ("1", "good")]  # the failed one first, with the targets of the table's links
    assert 'id="a0-c1"' in folded
    assert 'id="a0-c0"' not in folded
    assert all(f'href="#a0-c{number}"' in page for number in range(2))


def test_what_is_data_dependent_stays_out_of_the_page() -> None:
    audit = plotted().audits[0]
    secret = dataclasses.replace(audit.findings[0], quantity="accuracy", value=0.123456, privacy="data-dependent")
    result = factory.result(dataclasses.replace(audit, findings=(*audit.findings, secret)))
    page = html.render(result)
    assert "0.123456" not in page
    assert "1 data-dependent" in Page(page).text
    assert load(extract(page)) == load(dump(redact(result)))
    internal = html.render(result, internal=True)
    assert "0.123456" in internal
    assert "Do not publish it" in Page(internal).text


@settings(phases=(Phase.explicit, Phase.generate))
@given(text=st.text(max_size=30))
def test_no_name_becomes_markup(text: str) -> None:
    for hostile in (text, f"</script><img src=x onerror=alert(1)>{text}", f"'\"><svg onload=1>{text}<!--", f"${text}$"):
        verdict = factory.verdict(claim=hostile, text=hostile, reason=hostile)
        columns, plot = {"x": [1.0, 2.0], hostile + "y": [1.0, 2.0]}, {"x": "x", "y": [hostile + "y"]}
        series = factory.series(columns, plot, title=hostile, source=hostile)
        result = factory.result(factory.audit(hostile, verdicts=(verdict,), series=(series,)))
        text_of = html.render(result)
        page = Page(text_of)
        assert [tag for tag, _ in page.elements].count("script") == 2
        assert not any(tag == "img" or any(n.startswith("on") for n in a) for tag, a in page.elements)
        assert json.loads(extract(text_of))["audits"][0]["name"] == hostile


@pytest.mark.parametrize("text", ["<!doctype html><p>nothing", '<html><script type="application/json">{}</script>'])
def test_a_page_without_a_result_is_said_to_be_one(text: str) -> None:
    assert is_page(text)
    with pytest.raises(ResultError, match="contains 0"):
        extract(text)


def test_a_page_of_beginnings_without_an_end_is_read_once() -> None:
    """A search from each beginning to the end of the page would take minutes for a page of a megabyte."""
    begin = page_with("").partition("</script>")[0]
    with pytest.raises(ResultError, match="contains 20000"):
        extract(begin * 20_000)
    with pytest.raises(ResultError, match="contains one without an end"):
        extract(begin)
    with pytest.raises(ResultError, match="contains 2"):
        extract(page_with("{}") * 2)
    assert extract(page_with("{}")) == "{}"


def test_a_large_result_is_compressed_and_compared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_page = html.render(result())
    monkeypatch.setattr(read_results, "_LARGE", 100)
    page = html.render(result())
    assert len(page) < len(plain_page)
    assert json.loads(extract(page)) == json.loads(extract(plain_page))
    assert compared(page, load(extract(page))) == ("", "")
    # Another library compresses to other bytes.
    start = page.index('id="dpspec-result">') + len('id="dpspec-result">')
    end = page.index("</script>", start)
    other = b64encode(zlib.compress(extract(page).encode(), 1)).decode()
    again = page[:start] + other + page[end:]
    assert compared(again, load(extract(again))) == ("", "")
    assert compared(again.replace("A table", "A tabel"), load(extract(again)))[0]
    for content, message in (("%%", "cannot be decompressed"), (other[: len(other) // 8 * 4], "is damaged")):
        with pytest.raises(ResultError, match=message):
            extract(page[:start] + content + page[end:])
    bomb = b64encode(zlib.compress(b"0" * 5000)).decode()
    monkeypatch.setattr("dpspec.results.codec.MAX_BYTES", 4000)
    with pytest.raises(ResultError, match="more than 4000 bytes"):
        extract(page[:start] + bomb + page[end:])


def page_with(text: str) -> str:
    return f'<!doctype html><script type="application/json" id="{ELEMENT}">{text}</script>'


def result() -> Result:
    table = factory.series({"k": [1, 2], "epsilon": [2.5, 7.25]}, name="t", title="A table")
    return factory.result(factory.audit(series=(table,)))


def edit_of(page: str) -> str:
    return compared(page, load(extract(page)))[0]


@pytest.mark.parametrize("internal", [True, False])
def test_a_page_as_it_was_written_is_as_it_should_be(internal: bool) -> None:
    page = html.render(result(), internal=internal)
    assert compared(page, load(extract(page))) == ("", "")


def test_a_page_of_another_version_is_not_compared_and_said_so() -> None:
    page = html.render(result())
    for other in (page.replace(generator(), "dpspec 0.0.1"), page.replace('name="generator"', 'name="g"')):
        edit, reason = compared(other, result())
        assert edit == ""
        assert reason.startswith("rendered by ")
    twice = page.replace("<head>", f'<head><meta name="generator" content="{generator()}">')
    assert compared(twice, result())[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("</style>", '.verdict.open{font-size:0}.verdict.open::after{content:"proved";font-size:1rem}</style>'),
        ('<span class="verdict proved">', '<span class="verdict proved" hidden>'),
        ("<body>", "<body><!-- nothing -->"),
        ("</body>", "<script>1</script></body>"),
        ('"confidence":0.95', '"confidence":0.950'),
        ('aria-label="epsilon: ', 'aria-label="mu: '),
    ],
)
def test_nothing_in_a_page_is_harmless(old: str, new: str) -> None:
    """Styles, scripts, attributes and comments make what a browser shows as much as text does."""
    page = html.render(result())
    assert old in page
    edit, reason = compared(page.replace(old, new, 1), load(extract(page)))
    assert edit
    assert reason == ""


def test_a_drawing_is_that_of_its_series() -> None:
    columns, plot = {"k": [1, 2], "epsilon": [2.5, 7.25]}, {"x": "k", "y": ["epsilon"]}
    drawn = factory.series(columns, plot, name="t", title="A figure")
    page = html.render(factory.result(factory.audit(series=(drawn,))))
    assert edit_of(page) == ""
    assert edit_of(page.replace('stroke-width="1.6"', 'stroke-width="9"'))
    # Under any other name it would be what the page or another figure calls so first.
    assert edit_of(page.replace("a0-f0-title", "claims"))
    assert edit_of(page.replace("a0-f0-title", "a0-f0-title2"))
    shown, due = edit_of(page.replace(">7.25<", ">1.25<")).split("\n")[1:]
    assert ">1.25<" in shown
    assert ">7.25<" in due


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("findings[0].value", "demo: findings[0].value (epsilon <= 2.5, delta 1e-6, group size 1, pld)"),
        ("checks[0].p_value", "demo: checks[0].p_value (noise-scale, chi-square)"),
        ("series[0].columns.x[1]", "demo: series[0].columns.x[1] (A table)"),
        ("evidence[0].statistics.correct", "demo: evidence[0].statistics.correct (e, m)"),
        ("power[0].epsilon", "demo: power[0].epsilon (delta 1e-6, one-run)"),
    ],
)
def test_places_are_named(what: str, said: str) -> None:
    (audit,) = result().audits
    assert place("demo", what, getattr(audit, what.partition("[")[0])[0]) == said
    assert place("", "notes", None) == "notes"
    assert place("gone", "findings[0].value", None) == "gone: findings[0].value"
