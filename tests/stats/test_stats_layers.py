"""The folders of ``dpspec.stats`` stand in one order, and nothing in it goes round in a circle."""

from __future__ import annotations

from pathlib import Path

from support.import_graph import folders_of, modules_of, require_no_circle

import dpspec.stats as stats

#: From low to high: a module imports from folders to the left of its own.
ORDER = ("conformance", "attacks")

ROOT = Path(stats.__path__[0])


def test_no_circle_among_modules_nor_among_folders() -> None:
    modules = modules_of(ROOT, "dpspec.stats")
    assert len(modules) > 20
    require_no_circle(modules)
    require_no_circle(folders_of(modules))


def test_folders_import_only_from_lower_ones() -> None:
    for folder, imported in folders_of(modules_of(ROOT, "dpspec.stats")).items():
        if folder in ORDER:
            assert imported & set(ORDER) <= set(ORDER[: ORDER.index(folder)]), folder


def test_few_names_in_every_folder() -> None:
    for folder in (ROOT, *(path for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__")):
        assert len([path for path in folder.iterdir() if path.name not in ("__init__.py", "__pycache__")]) <= 12, folder
