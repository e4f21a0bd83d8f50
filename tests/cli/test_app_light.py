"""What must answer at once imports nothing heavy, and ``import dpspec`` next to nothing."""

import json
import tomllib
from pathlib import Path

import pytest

import dpspec as package

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "scipy", "sklearn", "matplotlib")


#: Runs commands one after another, and says after each which top-level modules are there, and which right below them.
_RUN = """\
import json, sys
from dpspec.cli.app import main

loaded = []
for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    loaded.append([code, sorted({".".join(name.split(".")[:depth]) for name in sys.modules for depth in (1, 2)})])
print(json.dumps(loaded), file=sys.stderr)
"""

QUICK = (
    ("--help",),
    ("run", "--help"),
    ("--version",),
    ("plugins",),
    ("schema",),
    ("explain", "unknown-key"),
    ("validate", str(ROOT / "specs" / "quickstart.yaml")),
    ("validate", str(ROOT / "specs" / "bounds-only.yaml")),
    ("show", str(ROOT / "specs" / "quickstart.yaml")),
)


def loaded_after(process, *commands: tuple[str, ...]) -> list[set[str]]:
    ended = process(json.dumps(commands), python=_RUN)
    assert ended.code == 0, ended
    loaded = json.loads(ended.err.splitlines()[-1])
    assert [code for code, _ in loaded] == [0] * len(commands), ended
    return [set(modules) for _, modules in loaded]


def test_quick_commands_import_neither_torch_nor_scipy(process):
    loaded = loaded_after(process, *QUICK)
    assert not loaded[0] & {"numpy", "rich", "yaml", "jsonschema", "mpmath"}
    for command, modules in zip(QUICK, loaded, strict=True):
        assert "dpspec" in modules
        assert not modules & set(HEAVY), command


@pytest.mark.ci
def test_theory_needs_neither_torch_nor_what_draws_or_fits(process):
    """Bounds, a plan, a page and a verification of them: nothing is trained, and figures are dpspec's own.

    Where a function is least, or crosses a line, dpspec finds by itself: to import ``scipy.optimize`` takes a fifth of
    a second, and ``scipy.stats`` twice that.
    """
    spec = str(ROOT / "specs" / "bounds-only.yaml")
    commands = (
        ("plan", str(ROOT / "specs" / "quickstart.yaml")),
        ("run", spec, "--report", "html=page.html", "--report", "json=result.json"),
        ("verify", "page.html"),
        ("report", "result.json", "--format", "markdown"),
    )
    for command, modules in zip(commands, loaded_after(process, *commands), strict=True):
        assert "scipy" in modules
        assert not modules & {"torch", "sklearn", "matplotlib", "pandas", "PIL"}, command
        assert not modules & {"scipy.optimize", "scipy.stats"}, command


def test_importing_the_package_imports_nothing_else(process):
    code = (
        "import sys\nimport dpspec\nprint(*[m for m in sys.modules if m.startswith('dpspec.')], 'numpy' in sys.modules)"
    )
    assert process(python=code).out == "dpspec.version False\n"


def test_the_public_names():
    assert len(package.__all__) <= 33
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018


def test_the_version_is_the_distributions(process):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert package.__version__ == declared
    assert process("--version").out == f"dpspec {declared}\n"
