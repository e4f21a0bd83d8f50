"""Somebody else's training loop, under the same audit: a team's own, and Opacus as its users call it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


def statuses(tmp_path: Path) -> dict[str, str]:
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    return {audit["name"]: audit["conformance"]["status"] for audit in result["audits"]}


@pytest.mark.ci
def test_a_team_audits_its_own_loop(dpspec: Run, tmp_path: Path) -> None:
    done = dpspec("run", ROOT / "tests" / "plugins" / "dpspec_own_loop" / "audit.yaml", "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(tmp_path) == {"own-loop": "no-deviation-found"}


@pytest.mark.slow
def test_opacus_as_its_users_call_it(dpspec: Run, tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    done = dpspec("run", *sorted((ROOT / "specs" / "opacus").glob("*.yaml")), "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = statuses(tmp_path)
    conform = {"opacus-declared-rate", "opacus-declared-shuffled", "opacus-public-divisor"}
    assert {name for name, status in found.items() if status == "no-deviation-found"} == conform
    assert {name for name, status in found.items() if status == "deviates"} == set(found) - conform
    assert len(found) == 6


def test_without_opacus_the_backend_says_what_to_install(
    dpspec: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "site" / "opacus.py").write_text("raise ModuleNotFoundError('opacus')\n", encoding="utf-8")
    done = dpspec("run", ROOT / "specs" / "opacus" / "as-a-user.yaml")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "pip install 'dpspec[opacus]'" in done.stderr
