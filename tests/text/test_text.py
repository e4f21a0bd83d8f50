"""Foreign text can neither move the cursor, reorder a line, become markup, nor command a CI runner."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dpspec.text import clipped, closest, did_you_mean, joined, markdown, number, plain, shown, visible


@given(st.text())
def test_plain_is_one_visible_line(text):
    seen = plain(text)
    assert len(seen.splitlines()) <= 1
    assert all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for c in seen)
    assert "::" not in seen
    assert "##[" not in seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb", "a\\u202eb"),
        ("two\r\nlines", "two lines"),
        ("\udc80", "\\udc80"),
        ("\U000e0041", "\\U000e0041"),
        (":::error:::", ": : :error: : :"),
        ("##[group]", "## [group]"),
    ],
)
def test_what_hides_is_written_out(text, seen):
    assert plain(text) == seen


@given(st.text(alphabet="<>|`*_[]!#\\&@~:a \n"))
def test_markdown_leaves_no_markup(text):
    rest = re.sub(r"\\[\[\]]|(?<= )(?:[<>]=?|[~&])(?= )|(?<=\w)_(?=\w)", "", markdown(text))
    for entity in {f"&#{ord(c)};" for c in rest} | {f"&#{n};" for n in range(33, 127)}:
        rest = rest.replace(entity, "")
    assert not set(rest) & set("<>|`*_[]!#\\&@~")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("epsilon <= 3 and mu >= 1, a < b > c ~ d & e", "epsilon <= 3 and mu >= 1, a < b > c ~ d & e"),
        ("group_size 8", "group_size 8"),
        ("[2.348, 2.349]", r"\[2.348, 2.349\]"),
        (">= 3", "&#62;= 3"),
        (
            "<b> &amp; _x_ __y__ ~~z~~",
            "&#60;b&#62; &#38;amp; &#95;x&#95; &#95;&#95;y&#95;&#95; &#126;&#126;z&#126;&#126;",
        ),
        (r"\[x](y)", r"&#92;\[x\](y)"),
    ],
)
def test_what_reads_as_it_is_stays(text, seen):
    assert markdown(text) == seen


@given(st.text(alphabet="<>|`*_[]()!#\\&@~:;=-+.?\"'1a \n") | st.text())
def test_a_reader_of_markdown_sees_the_text_and_nothing_else(text):
    """By another program's rules: CommonMark with the tables and strikethroughs of GitHub."""
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    shown = markdown(text)
    kinds = [token.type for token in reader.parse(shown)]
    assert kinds == (["paragraph_open", "inline", "paragraph_close"] if shown else [])
    children = [child for token in reader.parse(shown) for child in token.children or ()]
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == plain(text).strip()
    cells = [token for token in reader.parse(f"|a|b|\n|---|---|\n|{shown}|x|\n") if token.type == "td_open"]
    assert len(cells) == 2


KEYS = ["kind", "clip_norm", "noise_multiplier", "noise_on", "sampling", "steps", "phases"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("nosie", "noise_multiplier"),
        ("noise-multiplier", "noise_multiplier"),
        ("Noise_Multiplier", "noise_multiplier"),
        ("clip", "clip_norm"),
        ("smapling", "sampling"),
        ("noise_onn", "noise_on"),
        ("colour", None),
        ("", None),
    ],
)
def test_what_was_meant(word: str, meant: str | None) -> None:
    assert closest(word, KEYS) == meant


def test_only_close_words_are_suggested() -> None:
    assert closest("resnet18", ["resnet20", "wide-resnet-16-4", "lenet5"]) == "resnet20"
    assert closest("foo", ["isotropic-floor", "form"]) is None
    assert closest("a" * 100_000, KEYS) is None
    assert closest("--fast", ["--set", "--store"]) is None
    assert closest("dp", ["gdp", "approx-dp"]) == "approx-dp"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-6, "1e-6"), (1e-12, "1e-12"), (1e22, "1e22"), (0.5, "0.5"), (3, "3"), (1e100, "1e100"), (10, "10")],
)
def test_numbers_as_one_writes_them(value: float, text: str) -> None:
    assert number(value) == text
    assert float(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (2, "2"), ("x", '"x"'), ([1], "a list"), ({}, "a map"), ((1,), "a list")],
)
def test_values_in_messages(value: object, text: str) -> None:
    assert shown(value) == text


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert visible("a\x1b[31mb\u202ec\nd") == "a\\x1b[31mb\\u202ec\\nd"
    assert visible("naïve 漢字") == "naïve 漢字"
    assert len(clipped("x" * 1000)) == 40


def test_a_suggestion_ends_a_message() -> None:
    assert did_you_mean("steps") == "; did you mean 'steps'?"
    assert did_you_mean(None) == ""


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_in_a_sentence(words: list[str], text: str) -> None:
    assert joined(words) == text
