"""The distribution dpspec-core: the code and the dependencies of dpspec, except for the libraries of training."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

#: The libraries that only training needs.
OF_TRAINING = ("safetensors", "scikit-learn", "torch")

#: A command line in an interpreter that does not find these libraries.
WITHOUT = """
import sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("safetensors", "sklearn", "torch"):
            raise ModuleNotFoundError(name, name=name.partition(".")[0])
sys.meta_path.insert(0, Finder)
from dpspec.__main__ import main
sys.exit(main())
"""


def declared(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text("utf-8"))


def dpspec(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, cwd=ROOT)


def test_both_distributions_have_the_same_code_and_metadata() -> None:
    whole, core = declared("pyproject.toml"), declared("packaging/core/pyproject.toml")
    kept = [line for line in whole["project"]["dependencies"] if not line.startswith(OF_TRAINING)]
    assert core["project"]["dependencies"] == kept
    assert len(kept) == len(whole["project"]["dependencies"]) - len(OF_TRAINING)
    for key in ("version", "requires-python", "license", "classifiers", "scripts", "entry-points"):
        assert core["project"][key] == whole["project"][key]
    packages = core["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert [path.removeprefix("../../") for path in packages] == whole["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert f"version: {whole['project']['version']}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


@pytest.mark.ci
def test_bounds_verification_and_reports_need_no_library_of_training(tmp_path: Path) -> None:
    result = str(tmp_path / "result.json")
    done = dpspec("run", "--bounds-only", "specs/bounds-only.yaml", "--report", f"json={result}")
    assert done.returncode == 0, done.stderr
    for arguments in (
        ("verify", result),
        ("report", result),
        ("diff", result, result),
        ("validate", "specs/quickstart.yaml"),
        ("plan", "specs/bounds-only.yaml"),
    ):
        done = dpspec(*arguments)
        assert done.returncode == 0, done.stderr
    assert dpspec("epsilon", "--noise", "1.1", "--rate", "0.01", "--steps", "100").returncode == 0
    trained = dpspec("run", "specs/quickstart.yaml", "--store", str(tmp_path / "store"))
    assert trained.returncode == 2
    assert "error: this command needs torch: install dpspec in place of dpspec-core" in trained.stderr
