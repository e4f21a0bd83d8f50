import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.contract import Span
from dpspec.language import yaml_source
from dpspec.language.yaml_source import (
    MAX_DEPTH,
    NOT_FINITE,
    Source,
    origin,
    plain,
    read_file,
    read_scalar,
    read_yaml,
    to_yaml,
)


def read(text: str) -> Source:
    return read_yaml(text, "f.yaml")


def codes(source: Source) -> list[str]:
    return [d.code for d in source.diagnostics]


def value(text: str) -> object:
    source = read(text)
    assert source.root is not None
    assert source.diagnostics == ()
    return plain(source.root)


def test_quotes_make_text_and_anchors_repeat_values() -> None:
    assert value("a: '1'\nb: \"true\"\nc: |\n  2\nd: null") == {"a": "1", "b": "true", "c": "2\n", "d": None}
    assert value('"1": x\n"true": y\n<<: {a: 1}') == {"1": "x", "true": "y", "<<": {"a": 1}}
    assert value("a: &x [1, 2]\nb: *x") == {"a": [1, 2], "b": [1, 2]}


def test_spans_of_values_and_keys() -> None:
    source = read('a: 1.5\nlong_key:\n  - x\n  - "two words"\n')
    assert source.root is not None
    spans = origin(source.root)
    assert spans[("a",)] == Span("f.yaml", 1, 4, 1, 7)
    assert spans.keys_at[("a",)] == Span("f.yaml", 1, 1, 1, 2)
    assert spans.keys_at[("long_key",)] == Span("f.yaml", 2, 1, 2, 9)
    assert spans[("long_key", 0)] == Span("f.yaml", 3, 5, 3, 6)
    assert spans[("long_key", 1)] == Span("f.yaml", 4, 5, 4, 16)
    assert ("long_key", 1) not in spans.keys_at


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("a: 1\na: 2", "duplicate-key", 2, 1),
        ("a: !!str 1", "tag", 1, 4),
        ("!thing {a: 1}", "tag", 1, 1),
        ("a: !!python/object:os.system [x]", "tag", 1, 4),
        ("!!python/name:os.system : 1", "bad-key", 1, 1),
        ("1: x", "bad-key", 1, 1),
        ("? [a]\n: x", "bad-key", 1, 3),
        ("? \n: x", "bad-key", 1, 2),
        ("a: &a [*a]", "alias-recursion", 1, 4),
        ("a: 1e999", "bad-number", 1, 4),
        ("a: [0, 99999999999999999999]", "bad-number", 1, 8),
        ('a: "\\0"', "bad-character", 1, 4),
        ('a: "\\uD800"', "bad-character", 1, 4),
        ('a: "\\UFFFFFFFF"', "bad-character", 1, 7),
        ('"\\e": 1', "bad-character", 1, 1),
        ("a: 1\n# \u2028", "bad-character", 2, 3),
        ("a: 1\n---\nb: 2", "several-documents", 2, 1),
        ("", "empty-file", 1, 1),
        ("~", "empty-file", 1, 1),
        ("a: [1, 2\nb: 3", "syntax", 1, 4),
        ("a:\n\tb: 1", "syntax", 2, 1),
        ("a: b: c", "syntax", 1, 5),
        ("a: 'x\nb: 1\n", "syntax", 1, 4),
        ("a: 1\nb 2\nc: 3\n", "syntax", 2, 1),
        ("a: @x", "syntax", 1, 4),
    ],
)
def test_refused(text: str, code: str, line: int, column: int) -> None:
    source = read(text)
    assert codes(source) == [code]
    span = source.diagnostics[0].span
    assert span is not None
    assert (span.line, span.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "message", "help"),
    [
        ("a: [1, 2\nb: 3", "this bracket is not closed before line 2", None),
        ('a: 1\nb: "x\nc: 2', "this quote is not closed", None),
        ("a: 1\nb=2\nc: 3\n", "no ': ' follows this key on its line", None),
        ("a:\n\tb: 1", "found character '\\t'", "replace tabs by spaces"),
        ("a: 1\n   b: 2", "mapping values are not allowed here", "indent the keys of a map equally"),
    ],
)
def test_what_to_change_in_a_file_that_is_not_yaml(text: str, message: str, help: str | None) -> None:
    (diagnostic,) = read(text).diagnostics
    assert message in diagnostic.message
    assert (diagnostic.help or "").startswith(help or "")


def test_all_faults_of_a_file_at_once() -> None:
    source = read("a: !!int 1\nb: 1e999\nb: 2\n3: 4\n")
    assert codes(source) == ["tag", "bad-number", "duplicate-key", "bad-key"]
    assert source.diagnostics[2].help == "the first is on line 2; keep one"
    assert source.unparsed == {("a",), ("b",)}


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
DEEP_ALIASES = "".join(
    f"- &a{i} {'[' * 50}{f'*a{i - 1}' if i else 'x'}{']' * 50}\n" for i in range(100)
)  # each level is shallow, all together are not
HOSTILE = {
    "alias bomb": (BOMB, "alias-bomb"),
    "aliases of aliases": (DEEP_ALIASES, "too-deep"),
    "lists": ("[" * 100_000, "too-deep"),
    "maps in lists": ("[{" * 60_000, "too-deep"),
    "dashes": ("- " * 60_000, "too-deep"),
    "question marks": ("? " * 60_000, "too-deep"),
    "many values": (f"[{'a,' * 60_000}]", "too-large"),
    "many keys": ("".join(f"k{i}: v\n" for i in range(12_000)), "too-large"),
    "one long word": ("a" * 130_000, None),
    "escapes": ('"' + "\\n" * 60_000 + '"', None),
    "colons": (":" * 130_000, None),
}


