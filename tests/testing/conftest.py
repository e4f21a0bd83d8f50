import dataclasses
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpspec.cli.templates import write_plugin
from dpspec.contract.catalog import Catalog
from dpspec.registry.loader import Candidate, Registry, build

ROOT = Path(__file__).parents[2]
OURS = Candidate(distribution="dpspec", version="0", plugin="builtin", value="dpspec.registry.builtin")
DEMO = Candidate(distribution="dpspec-conformdemo", version="0", plugin="conformdemo", value="dpspec_conformdemo")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A plugin as ``dpspec new plugin`` writes it, beside our own; importable but not installed."""
    folder = tmp_path_factory.mktemp("demo")
    write_plugin("conformdemo", folder)
    path = str(folder / "dpspec-conformdemo")
    sys.path.insert(0, path)
    yield build([OURS, DEMO])
    sys.path.remove(path)


@pytest.fixture
def with_audit(demo: Registry, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """That plugin with another audit class, or with other fields of its descriptor."""

    def make(audit: type | None = None, *, reference: str | None = None, **fields: Any) -> Registry:
        if audit is not None:
            module = types.ModuleType("odd_audit")
            module.Odd = audit  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, "odd_audit", module)
            reference = "odd_audit:Odd"
        if reference is not None:
            fields["audit"] = reference
        offered = demo.catalog.mechanisms["conformdemo"]
        provider = dataclasses.replace(offered.provider, **fields)
        mechanisms = {"conformdemo": dataclasses.replace(offered, provider=provider)}
        catalog: Catalog = dataclasses.replace(demo.catalog, mechanisms=mechanisms)
        return Registry(demo.manager, catalog)

    return make


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a module that other processes can import too."""

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))

    return write


@pytest.fixture(scope="session")
def environment() -> Callable[..., dict[str, str]]:
    """The environment of a child process that finds dpspec as this one does, and further folders before it."""

    def make(*first: Path) -> dict[str, str]:
        path = [*map(str, first), *(p for p in sys.path if p)]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}

    return make
