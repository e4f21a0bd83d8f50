"""Change the product at random places, one at a time, and run the tests that execute the changed line.

    python tests/campaigns/mutants.py [--count 150] [--seed 1] [--packages accounting stats] [--ci] [--results FILE]

A mutant has another comparison, operator, number or truth value in one place of a copy of the repository. It is killed
if a test fails that passes without it, or if the tests take several times longer than without it. Tests run in this
order: the module's own files, other files that execute the line, and the rest of the module's folder. The first run
notes which test files execute which lines, in FILE.lines; a command that a test starts in another process is not seen.
With ``--folders``, the tests of the module's folder run alone, and no lines are noted.

FILE has a line of JSON for each mutant; a run with the same FILE tests the others. With ``--ci``, the survivors of the
default tests meet the same files with ``--ci``. They are printed again at the end: each is a missing test, or changes
nothing that matters.
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
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Imported once for the tests of all mutants.
_LIBRARIES = ("opacus", "scipy.stats", "sklearn.datasets", "torch")

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
class ExecutedLines:
    """What the default run of the tests executes.

    Attributes:
        files: For each file of the product and each line, the test files that execute it.
        seconds: Processor seconds of each test file.
        broken: Tests that fail without a mutant.
    """

    files: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]
    broken: list[str]


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


def executing(source: str, line: int, executed: dict[str, list[str]]) -> set[str]:
    """Return the test files that execute the statement at a line of a module.

    A statement outside of functions is executed by imports; it concerns all files that execute a function there.
    """
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    statements = [
        (first, last)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        for first, last in [(node.lineno, _last_line(node))]
        if first <= line <= last
    ]
    inside = any(node.body[0].lineno <= line <= (node.end_lineno or line) for node in functions)
    first, last = max(statements) if inside else (1, len(source.splitlines()))
    return {file for number in range(first, last + 1) for file in executed.get(str(number), [])}


def _last_line(statement: ast.stmt) -> int:
    """Return the last line of a statement without the block that it governs."""
    body = getattr(statement, "body", None)
    end = statement.end_lineno or statement.lineno
    return max(statement.lineno, body[0].lineno - 1) if isinstance(body, list) else end


def order_of_tests(mutant: Mutant, executed: ExecutedLines, root: Path) -> list[list[str]]:
    """Return the test files of a mutant in groups: the module's own, others that execute it, others of its folder."""
    source = (root / mutant.path).read_text(encoding="utf-8")
    executing_files = executing(source, mutant.line, executed.files.get(mutant.path.as_posix(), {}))
    folder = {file.relative_to(root).as_posix() for file in (root / folder_of(mutant.path)).rglob("test_*.py")}
    own = {file for file in folder if Path(file).stem.startswith(f"test_{mutant.path.stem}")}
    groups = own, executing_files - own, folder - executing_files - own
    return [sorted(group, key=lambda file: (executed.seconds.get(file, 0.0), file)) for group in groups if group]


