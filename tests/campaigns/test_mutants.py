"""The mutants of a small module, and the tests that they meet; by hand: ``python tests/campaigns/mutants.py``."""

import ast
import inspect
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from campaigns import mutants

from dpspec import decimals

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
    executed = {2: {"import"}, 5: {"import"}, 6: {"a.py::one"}, 8: {"b.py::one"}, 11: {"c.py::one", "c.py::two"}}
    assert mutants.executing(SOURCE, 6, executed) == {"a.py::one"}
    assert mutants.executing(SOURCE, 9, executed) == {"b.py::one"}
    assert mutants.executing(SOURCE, 11, executed) == {"c.py::one", "c.py::two"}
    for imported in (2, 5):  # concerns all that execute a function of the module
        assert mutants.executing(SOURCE, imported, executed) == {"a.py::one", "b.py::one", "c.py::one", "c.py::two"}


def test_own_files_run_first_then_those_of_the_folder_and_cheap_ones() -> None:
    seconds = {
        "tests/accounting/test_small_sums.py::test_dear": 3.0,
        "tests/accounting/test_small_sums.py::test_cheap": 1.0,
        "tests/engine/test_dear.py::test_it": 9.0,
        "tests/stats/test_cheap.py::test_it": 1.0,
        "tests/accounting/test_other.py::test_it": 5.0,
        "tests/stats/test_small.py::test_it": 2.0,
    }
    groups = mutants.order_of_tests(_of_line_6(), seconds, seconds)
    assert groups == [
        ["tests/accounting/test_small_sums.py::test_cheap", "tests/accounting/test_small_sums.py::test_dear"],
        [
            "tests/accounting/test_other.py::test_it",
            "tests/stats/test_cheap.py::test_it",
            "tests/stats/test_small.py::test_it",
            "tests/engine/test_dear.py::test_it",
        ],
    ]
    assert mutants.affordable(groups, seconds, math.inf) == groups
    assert mutants.affordable(groups, seconds, 4.5) == [
        groups[0],
    ]
    assert mutants.affordable(groups, seconds, 2.0) == [groups[0][:1], ["tests/stats/test_cheap.py::test_it"]]


def _of_line_6() -> mutants.Mutant:
    return next(mutants.mutate(SOURCE, SMALL, number) for number in range(7) if _is_of_line_6(number))


def _is_of_line_6(number: int) -> bool:
    return mutants.mutate(SOURCE, SMALL, number).line == 6


def test_a_second_run_tests_what_has_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pretended:
        """Kills mutants of the number 3 by default and nothing more with --ci."""

        def __init__(self, folder: Path) -> None:
            pass

        def executed_lines(self, folder: Path, tests: str) -> None:
            assert folder == results.with_name("results.lines")

        def outcome(self, mutant: mutants.Mutant, executed: object, *, ci: bool, most: float) -> mutants.Outcome:
            tested.append((str(mutant), ci))
            return mutants.Outcome("a test" if "3 -> 4" in mutant.change else None, 1, 0)

    tested: list[tuple[str, bool]] = []
    monkeypatch.setattr(mutants, "Copy", Pretended)
    drawn = [mutants.mutate(SOURCE, SMALL, number) for number in range(7)]
    results = tmp_path / "results"
    alone = mutants.run(drawn[:4], results, ci=False, folders=True)
    assert {outcome.of for outcome in alone.values()} == {"tests/accounting"}
    assert len(tested) == 4
    first = mutants.run(drawn[:4], results, ci=False)  # the survivors meet the tests of other folders
    assert len(tested) == 4 + sum(outcome.killer is None for outcome in alone.values())
    every = mutants.run(drawn, results, ci=True)
    survivors = {str(mutant) for mutant in drawn if "3 -> 4" not in mutant.change}
    assert set(tested) == {*((str(mutant), False) for mutant in drawn), *((name, True) for name in survivors)}
    assert first.items() < every.items()
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert {(row["mutant"], row["ci"]): row["killer"] for row in rows} == {
        key: outcome.killer for key, outcome in every.items()
    }


@pytest.mark.ci
def test_drawn_mutants_are_repeatable_and_have_tests() -> None:
    first, longer = (mutants.draw(("stats", "recording"), count, seed=3) for count in (5, 7))
    assert first == longer[:5]
    assert all((mutants.ROOT / mutants.folder_of(mutant.path)).is_dir() for mutant in first)
    assert mutants.folder_of(Path("plugins/dpspec_recording/judge/check.py")) == "tests/plugins/recording"


TESTS = """\
import subprocess
import sys

import pytest

from dpspec import decimals


@pytest.fixture(scope="module")
def shared():
    return decimals.nearest(0.25)


def test_first(shared):
    assert decimals.exact(0.25) == shared


def test_second(shared):
    pass


def test_process():
    code = "from dpspec import decimals; decimals.duration(1.0)"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.mark.ci
def test_lines_are_noted_of_tests_shared_fixtures_and_processes(tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    (tmp_path / "test_lines.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "seconds").touch()
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "campaigns.executed_lines", "test_lines.py"]
    paths = os.pathsep.join([str(mutants.ROOT / "tests"), str(mutants.ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "EXECUTED_LINES": str(tmp_path)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    executed = mutants.ExecutedLines(tmp_path).of(Path("dpspec/decimals.py"))
    first, second, process = (f"test_lines.py::test_{name}" for name in ("first", "second", "process"))
    for function, tests in (
        (decimals.nearest, {first, second, process}),  # a fixture of the file
        (decimals.exact, {first}),
        (decimals.duration, {process}),
        (decimals.upper, set()),
    ):
        lines, start = inspect.getsourcelines(function)
        body = set(range(start + 1, start + len(lines)))
        assert set().union(*(executed[line] for line in body)) == tests
