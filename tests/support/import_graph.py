"""Which modules and folders of a package import each other, at any place: at the top, in functions, for types."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path


def modules_of(root: Path, package: str) -> dict[str, set[str]]:
    """Per module of ``package``, which lies in ``root``, those of it that it imports; named without the package."""
    paths = {_name(path, root): path for path in root.rglob("*.py") if path.name != "__init__.py"}
    return {name: set(_imports(path, package, set(paths))) for name, path in paths.items()}


def _name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def _imports(path: Path, package: str, known: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            inner = name.removeprefix(f"{package}.")
            if name.startswith(f"{package}.") and inner in known:
                yield inner


def folders_of(modules: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same among folders, the modules outside of any standing for themselves."""
    arrows: dict[str, set[str]] = {}
    for module, imported in modules.items():
        here = module.split(".")[0]
        arrows.setdefault(here, set()).update(name.split(".")[0] for name in imported if name.split(".")[0] != here)
    return arrows


def require_no_circle(arrows: Mapping[str, set[str]]) -> None:
    """Raises ``graphlib.CycleError``, which names the circle."""
    TopologicalSorter({name: targets - {name} for name, targets in arrows.items()}).prepare()
