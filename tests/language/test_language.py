"""The spec language is quick to import and pulls in nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path
from dpspec.contract.catalog import Catalog
from dpspec.language.load import load_specs
from dpspec.language.diagnostics import render
loaded = load_specs([Path(sys.argv[1])], Catalog())
print(render(loaded.diagnostics, sources=loaded.sources))
heavy = {"torch", "scipy", "numpy", "sklearn", "rich", "typer", "packaging"} & set(sys.modules)
assert not heavy, heavy
"""


def test_loading_a_spec_imports_nothing_heavy(tmp_path: Path, valid: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(valid)
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True)
    assert "unknown-kind" in ran.stdout
