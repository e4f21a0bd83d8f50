from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def _pages() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


@pytest.mark.parametrize("name", ["spec.md", "diagnostics.md", "exit-codes.md"])
def test_generated_pages_say_what_the_code_says(name: str) -> None:
    committed = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert committed == _pages()[name], "run: python docs/generate.py"