@pytest.mark.family
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_answered_soon(name: str) -> None:
    text, code = HOSTILE[name]
    start = time.process_time()
    found = codes(read(text))
    assert time.process_time() - start < 10  # it is the explosion that is excluded, not the last tenth of a second
    if code is not None:
        assert found == [code]


def test_the_limits_themselves_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_source, "MAX_EVENTS", 1000)
    assert codes(read("[" * MAX_DEPTH + "]" * MAX_DEPTH)) == []
    assert codes(read("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))) == ["too-deep"]
    around = 5  # the stream begins, document and list begin and end
    assert codes(read(f"[{'a,' * (1000 - around)}]")) == []
    assert codes(read(f"[{'a,' * (1000 - around + 1)}]")) == ["too-large"]


def test_a_file_of_fifty_megabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with open(path, "wb") as stream:
        stream.truncate(50 * 1024 * 1024)
    start = time.process_time()
    source = read_file(path)
    assert time.process_time() - start < 5
    assert codes(source) == ["too-large"]
    assert source.text is None


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="a file that hides its size")
def test_files_of_the_system_stay_unread(tmp_path: Path) -> None:
    """The environment of the process, with its secrets, must not end up in a message (``extends`` may name it)."""
    for path in (Path("/proc/self/environ"), tmp_path / "link.yaml"):
        if not path.exists():
            path.symlink_to("/proc/self/environ")
        source = read_file(path)
        assert codes(source) == ["unreadable"]
        assert source.text is None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert codes(read_file(tmp_path)) == ["unreadable"]
    assert codes(read_file(tmp_path / "absent.yaml")) == ["unreadable"]
    assert codes(read_file(tmp_path / "a\0b.yaml")) == ["unreadable"]
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    assert codes(read_file(pipe)) == ["unreadable"]


def test_encoding_is_told_at_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("a: 1\nb: né".encode("latin-1"))
    diagnostic = read_file(path).diagnostics[0]
    assert diagnostic.code == "encoding"
    assert diagnostic.span == Span(str(path), 2, 5, 2, 6)


def test_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    source = read_file(path)
    assert source.root is not None
    assert plain(source.root) == {"a": 1, "b": 2}
    assert origin(source.root)[("b",)] == Span(str(path), 2, 4, 2, 5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3),
        ("010", 10),
        ("0o17", 15),
        ("0xfF", 255),
        ("true", True),
        ("False", False),
        ("", None),
        ("~", None),
        ("Null", None),
    ],
)
def test_core_schema_values(text: str, value: object) -> None:
    read = read_scalar(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    ["no", "NO", "yes", "on", "off", "y", "1:30", "2020-01-01", "1_000", "0b1", "0o8", "nULL", "tRue", "1e", "e5", ".",
     "-", "+", "1.2.3", ".inf", ".nan", "-.INF", "١", "0x", "1 2"],
)  # fmt: skip
def test_text_stays_text(text: str) -> None:
    assert read_scalar(text) == text


@pytest.mark.parametrize("text", ["9" * 19, "1" + "0" * 5000, "-9223372036854775808", "0xffffffffffffffff", "1e999"])
def test_too_large(text: str) -> None:
    with pytest.raises(ValueError, match="too large"):
        read_scalar(text)


def test_limits_of_numbers() -> None:
    assert read_scalar("9223372036854775807") == 2**63 - 1
    with pytest.raises(ValueError, match="too small"):
        read_scalar("1e-400")
    assert read_scalar("0e-400") == 0.0
    assert math.copysign(1.0, read_scalar("-0.0")) == 1.0


@pytest.mark.parametrize("text", [".nan", "NaN", ".inf", "-.inf", "+Infinity", "inf"])
def test_not_finite(text: str) -> None:
    assert NOT_FINITE.fullmatch(text)
    assert not NOT_FINITE.fullmatch(f"{text}ormation")


TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="\ufeff\ufffe\uffff"), max_size=12
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False).map(lambda x: x + 0.0),
    TEXTS,
    st.sampled_from(
        ["no", "null", "1e-6", "1e5", "010", "0x1f", "~", "true", "-", "- a", "a: b", "#", "<<", ".5", "=", ""]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TEXTS.filter(lambda key: key != "<<"), inner, max_size=3)
    ),
    max_leaves=12,
)


def read_back(text: str) -> object:
    source = read_yaml(text, "shown.yaml")
    assert not source.diagnostics, source.diagnostics
    return plain(source.root)


@given(st.dictionaries(TEXTS.filter(lambda key: key != "<<"), VALUES, min_size=1, max_size=4))
def test_round_trip(document):
    assert repr(read_back(to_yaml(document))) == repr(document)
