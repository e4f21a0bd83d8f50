"""Change the product at random places, one at a time, and run the tests that execute the changed line.

    python tests/campaigns/mutants.py [--count 150] [--seed 1] [--packages accounting stats] [--folders]
                                      [--most 60] [--ci] [--results FILE]

A mutant has another comparison, operator, number or truth value in one place of a copy of the repository. It is killed
if a test fails that passes without it, or if the tests take several times longer than without it. The first run notes
which tests execute which lines, in the folder FILE.lines: it takes twice as long as the default tests. The tests that
execute the line run up to the first that fails: those of the module's own files first, then others, cheap files first.
Without ``--most`` all of them run; with it, as many as take so many processor seconds: ``left_out`` counts the rest. A
mutant whose line no test executes survives with 0 ``tests``. With ``--folders``, the tests of the module's folder are
noted and run alone; a run without it continues with the survivors of such a run.

FILE has a line of JSON for each mutant; a run with the same FILE tests the others. With ``--ci``, the survivors of the
default tests meet the files of their own folder with ``--ci``: those that execute the line, and the module's own ones.
They are printed again at the end: each is a missing test, or changes nothing that matters.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Imported once for the tests of all mutants.
_LIBRARIES = ("jsonschema", "mpmath", "opacus", "scipy.stats", "sklearn.datasets", "torch")

#: The packages that are changed, by name; their numbers decide verdicts.
PACKAGES = {
    "accounting": "dpspec/accounting",
    "stats": "dpspec/stats",
    "training": "dpspec/training",
    "engine": "dpspec/engine",
    "recording": "plugins/dpspec_recording",
    "language": "dpspec/language",
}

_COPIED = ("dpspec", "plugins", "tests", "specs", "docs", "packaging", ".ci", ".github")

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

#: Tests of a mutant may take as many times their processor seconds and so many more, if these were not measured so many
#: at most; a process as many bytes.
_SLOWER, _MORE_SECONDS, _MOST_SECONDS, _MOST_BYTES = 4, 60, 1800, 8 << 30

#: What killed a mutant if no test failed: a limit on processor time, or pytest that ended itself.
_TIME, _CRASH = "time", "memory or imports"

#: How many tests ``--most`` left out with ``--ci``, where pytest was stopped before the last one.
_UNKNOWN = -1


@dataclass(frozen=True)
class Mutant:
    """A changed module: its path in the repository, the changed line, the change, and the new source."""

    path: Path
    line: int
    change: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        killer: The first test that fails with the mutant and not without it; None if the mutant survives.
        tests: How many tests met it, up to the first that failed.
        left_out: How many tests that execute the line did not, because of their cost; -1 if ``--most`` stopped a run
            with ``--ci``.
        of: The folder of these tests.
    """

    killer: str | None
    tests: int
    left_out: int
    of: str = "tests"


class ExecutedLines:
    """What the tests of a run execute, by a folder of :mod:`campaigns.executed_lines`.

    Attributes:
        seconds: Processor seconds of each test.
    """

    def __init__(self, folder: Path) -> None:
        import coverage

        self._data = coverage.CoverageData(str(folder / "lines"))
        self._data.read()
        collected = json.loads((folder / "tests.json").read_text(encoding="utf-8"))
        rows = [line.split("\t", 1) for line in (folder / "seconds").read_text(encoding="utf-8").splitlines()]
        costs = {name: float(cost) for cost, name in rows}
        self.seconds = {test: costs.get(test, 0.0) for test in collected}
        self._meant: dict[str, list[str]] = {}
        for test, contexts in collected.items():
            for context in contexts:
                self._meant.setdefault(context, []).append(test)
        self._processes: dict[str, list[tuple[str, list[int]]]] = defaultdict(list)
        for file in folder.glob("process-*.json"):
            process = json.loads(file.read_text(encoding="utf-8"))
            for path, lines in process["lines"].items():
                self._processes[path].append((process["test"], lines))

    def of(self, path: Path) -> dict[int, set[str]]:
        """Return the tests that execute each line of a file of the product."""
        lines: dict[int, set[str]] = defaultdict(set)
        for file in filter(lambda file: Path(file).match(path.as_posix()), self._data.measured_files()):
            for line, contexts in self._data.contexts_by_lineno(file).items():
                lines[line].update(*(self._meant.get(context, ()) for context in contexts))
        for file in filter(lambda file: Path(file).match(path.as_posix()), self._processes):
            for context, executed in self._processes[file]:
                for line in executed:
                    lines[line].update(self._meant.get(context, ()))
        return lines


