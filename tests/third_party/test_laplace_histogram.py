"""The worked example of the author's guide, installed by pip into a folder of its own as a stranger would."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "dpspec-laplace-histogram"
GUIDE = Path(__file__).parents[2] / "docs" / "plugins" / "worked-example.md"

Execute = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def execute(install_project: Callable[[Path], Execute]) -> Execute:
    return install_project(PROJECT)


@pytest.mark.ci
def test_its_own_tests_pass(execute: Execute) -> None:
    done = execute("pytest", "-q", "-p", "no:cacheprovider", "project")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_its_backend_keeps_every_promise(execute: Execute) -> None:
    done = execute("dpspec", "plugins", "--check", "careless-histogram")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "backend careless-histogram: " in done.stdout
    assert done.stdout.rstrip().endswith("5 kept")


@pytest.mark.ci
def test_a_control_is_refuted_and_a_careless_pipeline_contradicted(execute: Execute) -> None:
    for name, verdicts in (("example", ["proved", "proved", "refuted"]), ("control", ["contradicted"])):
        place = f"project/dpspec_laplace_histogram/{name}.yaml"
        done = execute("dpspec", "run", place, "--report", "json=-")
        assert done.returncode == 0, done.stdout + done.stderr
        (audit,) = json.loads(done.stdout)["audits"]
        assert [verdict["verdict"] for verdict in audit["verdicts"]] == verdicts
        assert audit["conformance"]["status"] == ("deviates" if name == "control" else "no-deviation-found")


def test_another_backend_is_refused_where_it_stands(execute: Execute) -> None:
    place = "project/dpspec_laplace_histogram/example.yaml"
    done = execute("dpspec", "plan", "--set", "training.backend=native", place)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "backend 'native' trains models; a histogram is released by 'laplace-histogram'" in done.stderr


def test_it_imports_the_contract_and_the_statistics_only() -> None:
    used = set()
    for file in (PROJECT / "dpspec_laplace_histogram").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            used |= {".".join(str(name).split(".")[:2]) for name in names if str(name).startswith("dpspec.")}
    assert used == {"dpspec.contract", "dpspec.stats"}


def test_the_guide_shows_the_code_that_is_tested() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    shown = [block.split("```")[0].strip() for block in page.split("```python\n")[1:]]
    code = "\n".join(file.read_text(encoding="utf-8") for file in (PROJECT / "dpspec_laplace_histogram").glob("*.py"))
    assert shown
    for block in shown:
        assert block in code, f"the plugin does not hold:\n{block}"
