"""Foreign text can neither move the cursor, reorder a line, become markup, nor command a CI runner."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.text import markdown, plain


@given(st.text())
def test_plain_is_one_visible_line(text):
    seen = plain(text)
    assert len(seen.splitlines()) <= 1
    assert all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for c in seen)
    assert "::" not in seen
    assert "##[" not in seen


@given(st.text(alphabet="abc déß漢🙂,.", max_size=20))
def test_ordinary_text_stays(text):
    assert plain(text) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb", "a\\u202eb"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
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
    rest = markdown(text)
    for entity in {f"&#{ord(c)};" for c in rest} | {f"&#{n};" for n in range(33, 127)}:
        rest = rest.replace(entity, "")
    assert not set(rest) & set("<>|`*_[]!#\\&@~")


def test_an_address_is_no_link():
    assert "://" not in markdown("see https://example.org")
