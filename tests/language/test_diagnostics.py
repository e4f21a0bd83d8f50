import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpspec
from dpspec.contract import Diagnostic, Span
from dpspec.language.diagnostics import CODES, WIDTH, render


def diagnostic(line: int = 1, column: int = 1, end: int = 2, **more: object) -> Diagnostic:
    span = Span("f.yaml", line, column, line, end)
    return Diagnostic(code="unknown-key", message="a message", span=span, **more)  # type: ignore[arg-type]


def test_files_are_read_when_no_text_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_bytes(b"\xef\xbb\xbfkey: 1\r\nother: \xff\r\n")
    assert " 1 | key: 1\n   | ^^^\n" in render([diagnostic(1, 1, 4)])
    assert " 2 | other: \\xff\n" in render([diagnostic(2, 8, 9)])


def test_without_a_text_there_is_no_excerpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert render([diagnostic()]) == "f.yaml:1:1: error[unknown-key]: a message\n"
    Path("f.yaml").write_bytes(b"x" * 200_000)
    assert render([diagnostic()]) == "f.yaml:1:1: error[unknown-key]: a message\n"


def test_without_a_span_the_path_stands_first() -> None:
    shown = render([Diagnostic(code="bad-value", message="no", path=("claims", 0, "delta"), help="more")])
    assert shown == "claims[0].delta: error[bad-value]: no\n   = help: more\n"
    assert render([Diagnostic(code="bad-value", message="no")]).startswith("the spec: error")


@pytest.mark.parametrize("column", [1, 40, 150, 290])
def test_long_lines_show_a_window_around_the_fault(column: int) -> None:
    line = "".join(f"{i:04d}," for i in range(60))
    shown = render([diagnostic(1, column, column + 4)], sources={"f.yaml": line}).splitlines()
    assert all(len(part) <= WIDTH for part in shown[1:])
    start = shown[2].index("^")
    assert shown[1][start : start + 4] == line[column - 1 : column + 3]


def test_wide_and_combining_characters_keep_the_caret_in_place() -> None:
    shown = render([diagnostic(1, 4, 7)], sources={"f.yaml": "漢e\u0301abc"}).splitlines()
    assert shown[2] == "   |    ^^^"


def test_nothing_hostile_reaches_the_terminal() -> None:
    bad = "\x1b]0;title\x07"
    shown = render(
        [Diagnostic(code="x", message=bad, help=bad, path=(bad,), span=Span(bad, 1, 1, 1, 2))], sources={bad: bad}
    )
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_spans_beyond_the_text_do_no_harm() -> None:
    for span in (Span("f.yaml", 9, 1, 9, 2), Span("f.yaml", 1, 99, 1, 100), Span("f.yaml", 1, 2, 3, 1)):
        assert render([Diagnostic(code="x", message="m", span=span)], sources={"f.yaml": "abc"})


def test_colours_are_asked_for() -> None:
    assert "\x1b[" not in render([diagnostic()], sources={"f.yaml": "a"})
    shown = render([diagnostic(help="x")], color=True, sources={"f.yaml": "a"})
    assert "\x1b[31;1merror[unknown-key]\x1b[0m" in shown
    assert shown.count("\x1b[0m") * 2 == shown.count("\x1b[")


#: Functions of ours that take a code as their argument of this position.
TAKING_CODES = {"tell": 0, "error_at": 0, "problem": 0}


def emitted() -> Iterator[tuple[str, str]]:
    folders = getattr(dpspec, "__path__")  # noqa: B009 - a namespace package has no attribute of that name for mypy
    for path in sorted(Path(folders[0]).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "Diagnostic" in source else ():
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = [k.value for k in node.keywords if k.arg == "code" and name == "Diagnostic"]
            if name in TAKING_CODES and "language" in path.parts and len(node.args) > TAKING_CODES[name]:
                values.append(node.args[TAKING_CODES[name]])
            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value, path.name


def test_every_code_that_is_emitted_is_explained() -> None:
    found = set(emitted())
    assert {code for code, _ in found} - set(CODES) == set()
    assert {"unknown-key", "syntax", "too-large", "wrong-type"} <= {code for code, _ in found}
