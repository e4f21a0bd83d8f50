"""Prose has a budget per file of constructions that make a reader read twice. Budgets may only fall."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import plain_english


def test_no_file_exceeds_its_budget() -> None:
    budget = json.loads(plain_english.BUDGET.read_text(encoding="utf-8"))
    above = {name: (count, budget.get(name, 0)) for name, count in plain_english.counts().items()}
    above = {name: pair for name, pair in above.items() if pair[0] > pair[1]}
    advice = "python tests/support/plain_english.py FILE lists the hits with advice"
    assert not above, f"(hits, budget) of {above}; {advice}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The number of records.", 0),
        ("How many records there are, and what is told of them.", 4),
        ("`what is` in code does not count", 0),
    ],
)
def test_prose_counts_and_code_does_not(text: str, found: int, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert len(plain_english.hits(page)) == found


def test_docstrings_comments_and_messages_count(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""What is told of it here."""\n\nx = 1  # so many\ny = "nobody says what it is"\n', encoding="utf-8"
    )
    assert sorted(text.lower() for _, text, _ in plain_english.hits(module)) == [
        *("nobody", "so many", "told", "what is", "what it")
    ]
