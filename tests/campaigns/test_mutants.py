"""The mutants of a small module; by hand: ``python tests/campaigns/mutants.py``."""

import ast
from pathlib import Path

import pytest
from campaigns import mutants

SOURCE = '''\
"""Text."""
LIMIT: Final = 3


def bound(x: float, strict: bool = True) -> "int | None":
    return x + 1.5 if x < LIMIT and not strict else None
'''


def test_each_place_has_one_mutant_that_differs_there_alone() -> None:
    count = len(mutants.places(ast.parse(SOURCE)))
    found = [mutants.mutate(SOURCE, Path("dpspec/accounting/small.py"), number) for number in range(count)]
    assert sorted(one.change for one in found) == [
        "1.5 -> 1.7500000000000002",
        "3 -> 4",
        "True -> False",
        "x + 1.5 -> x - 1.5",
        "x < LIMIT -> x <= LIMIT",
        "x < LIMIT and (not strict) -> x < LIMIT or not strict",
    ]
    original = ast.unparse(ast.parse(SOURCE)).splitlines()
    for one in found:
        changed = [line for line, old in zip(one.source.splitlines(), original, strict=True) if line != old]
        assert len(changed) == 1


@pytest.mark.ci
def test_drawn_mutants_are_repeatable_and_have_tests() -> None:
    first, second = (list(mutants.draw(("stats", "engine"), 5, seed=3)) for _ in range(2))
    assert first == second
    assert all((mutants.ROOT / mutants.tests_of(one.path)).is_dir() for one in first)
    assert mutants.tests_of(Path("dpspec/engine/recorded/check.py")) == "tests/recording"
