"""Private names of torch and Opacus exist in the installed versions, and are listed in one place."""

import ast
import importlib
import tomllib
from pathlib import Path
from typing import Any

import opacus
import pytest
import torch

from dpspec.tested_versions import PRIVATE_ATTRIBUTES, PRIVATE_FUNCTIONS, TESTED, untested_versions

ROOT = Path(__file__).parents[1]


def resolved(name: str) -> Any:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            value = getattr(value, part)
        return value
    raise AssertionError(name)


@pytest.mark.parametrize("name", PRIVATE_FUNCTIONS)
def test_private_names_exist_in_the_installed_torch(name: str) -> None:
    assert resolved(name) is not None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, by its compiler
def test_private_attributes_exist_in_the_installed_versions() -> None:
    layer = torch.nn.Linear(2, 2)
    instances: dict[str, Any] = {
        "torch.nn.Module": layer,
        "torch.Tensor": layer.weight,
        # the default backend takes seconds to import
        "torch._dynamo.eval_frame.OptimizedModule": torch.compile(layer, backend="eager"),
        "opacus.GradSampleModule": opacus.GradSampleModule(torch.nn.Linear(2, 2)),
    }
    assert set(instances) == set(PRIVATE_ATTRIBUTES)
    for kind, names in PRIVATE_ATTRIBUTES.items():
        assert [name for name in names if not hasattr(instances[kind], name)] == [], kind


def used_names(path: Path) -> set[str]:
    """Dotted names below torch or opacus with a private part, of imports and of attributes."""
    tree, names, aliases = ast.parse(path.read_text(encoding="utf-8")), set[str](), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                names.add(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            aliases[node.targets[0].id] = ast.unparse(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            names.add(f"{aliases.get(root, root)}.{rest}")
    private = {name for name in names if name.split(".")[0] in ("torch", "opacus") and "._" in name}
    return {name for name in private if "__" not in name and name.replace(".", "").replace("_", "").isalnum()}


@pytest.mark.ci
def test_every_private_name_is_listed() -> None:
    used = {
        name
        for package in ("dpspec", "plugins")
        for path in (ROOT / package).rglob("*.py")
        for name in used_names(path)
    }
    unlisted = {name for name in used if not any(f"{listed}.".startswith(f"{name}.") for listed in PRIVATE_FUNCTIONS)}
    unlisted = {name for name in unlisted if not any(name.startswith(f"{listed}.") for listed in PRIVATE_FUNCTIONS)}
    assert unlisted == set()


def test_the_package_declares_the_oldest_tested_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"torch>={TESTED['torch'][0]}" in project["dependencies"]
    assert project["requires-python"] == f">={TESTED['python'][0]}"
    assert f"opacus>={TESTED['opacus'][0]}" in project["optional-dependencies"]["opacus"]


@pytest.mark.parametrize(
    ("version", "notes"), [("2.10.0+cpu", 0), ("2.15.1", 0), ("2.16.0", 1), ("2.9.1", 1), ("3.0.0a1", 1), ("", 0)]
)
def test_another_version_is_a_note(version: str, notes: int) -> None:
    assert len(list(untested_versions({"torch": version, "command": ["dpspec"]}))) == notes