class Copy:
    """A copy of the repository, in which one module at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "repository"
        self._cache = folder / "cache"
        for name in _COPIED:
            shutil.copytree(ROOT / name, self._root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy(file, self._root)

    def note_lines(self) -> ExecutedLines:
        """Run the default tests and note which lines they execute."""
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            table = folder / "seconds"
            options = ["-p", "campaigns.executed_lines", "--processor-time", str(table), "tests"]
            _, broken = self._pytest(options, None, EXECUTED_LINES=place)
            files: dict[str, dict[str, list[str]]] = defaultdict(dict)
            for process in folder.glob("*.json"):
                for path, lines in json.loads(process.read_text(encoding="utf-8")).items():
                    for line, names in lines.items():
                        files[path][line] = sorted({*files[path].get(line, []), *names})
            seconds: dict[str, float] = defaultdict(float)
            for process in folder.glob("seconds*"):
                for row in process.read_text(encoding="utf-8").splitlines():
                    cost, name = row.split("\t", 1)
                    seconds[name.partition("::")[0]] += float(cost)
        return ExecutedLines(files=dict(files), seconds=dict(seconds), broken=broken)

    def killer(self, mutant: Mutant, executed: ExecutedLines, *, ci: bool) -> str | None:
        """Return the first test that fails with the mutant and not without it, or None if the mutant survives."""
        options = ["--ci", "-p", "no:processor-time"] if ci else []
        module = self._root / mutant.path
        original = module.read_text(encoding="utf-8")
        for group in order_of_tests(mutant, executed, self._root):
            known = list(executed.broken)
            expected = sum(executed.seconds.get(file, 0.0) for file in group)
            seconds = _MOST_SECONDS if ci or not executed.seconds else _MORE_SECONDS + _SLOWER * expected
            while True:
                spared = [part for test in known for part in ("--deselect", test)]
                command = ["-x", "-n", "0", *options, *spared, *group]
                module.write_text(mutant.source, encoding="utf-8")
                try:
                    code, failed = self._pytest(command, seconds)
                finally:
                    module.write_text(original, encoding="utf-8")
                if code == 0 or code == 5:  # 5: no test ran
                    break
                if not failed:
                    return "time, memory or imports"
                if self._pytest(["-n", "0", *options, failed[0]], None)[0] != 0:
                    known.append(failed[0])
                    continue
                return failed[0]
        return None

    def _pytest(self, options: Iterable[str], seconds: float | None, **variables: str) -> tuple[int, list[str]]:
        """Run pytest within processor seconds of each process, and return its exit code and the tests that failed."""
        shutil.rmtree(self._cache, ignore_errors=True)
        pid = os.fork()  # of a process that has imported torch
        if not pid:
            try:
                self._become_pytest(["-q", "-o", f"cache_dir={self._cache}", *options], seconds, variables)
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
        return code, list(json.loads(failures.read_text(encoding="utf-8"))) if failures.exists() else []

    def _become_pytest(self, options: list[str], seconds: float | None, variables: Mapping[str, str]) -> None:
        os.setsid()
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
        os._exit(pytest.main(options))


def _executed_lines(file: Path, repository: Copy) -> ExecutedLines:
    if not file.exists():
        executed = repository.note_lines()
        file.write_text(json.dumps(vars(executed)), encoding="utf-8")
    return ExecutedLines(**json.loads(file.read_text(encoding="utf-8")))


def run(mutants: list[Mutant], results: Path, *, ci: bool, folders: bool = False) -> dict[tuple[str, bool], str | None]:
    """Test the mutants that have no result yet.

    Returns:
        By mutant and whether with ``--ci``, the test that fails or None; with ``--ci`` the survivors alone.
    """
    killers: dict[tuple[str, bool], str | None] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        row = json.loads(line)
        killers[row["mutant"], row["ci"]] = row["killer"]
    with tempfile.TemporaryDirectory() as folder, results.open("a", encoding="utf-8") as file:
        repository = Copy(Path(folder))
        lines = results.with_name(results.name + ".lines")
        executed = ExecutedLines({}, {}, []) if folders else _executed_lines(lines, repository)
        for with_ci in (False, True) if ci else (False,):
            for mutant in mutants:
                key = str(mutant), with_ci
                if key in killers or (with_ci and killers[str(mutant), False] is not None):
                    continue
                killers[key] = repository.killer(mutant, executed, ci=with_ci)
                row = {"mutant": str(mutant), "ci": with_ci, "killer": killers[key]}
                file.write(json.dumps(row) + "\n")
                file.flush()
                print("SURVIVED" if killers[key] is None else "killed  ", mutant, flush=True)
    return killers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=PACKAGES)
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--folders", action="store_true")
    given = parser.parse_args()
    for name in _LIBRARIES:
        importlib.import_module(name)
    mutants = draw(tuple(given.packages), given.count, given.seed)
    killers = run(mutants, given.results, ci=given.ci, folders=given.folders)
    survivors = [str(mutant) for mutant in mutants if killers[str(mutant), False] is None]
    print(f"\n{given.count - len(survivors)} of {given.count} killed by the default tests; of the survivors --ci kills")
    print(*(f"{killers.get((mutant, True), 'not run')}\t{mutant}" for mutant in survivors), sep="\n")


if __name__ == "__main__":
    main()
