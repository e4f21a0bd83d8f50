"""The mutants of a small module, and the tests that they meet; by hand: ``python tests/campaigns/mutants.py``."""

import ast
import json
from pathlib import Path

import pytest
from campaigns import mutants

SOURCE = '''\
"""Text."""
LIMIT: Final = 3


def bound(x: float, strict: bool = True) -> "int | None":
    if x < LIMIT and not strict:
        return (
            x
            + 1.5
        )
    return None if list(zip([x], [x], strict=True)) else 0
'''
SMALL = Path("dpspec/accounting/small.py")


def test_each_place_has_one_mutant_that_differs_there_alone() -> None:
    count = len(mutants.places(ast.parse(SOURCE)))
    drawn = [mutants.mutate(SOURCE, SMALL, number) for number in range(count)]
    assert sorted(mutant.change for mutant in drawn) == [
        "0 -> 1",
        "1.5 -> 1.7500000000000002",
        "3 -> 4",
        "True -> False",
        "x + 1.5 -> x - 1.5",
        "x < LIMIT -> x <= LIMIT",
        "x < LIMIT and (not strict) -> x < LIMIT or not strict",
    ]
    original = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in drawn:
        changed = [line for line, old in zip(mutant.source.splitlines(), original, strict=True) if line != old]
        assert len(changed) == 1


def test_a_statement_has_the_tests_that_execute_one_of_its_lines() -> None:
    executed = {"2": [], "5": [], "6": ["tests/a.py"], "8": ["tests/b.py"], "11": ["tests/c.py"]}
    assert mutants.executing(SOURCE, 6, executed) == {"tests/a.py"}
    assert mutants.executing(SOURCE, 9, executed) == {"tests/b.py"}
    assert mutants.executing(SOURCE, 11, executed) == {"tests/c.py"}
    for imported in (2, 5):  # concerns all that execute a function of the module
        assert mutants.executing(SOURCE, imported, executed) == {"tests/a.py", "tests/b.py", "tests/c.py"}


def test_own_files_run_first_and_then_cheap_ones_that_execute_the_line(tmp_path: Path) -> None:
    for name in ("dpspec/accounting/small.py", "tests/accounting/test_small_sums.py", "tests/accounting/test_other.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SOURCE, encoding="utf-8")
    lines = {SMALL.as_posix(): {"6": ["tests/engine/test_dear.py", "tests/stats/test_cheap.py"]}}
    executed = mutants.ExecutedLines(lines, {"tests/engine/test_dear.py": 9.0, "tests/stats/test_cheap.py": 1.0}, [])
    mutant = next(mutants.mutate(SOURCE, SMALL, number) for number in range(7) if _is_of_line_6(number))
    assert mutants.order_of_tests(mutant, executed, tmp_path) == [
        ["tests/accounting/test_small_sums.py"],
        ["tests/stats/test_cheap.py", "tests/engine/test_dear.py"],
        ["tests/accounting/test_other.py"],
    ]


def _is_of_line_6(number: int) -> bool:
    return mutants.mutate(SOURCE, SMALL, number).line == 6


def test_a_second_run_tests_what_has_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pretended:
        """Kills mutants of the number 3 by default and nothing more with --ci."""

        def __init__(self, folder: Path) -> None:
            pass

        def note_lines(self) -> mutants.ExecutedLines:
            return mutants.ExecutedLines({}, {}, [])

        def killer(self, mutant: mutants.Mutant, executed: mutants.ExecutedLines, *, ci: bool) -> str | None:
            tested.append((str(mutant), ci))
            return "a test" if "3 -> 4" in mutant.change else None

    tested: list[tuple[str, bool]] = []
    monkeypatch.setattr(mutants, "Copy", Pretended)
    drawn = [mutants.mutate(SOURCE, SMALL, number) for number in range(7)]
    results = tmp_path / "results"
    first = mutants.run(drawn[:4], results, ci=False)
    assert len(tested) == 4
    every = mutants.run(drawn, results, ci=True)
    survivors = {str(mutant) for mutant in drawn if "3 -> 4" not in mutant.change}
    assert sorted(tested) == sorted(
        [*((str(mutant), False) for mutant in drawn), *((name, True) for name in survivors)]
    )
    assert first.items() < every.items()
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert {(row["mutant"], row["ci"]): row["killer"] for row in rows} == every


@pytest.mark.ci
def test_drawn_mutants_are_repeatable_and_have_tests() -> None:
    first, longer = (mutants.draw(("stats", "recording"), count, seed=3) for count in (5, 7))
    assert first == longer[:5]
    assert all((mutants.ROOT / mutants.folder_of(mutant.path)).is_dir() for mutant in first)
    assert mutants.folder_of(Path("plugins/dpspec_recording/judge/check.py")) == "tests/plugins/recording"
