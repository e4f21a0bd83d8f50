"""The modules of the engine form no circle of any kind: at the top, in functions, or for types alone."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import dpspec.engine as engine

ROOT = Path(engine.__file__).parent
PACKAGE = "dpspec.engine"


def _module(path: Path) -> str:
    return ".".join((PACKAGE, *path.relative_to(ROOT).with_suffix("").parts))


def _imports(path: Path) -> set[str]:
    """The modules of the engine that a module imports, at any place."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names if alias.name.startswith(PACKAGE)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            module = str(node.module)
            inner = {f"{module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if (ROOT / Path(*name.split(".")[2:])).with_suffix(".py").exists()}
            imported |= modules or {module}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: a relative import"
    return imported


@functools.cache
def _modules() -> dict[str, set[str]]:
    """The modules of the engine, each with those that it imports."""
    return {_module(path): _imports(path) for path in ROOT.rglob("*.py") if path.name != "__init__.py"}


def _require_no_circle(arrows: dict[str, set[str]]) -> None:
    left = {name: used & set(arrows) for name, used in arrows.items()}
    while left:
        free = {name for name, used in left.items() if not used & set(left)}
        assert free, f"a circle among {sorted(left)}"
        left = {name: used for name, used in left.items() if name not in free}


def test_no_circle_among_modules() -> None:
    assert set().union(*_modules().values()) <= set(_modules())
    _require_no_circle(_modules())


def test_no_circle_among_folders() -> None:
    folders: dict[str, set[str]] = {}
    for module, used in _modules().items():
        here = module.split(".")[2]
        folders.setdefault(here, set()).update(name.split(".")[2] for name in used if name.split(".")[2] != here)
    _require_no_circle(folders)


def test_few_names_in_every_folder() -> None:
    for folder in (ROOT, *(path for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__")):
        names = [path for path in folder.iterdir() if path.name not in ("__init__.py", "__pycache__")]
        assert len(names) <= 12, folder
