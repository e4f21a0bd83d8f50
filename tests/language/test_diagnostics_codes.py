from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpspec
from dpspec.language.diagnostics import CODES, explain
from dpspec.language.validate import PLUGIN_CODES

#: Functions of ours that take a code as their argument of this position.
TAKING_CODES = {"tell": 0, "error_at": 0, "problem": 0}


def emitted() -> Iterator[tuple[str, str]]:
    """Every code that dpspec's own source passes to a diagnostic, with its file."""
    folders = getattr(dpspec, "__path__")  # noqa: B009 - a namespace package has no attribute of that name for mypy
    for path in sorted(Path(folders[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


def test_every_code_of_the_language_is_emitted() -> None:
    of_the_language = {name for name, code in CODES.items() if code.stage in ("spec", "environment")}
    by_plugins = {"missing-capability"}
    assert of_the_language - {code for code, _ in emitted()} - by_plugins == set()


@pytest.mark.parametrize("name", CODES)
def test_explanations_are_whole(name: str) -> None:
    code = CODES[name]
    assert code.name == name
    assert code.summary[0].islower() or code.summary.startswith("YAML")
    assert code.meaning.endswith(".")
    assert code.fix.endswith(".")
    text = explain(name)
    assert text.startswith(f"{name}: ")
    assert code.example.splitlines()[0] in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_plugin_codes_are_codes() -> None:
    assert set(CODES) >= PLUGIN_CODES