def places(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes that :func:`mutate` can change, in the order of ``ast.walk``.

    Annotations are left out, and ``strict`` of ``zip``, whose arguments have equal lengths.
    """
    ignored = {
        id(inner)
        for node in ast.walk(tree)
        for name in ("annotation", "returns")
        if (annotation := getattr(node, name, None)) is not None
        for inner in ast.walk(annotation)
    } | {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"}
    kinds = (ast.Compare, ast.BinOp, ast.BoolOp)
    return [
        node
        for node in ast.walk(tree)
        if id(node) not in ignored
        and (
            (isinstance(node, kinds) and _operator(node) in _SWAPPED)
            or (isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float))
        )
    ]


def mutate(source: str, path: Path, number: int) -> Mutant:
    """Return the mutant that changes the place of this number."""
    tree = ast.parse(source)
    node = places(tree)[number]
    before = ast.unparse(copy.deepcopy(node))
    if isinstance(node, ast.Constant):
        value = node.value
        node.value = (
            not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 1.1 + 0.1
        )
    elif isinstance(node, ast.Compare):
        node.ops[0] = _SWAPPED[type(node.ops[0])]()
    else:
        node.op = _SWAPPED[type(node.op)]()
    line = getattr(node, "lineno", 0)
    return Mutant(path=path, line=line, change=f"{before} -> {ast.unparse(node)}", source=ast.unparse(tree) + "\n")


def _operator(node: ast.AST) -> type[ast.AST]:
    return type(node.ops[0] if isinstance(node, ast.Compare) else node.op)


def draw(packages: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of all places in the packages with equal probability; a larger number begins with the same ones."""
    sources = {
        path.relative_to(ROOT): path.read_text(encoding="utf-8")
        for package in packages
        for path in sorted((ROOT / PACKAGES[package]).rglob("*.py"))
    }
    every = [(path, number) for path, source in sources.items() for number in range(len(places(ast.parse(source))))]
    random.Random(seed).shuffle(every)
    return [mutate(sources[path], path, number) for path, number in every[:count]]


def folder_of(path: Path) -> str:
    """Return the folder of tests of a module of the product."""
    package = path.parts[1]
    return f"tests/plugins/{package.removeprefix('dpspec_')}" if path.parts[0] == "plugins" else f"tests/{package}"


def executing(source: str, line: int, executed: Mapping[int, set[str]]) -> set[str]:
    """Return the tests that execute the statement at a line of a module.

    A statement outside of functions is executed by imports; it concerns all tests that execute a function there.
    """
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    bodies = {number for node in functions for number in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
    statements = [
        (first, last)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        for first, last in [(node.lineno, _last_line(node))]
        if first <= line <= last
    ]
    numbers = range(max(statements)[0], max(statements)[1] + 1) if line in bodies else bodies
    return {test for number in numbers for test in executed.get(number, ())}


def _last_line(statement: ast.stmt) -> int:
    """Return the last line of a statement without the block that it governs."""
    body = getattr(statement, "body", None)
    end = statement.end_lineno or statement.lineno
    return max(statement.lineno, body[0].lineno - 1) if isinstance(body, list) else end


def order_of_tests(mutant: Mutant, tests: Iterable[str], seconds: Mapping[str, float]) -> list[list[str]]:
    """Return the tests of a mutant in groups: of the module's own files, and others; cheap files first."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        files[file_of(test)].append(test)
    folder = folder_of(mutant.path)
    own = {file for file in files if is_own(mutant.path, file)}
    groups = own, files.keys() - own
    return [
        [
            test
            for file in sorted(group, key=lambda file: _cost(file, files[file], folder, seconds))
            for test in files[file]
        ]
        for group in groups
        if group
    ]


def _cost(file: str, tests: list[str], folder: str, seconds: Mapping[str, float]) -> tuple[bool, float, str]:
    return not file.startswith(folder + "/"), sum(seconds[test] for test in tests), file


def file_of(test: str) -> str:
    return test.partition("::")[0]


def is_own(module: Path, file: str) -> bool:
    """Whether a file of tests is named after the module."""
    return file.startswith(folder_of(module) + "/") and Path(file).stem.startswith(f"test_{module.stem}")


def affordable(groups: list[list[str]], seconds: Mapping[str, float], most: float) -> list[list[str]]:
    """Return the first tests of the groups that take so many seconds, without those that exceed it."""
    taken: list[list[str]] = []
    for group in groups:
        taken.append([])
        for test in group:
            if seconds[test] <= most:
                most -= seconds[test]
                taken[-1].append(test)
    return [group for group in taken if group]


class _Chosen:
    """A pytest plugin that keeps the chosen tests of the collected ones, in the order of the choice."""

    def __init__(self, tests: Iterable[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._places), key=lambda i: self._places[i.nodeid])


class Copy:
    """A copy of the repository, in which one module at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "repository"
        self._cache = folder / "cache"
        self._sound = set[str]()
        self._unsound = set[str]()
        for name in _COPIED:
            shutil.copytree(ROOT / name, self._root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy(file, self._root)

    def executed_lines(self, folder: Path, tests: str) -> ExecutedLines:
        """Run the default tests of a folder and note which lines they execute, unless ``folder`` has these."""
        noted = folder / tests.replace("/", "-")
        if not noted.exists():
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as place:
                options = ["-n", "0", "-p", "campaigns.executed_lines", "--processor-time", f"{place}/seconds", tests]
                self._pytest(options, None, EXECUTED_LINES=place)
                shutil.copytree(place, noted)
        return ExecutedLines(noted)

    def outcome(self, mutant: Mutant, executed: ExecutedLines, *, ci: bool, most: float) -> Outcome:
        """Run the tests of a mutant."""
        source = (self._root / mutant.path).read_text(encoding="utf-8")
        tests = executing(source, mutant.line, executed.of(mutant.path)) - self._unsound
        if ci:
            return self._outcome_with_ci(mutant, {file_of(test) for test in tests}, most)
        groups = affordable(order_of_tests(mutant, tests, executed.seconds), executed.seconds, most)
        met = 0
        for group in groups:
            expected = sum(executed.seconds[test] for test in group)
            killer, ran = self._killer(
                mutant, sorted(set(map(file_of, group))), group, _MORE_SECONDS + _SLOWER * expected
            )
            met += ran
            if killer:
                return Outcome(killer, met, 0)
        return Outcome(None, met, len(tests) - sum(map(len, groups)))

    def _outcome_with_ci(self, mutant: Mutant, executing_files: set[str], most: float) -> Outcome:
        folder = folder_of(mutant.path)
        files = sorted(file.relative_to(self._root).as_posix() for file in (self._root / folder).rglob("test_*.py"))
        files = [file for file in files if file in executing_files or is_own(mutant.path, file)]
        files.sort(key=lambda file: not is_own(mutant.path, file))
        if not files:
            return Outcome(None, 0, 0)
        killer, ran = self._killer(mutant, files, None, min(most, _MOST_SECONDS), "--ci", "-p", "no:processor-time")
        if killer == _TIME and most < _MOST_SECONDS:
            return Outcome(None, ran, _UNKNOWN)
        return Outcome(killer, ran, 0)

    def _killer(
        self, mutant: Mutant, files: list[str], chosen: list[str] | None, seconds: float, *options: str
    ) -> tuple[str | None, int]:
        """Return the first of the tests that fails with the mutant and not without it, and how many ran."""
        module = self._root / mutant.path
        original = module.read_text(encoding="utf-8")
        while True:
            spared = [part for test in sorted(self._unsound) for part in ("--deselect", test)]
            plugins = [] if chosen is None else [_Chosen(chosen)]
            module.write_text(mutant.source, encoding="utf-8")
            try:
                command = ["-x", "-n", "0", *options, *spared, *files]
                code, failed, ran = self._pytest(command, seconds, plugins)
            finally:
                module.write_text(original, encoding="utf-8")
            if code == 0 or code == 5:  # 5: no test ran
                return None, ran
            if not failed:
                return _TIME if code in (-signal.SIGKILL, -signal.SIGXCPU) else _CRASH, ran
            if failed[0] not in self._sound:
                ended, _, _ = self._pytest(["-n", "0", *options, failed[0]], None)
                (self._unsound if ended else self._sound).add(failed[0])
            if failed[0] in self._sound:
                return failed[0], ran

    def _pytest(
        self, options: Iterable[str], seconds: float | None, plugins: Iterable[object] = (), **variables: str
    ) -> tuple[int, list[str], int]:
        """Run pytest within processor seconds of each process.

        Returns:
            Its exit code, the tests that failed, and how many ran.
        """
        shutil.rmtree(self._cache, ignore_errors=True)
        self._cache.mkdir()
        counting = _Counting(self._cache / "ran")
        pid = os.fork()  # of a process that has imported torch
        if not pid:
            try:
                given = ["-q", "-o", f"cache_dir={self._cache}", *options]
                self._become_pytest(given, seconds, [*plugins, counting], variables)
            finally:
                os._exit(70)
        code, end = None, math.inf if seconds is None else time.monotonic() + 10 * seconds  # others may use the cores
        while code is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else -signal.SIGKILL if time.monotonic() > end else None
            time.sleep(0.0 if ended else 0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # with all that a test started
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        failures = self._cache / "v" / "cache" / "lastfailed"
        failed = list(json.loads(failures.read_text(encoding="utf-8"))) if failures.exists() else []
        return code, failed, counting.count()

    def _become_pytest(
        self, options: list[str], seconds: float | None, plugins: list[object], variables: Mapping[str, str]
    ) -> None:
        os.setpgrp()  # a session would have a priority of its own
        if seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
            resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
        paths = [str(self._root / name) for name in ("", "plugins", "tests")]
        os.environ.update(variables, PYTHONPATH=os.pathsep.join(paths))
        os.chdir(self._root)
        sys.path[:] = [*paths, *(part for part in sys.path if not Path(part).is_relative_to(ROOT))]
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os._exit(pytest.main(options, plugins))


class _Counting:
    """A pytest plugin that counts the tests that began, in a file: a process may be killed."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logstart(self) -> None:
        with self._file.open("ab") as file:
            file.write(b".")

    def count(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0


def run(
    mutants: list[Mutant], results: Path, *, ci: bool, most: float = math.inf, folders: bool = False
) -> dict[tuple[str, bool], Outcome]:
    """Test the mutants that have no result yet.

    Returns:
        By mutant and whether with ``--ci``, the outcome; with ``--ci`` of the survivors alone.
    """
    outcomes: dict[tuple[str, bool], Outcome] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        row = json.loads(line)
        key = row.pop("mutant"), row.pop("ci")
        outcomes[key] = Outcome(**row)
    lines = results.with_name(results.name + ".lines")
    executed: dict[str, ExecutedLines] = {}
    with tempfile.TemporaryDirectory() as folder, results.open("a", encoding="utf-8") as file:
        repository = Copy(Path(folder))
        for with_ci in (False, True) if ci else (False,):
            for mutant in mutants:
                tests = folder_of(mutant.path) if folders else "tests"
                key = str(mutant), with_ci
                known, by_default = outcomes.get(key), outcomes.get((str(mutant), False))
                if known is not None and (with_ci or known.killer is not None or known.of in (tests, "tests")):
                    continue
                if with_ci and by_default is not None and by_default.killer is not None:
                    continue
                if tests not in executed:
                    executed[tests] = repository.executed_lines(lines, tests)
                outcome = repository.outcome(mutant, executed[tests], ci=with_ci, most=most)
                outcomes[key] = outcome = replace(outcome, of=tests)
                file.write(json.dumps({"mutant": str(mutant), "ci": with_ci, **vars(outcome)}) + "\n")
                file.flush()
                print("SURVIVED" if outcome.killer is None else "killed  ", mutant, flush=True)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=PACKAGES)
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--most", type=float, default=math.inf, help="processor seconds of the tests of a mutant")
    parser.add_argument("--folders", action="store_true", help="run the tests of the module's folder alone")
    parser.add_argument("--ci", action="store_true")
    given = parser.parse_args()
    for name in _LIBRARIES:
        importlib.import_module(name)
    mutants = draw(tuple(given.packages), given.count, given.seed)
    if given.folders:  # the lines of one folder are noted at a time
        mutants.sort(key=lambda mutant: folder_of(mutant.path))
    outcomes = run(mutants, given.results, ci=given.ci, most=given.most, folders=given.folders)
    survivors = [mutant for mutant in map(str, mutants) if outcomes[mutant, False].killer is None]
    print(f"\n{given.count - len(survivors)} of {given.count} killed by the default tests; of the survivors --ci kills")
    for mutant in survivors:
        by_ci = outcomes[mutant, True].killer if (mutant, True) in outcomes else "not run"
        print(by_ci, mutant, f"{outcomes[mutant, False].tests} tests met it", sep="\t")


if __name__ == "__main__":
    main()
