"""What ``dpspec.accounting`` exports, how lightly, and that its modules form no circle of any kind."""

import ast
import subprocess
import sys
from pathlib import Path

import dpspec.accounting as accounting

ROOT = Path(accounting.__file__).parent


def test_importing_the_package_imports_neither_numpy_nor_scipy() -> None:
    code = """
import sys
import dpspec.accounting as accounting
assert not {"numpy", "scipy"} & set(sys.modules), "at once"
accounting.find_boundary, accounting.NeverHoldsError, accounting.Interval
assert "scipy" not in sys.modules, "for a search"
accounting.gaussian
assert "scipy" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_core_and_plugins_import_from_the_package_itself() -> None:
    """Modules of names may change; other code depends on the exports of ``dpspec.accounting``."""
    outside = [path for path in ROOT.parent.rglob("*.py") if not path.is_relative_to(ROOT)]
    plugins = list((Path(__file__).parents[2] / "plugins").rglob("*.py"))  # where dpspec may be installed elsewhere
    public = {*accounting.__all__, *accounting._TOOLS}
    assert len(outside) > 100
    assert len(plugins) > 30
    for path in (*outside, *plugins):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "dpspec.accounting" in text else ():
            if isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name.startswith("dpspec.accounting.")], path
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpspec.accounting"):
                assert node.module == "dpspec.accounting", (path, node.lineno)
                assert {alias.name for alias in node.names} <= public, (path, node.lineno)
