"""A sixth theory, DP-FTRL, from outside the house: installed by pip into a folder of its own as a stranger would."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "dpspec-matrix"
DOCS = Path(__file__).parents[2] / "docs"

Execute = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def execute(install_project: Callable[[Path], Execute]) -> Execute:
    return install_project(PROJECT)


@pytest.mark.ci
def test_its_own_tests_pass(execute: Execute) -> None:
    done = execute("pytest", "-q", "-p", "no:cacheprovider", "project")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "verdicts", "conformance", "options"),
    [
        ("example", {"one": "proved", "pair": "proved", "one-epoch-counted": "refuted"}, "no-deviation-found", ()),
        ("tree", {"one": "proved", "pair": "proved"}, "no-deviation-found", ("--set", "audit.releases=20")),
        ("eager", {"one": "contradicted"}, "deviates", ()),
        ("thrifty", {"one": "proved"}, "deviates", ()),
    ],
)
def test_what_its_specs_come_out_as(
    execute: Execute, name: str, verdicts: dict[str, str], conformance: str, options: tuple[str, ...]
) -> None:
    done = execute("dpspec", "run", f"project/dpspec_matrix/{name}.yaml", *options, "--report", "json=-")
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = json.loads(done.stdout)["audits"]
    assert {verdict["claim"]: verdict["verdict"] for verdict in audit["verdicts"]} == verdicts
    assert audit["conformance"]["status"] == conformance
    checks = {check["assumption"]: check["p_value"] for check in audit["checks"]}
    assert set(checks) == {"noise-scale", "sampling"}
    assert {name for name, p_value in checks.items() if p_value <= 1e-6} == {
        "eager": {"sampling"},
        "thrifty": {"noise-scale"},
    }.get(name, set())


def test_three_encoders_are_compared_without_training(execute: Execute) -> None:
    done = execute("dpspec", "run", "project/dpspec_matrix/encoders.yaml", "--report", "json=-")
    assert done.returncode == 0, done.stdout + done.stderr
    audits = json.loads(done.stdout)["audits"]
    uppers = [next(f["value"] for f in a["findings"] if f["quantity"] == "mu") for a in audits]
    assert uppers == sorted(uppers)
    assert [sum(f["bound"] == "lower" for f in audit["findings"]) for audit in audits] == [2, 2, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("training.backend=native", "backend 'native' has no correlated noise; 'matrix' has"),
        ("training.optimizer={kind: momentum}", "this attack undoes plain descent at one rate: leave optimizer out"),
        ("mechanism.steps=2001", "steps must be at most 2000, as the attack decodes all steps at once, got 2001"),
        ("threat_model.adjacency=add-remove", "threat_model.adjacency"),
    ],
)
def test_what_it_does_not_cover_is_refused_where_it_stands(execute: Execute, change: str, said: str) -> None:
    done = execute("dpspec", "plan", "--set", change, "project/dpspec_matrix/example.yaml")
    assert done.returncode == 3, done.stdout + done.stderr
    assert said in done.stderr.replace("\n", " ")


_HOMES = {"dps": "dpspec.contract", "kit": "dpspec.kit"}


def used() -> dict[str, set[str]]:
    """What the plugin imports of dpspec, by module, and what it reads of ``dpspec.contract`` and ``dpspec.kit``."""
    found: dict[str, set[str]] = {}
    for file in (PROJECT / "dpspec_matrix").glob("*.py"):
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
    modules = {
        f"{home}.{name}" if home == "dpspec.stats.attacks" else home for home, own in names.items() for name in own
    }
    assert modules == {"dpspec.stats.attacks.thresholds", "dpspec.training.loop.native", "dpspec.training.canaries"}
    for module in modules:
        assert f"### `{module}`\n" in page


def test_the_guide_counts_its_lines_and_names_right() -> None:
    """Lines that are no blanks, and names of dpspec, as docs/how-to/write-a-plugin.md says them."""
    files = [*(PROJECT / "dpspec_matrix").glob("*.py")]
    lines = sum(bool(line.strip()) for file in files for line in file.read_text(encoding="utf-8").splitlines())
    names = used()
    page = " ".join((DOCS / "how-to" / "write-a-plugin.md").read_text(encoding="utf-8").split())
    said = re.search(r"in (\d+) lines, with (\d+) names of `dpspec.contract` and (\d+) of `dpspec.kit`", page)
    assert said is not None
    assert tuple(map(int, said.groups())) == (lines, len(names["dpspec.contract"]), len(names["dpspec.kit"]))
