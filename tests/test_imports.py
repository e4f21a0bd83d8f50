"""No circle among modules: not at import time, not by imports inside functions, not by imports for type checkers."""

import ast
import functools
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support import syntax

import dpspec
from dpspec.registry.loader import load_catalog

ROOT = Path(__file__).parents[1]


def modules() -> dict[str, Path]:
    """Every module of dpspec and of the plugins in this checkout, by its dotted name."""
    folders = [Path(dpspec.__path__[0]), *(ROOT / "plugins").glob("dpspec_*")]
    found = {}
    for folder in folders:
        for path in folder.rglob("*.py"):
            name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def imports(path: Path) -> list[ast.stmt]:
    """The import statements anywhere in a file."""
    source = path.read_text(encoding="utf-8")
    return [node for node in syntax.statements(source) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules that a file imports anywhere in it, as far as they are known."""
    for node in imports(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in known:
                    yield name
                elif node.module in known:
                    yield node.module


def require_no_circle(arrows: Mapping[str, set[str]]) -> None:
    """Raises ``graphlib.CycleError``, which names the circle."""
    TopologicalSorter({name: targets - {name} for name, targets in arrows.items()}).prepare()


@pytest.mark.ci
def test_no_circle_among_modules() -> None:
    known = modules()
    assert len(known) > 200
    assert any(name.startswith("dpspec_group.") for name in known)
    require_no_circle({name: set(imported(path, known)) for name, path in known.items()})


def test_no_circle_among_the_folders_of_the_engine() -> None:
    known = {name: path for name, path in modules().items() if name.startswith("dpspec.engine.")}
    folders: dict[str, set[str]] = {}
    for name, path in known.items():
        used = {each.split(".")[2] for each in imported(path, known)}
        folders.setdefault(name.split(".")[2], set()).update(used)
    assert len(folders) > 8
    require_no_circle(folders)


#: Modules of the mechanism ``selection``.
OWN_MECHANISMS = {"dpspec/language/blocks.py"}
#: Kinds with another meaning: a claim kind, a status of values, a key of a statement, and the block of cells.
OTHER_MEANINGS = {"rero", "recorded", "composition", "matrix"}


def test_core_names_no_mechanism() -> None:
    """Core reads the descriptor of a mechanism and does not compare its kind."""
    kinds = set(load_catalog().mechanisms) - OTHER_MEANINGS
    assert len(kinds) >= 5
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("engine", "cli", "reporters", "language", "stores", "executors")
        for path in (ROOT / "dpspec" / package).rglob("*.py")
        for source in [path.read_text(encoding="utf-8")]
        for node in (syntax.walk(source) if any(f'"{kind}"' in source for kind in kinds) else ())
        if isinstance(node, ast.Constant) and node.value in kinds
    ]
    assert [place for place in found if place.partition(":")[0] not in OWN_MECHANISMS] == []
