"""``specs/invalid``: one file for every code, with exactly what is printed for it.

To write the expected texts anew, run this file with DPSPEC_UPDATE_GOLDEN=1 in the environment, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpspec.contract.catalog import Catalog
from dpspec.language.diagnostics import CODES, WIDTH, render
from dpspec.language.load import load_specs

ROOT = Path(__file__).parents[2]
FOLDER = Path("specs/invalid")
SHOWN = sorted(name for name, code in CODES.items() if code.stage in ("spec", "check"))
SPEC = [name for name in SHOWN if CODES[name].stage == "spec"]


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    """What dpspec itself ships, whether or not it is installed."""
    from dpspec.registry.loader import Candidate, build

    plugins = ("group", "modelmix", "per_instance", "preprocessing", "rero")
    modules = {"builtin": "dpspec.registry.builtin"} | {name: f"dpspec_{name}" for name in plugins}
    ours = [Candidate(distribution="dpspec", version="0", plugin=k, value=v) for k, v in modules.items()]
    catalog = build(ours).catalog
    assert catalog.broken == ()
    return catalog


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_one_file_for_every_code() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == SHOWN
    assert sorted(path.name.removesuffix(".expected.txt") for path in FOLDER.glob("*.expected.txt")) == SHOWN


@pytest.mark.parametrize("name", SPEC)
def test_messages_are_exactly_these(name: str, shipped: Catalog) -> None:
    loaded = load_specs([FOLDER / f"{name}.yaml"], shipped)
    expected = FOLDER / f"{name}.expected.txt"
    shown = render(loaded.diagnostics)
    if os.environ.get("DPSPEC_UPDATE_GOLDEN"):
        expected.write_text(shown, encoding="utf-8")
    assert loaded.specs == ()
    assert name in {d.code for d in loaded.diagnostics}
    assert shown == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SHOWN)
def test_texts_fit_the_page(name: str) -> None:
    lines = (FOLDER / f"{name}.expected.txt").read_text(encoding="utf-8").splitlines()
    assert all(len(line) <= WIDTH or f"[{name}]: " in line for line in lines if line.startswith(" "))
    assert any(f"error[{name}]: " in line for line in lines)


@pytest.mark.parametrize("name", [name for name in SHOWN if name not in SPEC])
def test_the_language_accepts_what_only_a_check_refuses(name: str, shipped: Catalog) -> None:
    assert load_specs([FOLDER / f"{name}.yaml"], shipped).diagnostics == ()


def test_every_spec_to_copy_is_valid(shipped: Catalog) -> None:
    paths = sorted(Path("specs").glob("*.yaml"))
    assert paths
    assert render(load_specs(paths, shipped).diagnostics) == ""
