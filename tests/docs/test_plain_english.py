"""Prose has a budget per file of constructions that make a reader read twice. Budgets may only fall."""

from __future__ import annotations

import json

from support import plain_english


def test_no_file_exceeds_its_budget() -> None:
    budget = json.loads(plain_english.BUDGET.read_text(encoding="utf-8"))
    above = {name: (count, budget.get(name, 0)) for name, count in plain_english.counts().items()}
    above = {name: pair for name, pair in above.items() if pair[0] > pair[1]}
    advice = "python tests/support/plain_english.py FILE lists the hits with advice"
    assert not above, f"(hits, budget) of {above}; {advice}"
