"""The worked example of the guide for authors, installed by pip into a separate folder."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = "dpspec-laplace-histogram"
PACKAGE = Path(__file__).parent / PROJECT / "dpspec_laplace_histogram"

Execute = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.ci
def test_its_own_tests_pass(installed: Callable[[str], Execute]) -> None:
    done = installed(PROJECT)("pytest", "-q", "-rs", "-p", "no:cacheprovider", "project")
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("release() returns no" in line for line in skipped), skipped  # checks of other mechanisms


@pytest.mark.ci
def test_its_backend_keeps_every_promise(installed: Callable[[str], Execute]) -> None:
    done = installed(PROJECT)("dpspec", "plugins", "--check", "careless-histogram")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "backend careless-histogram: " in done.stdout
    assert done.stdout.rstrip().endswith("5 kept")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "verdicts", "rejected"),
    [("example", ["proved", "proved", "refuted"], []), ("control", ["contradicted"], ["noise-scale"])],
)
def test_verdicts_and_rejected_checks_of_its_specs(installed, name, verdicts, rejected):
    spec = f"project/{PACKAGE.name}/{name}.yaml"
    done = installed(PROJECT)("dpspec", "run", spec, "--report", "json=-")
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = json.loads(done.stdout)["audits"]
    assert [verdict["verdict"] for verdict in audit["verdicts"]] == verdicts
    assert audit["conformance"]["status"] == ("deviates" if rejected else "no-deviation-found")
    checks = {check["assumption"]: check["p_value"] for check in audit["checks"]}
    assert set(checks) == {"noise-scale"}
    assert [name for name, p_value in checks.items() if p_value <= 1e-6] == rejected


def test_it_imports_the_contract_and_the_kit_only() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.glob("*.py"))
    imported = re.findall(r"^\s*(?:from|import) (dpspec(?:\.\w+| import \w+))", code, re.MULTILINE)
    assert set(imported) == {"dpspec.contract", "dpspec import kit"}
