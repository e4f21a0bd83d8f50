"""What must answer at once imports nothing heavy, and ``import dpspec`` next to nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import dpspec as package

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "scipy", "sklearn", "matplotlib")


def loaded_after(process, *arguments: str) -> set[str]:
    """The top-level modules that a command has imported when it ends."""
    code = (
        "import sys\nfrom dpspec.cli.app import main\ncode = main(sys.argv[1:])\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\nsys.exit(code)"
    )
    ended = process(*arguments, python=code)
    assert ended.code == 0, ended
    return set(ended.err.split("\n")[-2].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["--version"],
        ["plugins"],
        ["plugins", "--json"],
        ["schema"],
        ["explain", "unknown-key"],
        ["cache", "ls"],
        ["validate", str(ROOT / "specs" / "quickstart.yaml")],
        ["validate", str(ROOT / "specs" / "bounds-only.yaml")],
        ["show", str(ROOT / "specs" / "quickstart.yaml")],
    ],
    ids=lambda arguments: "-".join(Path(part).name for part in arguments),
)
def test_quick_commands_import_neither_torch_nor_scipy(process, arguments):
    assert not loaded_after(process, *arguments) & set(HEAVY)


def test_help_imports_no_library_of_numbers_or_of_terminals(process):
    assert not loaded_after(process, "--help") & {*HEAVY, "numpy", "rich", "yaml", "jsonschema", "mpmath"}


def test_importing_the_package_imports_nothing_else(process):
    code = (
        "import sys\nimport dpspec\nprint(*[m for m in sys.modules if m.startswith('dpspec.')], 'numpy' in sys.modules)"
    )
    assert process(python=code).out == "dpspec.version False\n"


def test_the_public_names():
    assert len(package.__all__) <= 18
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018


def test_the_version_is_the_distributions():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert package.__version__ == declared


def test_the_module_is_the_program(process):
    assert process("--version").out == f"dpspec {package.__version__}\n"
