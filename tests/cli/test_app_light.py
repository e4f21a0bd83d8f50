"""What must answer at once imports nothing heavy, and ``import dpspec`` next to nothing."""

import json
import tomllib
from pathlib import Path

import pytest

import dpspec as package

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "scipy", "sklearn", "matplotlib")


#: Libraries of training, of other formats and of other executors.
TRAINING = ("torch", "sklearn", "safetensors", "opacus", "joblib", "ray", "pyarrow", "pandas", "PIL")

#: Runs commands one after another without some libraries, and prints the loaded modules after each, to two levels.
_RUN = """\
import json, sys
from dpspec.cli.app import main

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in json.loads(sys.argv[2]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

loaded = []
sys.meta_path.insert(0, Missing())
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


def loaded_after(process, *commands: tuple[str, ...], missing: tuple[str, ...] = ()) -> list[set[str]]:
    """The modules after each command, where the libraries ``missing`` cannot be imported."""
    ended = process(json.dumps(commands), json.dumps(missing), python=_RUN)
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
def test_epsilon_imports_the_accounting_only(process):
    """No specs, plugins or results: each library of these takes as long as the answer."""
    options = ("epsilon", "--noise", "1", "--rate", "0.01", "--steps", "10", "--json")
    (modules,) = loaded_after(process, options, missing=TRAINING)
    assert "scipy.special" in modules
    unneeded = {
        "scipy.optimize",
        "scipy.stats",
        "scipy.sparse",
        "rich",
        "jsonschema",
        "yaml",
        "pluggy",
        "markupsafe",
        "mpmath",
    }
    assert not modules & unneeded
    assert not modules & {"dpspec.registry", "dpspec.language", "dpspec.reporters", "dpspec.results", "dpspec_group"}


def test_a_command_imports_no_other_command(process):
    (modules,) = loaded_after(process, ("--version",))
    assert {name for name in modules if name.startswith("dpspec.")} == {
        "dpspec.cli", "dpspec.contract", "dpspec.errors", "dpspec.lazy_names", "dpspec.text", "dpspec.version"
    }  # fmt: skip


@pytest.mark.ci
def test_theory_needs_neither_torch_nor_what_draws_or_fits(process):
    """Bounds, plans, pages, verification and differences where no library of training can be imported.

    Where a function is least, or crosses a line, dpspec finds by itself: to import ``scipy.optimize`` takes a fifth of
    a second, and ``scipy.stats`` twice that.
    """
    quickstart, spec = (str(ROOT / "specs" / f"{name}.yaml") for name in ("quickstart", "bounds-only"))
    commands = (
        *QUICK,
        ("plan", quickstart),
        ("calibrate", spec, "--vary", "mechanism.noise_multiplier", "--claim", "family"),
        ("epsilon", "--laplace", "2", "--rate", "0.01", "--steps", "10"),
        ("run", spec, "--report", "html=page.html", "--report", "json=result.json"),
        ("verify", "page.html"),
        ("verify", "result.json"),
        ("report", "result.json", "--format", "markdown"),
        ("diff", "result.json", "page.html"),
    )
    for command, modules in zip(commands, loaded_after(process, *commands, missing=TRAINING), strict=True):
        assert not modules & {*TRAINING, "matplotlib", "fsspec"}, command
        assert not modules & {"scipy.optimize", "scipy.stats", "mpmath"}, command


def test_importing_the_package_imports_nothing_else(process):
    code = (
        "import sys\nimport dpspec\nprint(*[m for m in sys.modules if m.startswith('dpspec.')], 'numpy' in sys.modules)"
    )
    assert process(python=code).out == "dpspec.lazy_names dpspec.version False\n"


@pytest.mark.recorder
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
