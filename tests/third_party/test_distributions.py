"""The worked examples of the guides for authors, installed by pip into folders of their own as a stranger would."""

import ast
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
LAPLACE, FTRL = "dpspec-laplace-histogram", "dpspec-ftrl"

Execute = Callable[..., subprocess.CompletedProcess[str]]


def modules(project: str) -> list[Path]:
    return [*(HERE / project / project.replace("-", "_")).glob("*.py")]


@pytest.mark.ci
@pytest.mark.parametrize("project", [LAPLACE, FTRL])
def test_its_own_tests_pass(installed: Callable[[str], Execute], project: str) -> None:
    done = installed(project)("pytest", "-q", "-p", "no:cacheprovider", "project")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_its_backend_keeps_every_promise(installed: Callable[[str], Execute]) -> None:
    done = installed(LAPLACE)("dpspec", "plugins", "--check", "careless-histogram")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "backend careless-histogram: " in done.stdout
    assert done.stdout.rstrip().endswith("5 kept")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("project", "name", "verdicts", "rejected"),
    [
        (LAPLACE, "example", ["proved", "proved", "refuted"], []),
        (LAPLACE, "control", ["contradicted"], ["noise-scale"]),
        (FTRL, "example", ["proved", "proved", "refuted"], []),
        (FTRL, "eager", ["contradicted"], ["sampling"]),
        (FTRL, "thrifty", ["proved"], ["noise-scale"]),
    ],
)
def test_what_its_specs_come_out_as(
    installed: Callable[[str], Execute], project: str, name: str, verdicts: list[str], rejected: list[str]
) -> None:
    place = f"project/{project.replace('-', '_')}/{name}.yaml"
    done = installed(project)("dpspec", "run", place, "--report", "json=-")
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = json.loads(done.stdout)["audits"]
    assert [verdict["verdict"] for verdict in audit["verdicts"]] == verdicts
    assert audit["conformance"]["status"] == ("deviates" if rejected else "no-deviation-found")
    checks = {check["assumption"]: check["p_value"] for check in audit["checks"]}
    assert set(checks) == ({"noise-scale", "sampling"} if project == FTRL else {"noise-scale"})
    assert [name for name, p_value in checks.items() if p_value <= 1e-6] == rejected


def test_it_imports_the_contract_and_the_statistics_only() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in modules(LAPLACE))
    imported = re.findall(r"^\s*(?:from|import) (dpspec\.\w+)", code, re.MULTILINE)
    assert set(imported) == {"dpspec.contract", "dpspec.stats"}


def used() -> dict[str, set[str]]:
    """What the plugin imports of dpspec, by module, and what it reads of ``dpspec.contract`` and ``dpspec.kit``."""
    found: dict[str, set[str]] = {}
    for file in modules(FTRL):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dpspec."):
                found.setdefault(str(node.module), set()).update(alias.name for alias in node.names)
            elif (
                isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("dps", "kit")
            ):
                home = {"dps": "dpspec.contract", "kit": "dpspec.kit"}[node.value.id]
                found.setdefault(home, set()).add(node.attr)
    return found


def test_all_that_it_uses_is_documented_for_plugins() -> None:
    import dpspec.contract as dps
    from dpspec import accounting, kit

    names = used()
    assert names.pop("dpspec.contract") <= set(dps.__all__)
    assert names.pop("dpspec.kit") <= set(kit.__all__)
    assert names.pop("dpspec.accounting") <= set(accounting.__all__)
    page = (DOCS / "reference" / "plugin-tools.md").read_text(encoding="utf-8")
    found = {
        f"{home}.{name}" if home == "dpspec.stats.attacks" else home for home, own in names.items() for name in own
    }
    assert found == {"dpspec.stats.attacks.thresholds", "dpspec.training.loop.native", "dpspec.training.canaries"}
    for module in found:
        assert f"### `{module}`\n" in page
