"""Change the product at random places, one at a time, and run the tests of the changed module's folder.

    python tests/campaigns/mutants.py [--count 60] [--seed 1] [--packages accounting stats] [--ci]

A mutant has another comparison, operator, number or truth value in one place of a copy of the repository. It is killed
if a test fails, or if the tests take longer than ten minutes. Prints each mutant, and the survivors again at the end:
each is a missing test, or changes nothing that matters. ``--ci`` also runs the tests with the marker ``ci``.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: The packages of ``dpspec`` that are changed; their numbers decide verdicts.
PACKAGES = ("accounting", "stats", "training", "engine", "recording", "language")

_COPIED = ("dpspec", "plugins", "tests", "specs", "docs", "packaging", ".ci", ".github")

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

_SECONDS = 600


@dataclass(frozen=True)
class Mutant:
    """A changed module: its path in the repository, the changed line, the change, and the new source."""

    path: Path
    line: int
    change: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


def places(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes that :func:`mutate` can change, in the order of ``ast.walk``, without annotations."""
    ignored = {
        id(inner)
        for node in ast.walk(tree)
        for name in ("annotation", "returns")
        if (annotation := getattr(node, name, None)) is not None
        for inner in ast.walk(annotation)
    }
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


def draw(packages: tuple[str, ...], count: int, seed: int) -> Iterator[Mutant]:
    """Draw mutants of all places in the packages with equal probability."""
    sources = {
        path.relative_to(ROOT): path.read_text(encoding="utf-8")
        for package in packages
        for path in sorted((ROOT / "dpspec" / package).rglob("*.py"))
    }
    every = [(path, number) for path, source in sources.items() for number in range(len(places(ast.parse(source))))]
    for path, number in random.Random(seed).sample(every, count):
        yield mutate(sources[path], path, number)


def tests_of(path: Path) -> str:
    """Return the folder of tests of a module of the product."""
    return "tests/recording" if path.parts[1:3] == ("engine", "recorded") else f"tests/{path.parts[1]}"


def is_killed(mutant: Mutant, copied: Path, *, ci: bool) -> bool:
    """Run the tests on a copy of the repository with the mutant: first the module's own files, then its folder."""
    folder = copied / tests_of(mutant.path)
    own = sorted(folder.rglob(f"test_{mutant.path.stem}*.py"))
    original = (copied / mutant.path).read_text(encoding="utf-8")
    (copied / mutant.path).write_text(mutant.source, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copied), str(copied / "plugins")])}
    try:
        for targets in (own, [folder]):
            command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
            command += [*(["--ci"] if ci else []), *map(str, targets)]
            if targets and _fails(command, copied, environment):
                return True
        return False
    finally:
        (copied / mutant.path).write_text(original, encoding="utf-8")


def _fails(command: list[str], folder: Path, environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2):  # neither passed, nor a failed test, nor a module that cannot be imported
        raise RuntimeError(done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:])
    return done.returncode != 0


def copy_repository(place: Path) -> Path:
    for name in _COPIED:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, place)
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=PACKAGES)
    parser.add_argument("--ci", action="store_true")
    given = parser.parse_args()
    survivors = []
    with tempfile.TemporaryDirectory() as place:
        copied = copy_repository(Path(place))
        for mutant in draw(tuple(given.packages), given.count, given.seed):
            killed = is_killed(mutant, copied, ci=given.ci)
            print("killed  " if killed else "SURVIVED", mutant, flush=True)
            survivors += [] if killed else [mutant]
    print(f"\n{given.count - len(survivors)} of {given.count} killed", *survivors, sep="\n")


if __name__ == "__main__":
    main()
