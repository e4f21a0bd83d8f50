"""Claims that must be refuted are; pipelines that are broken deviate; repaired, they do not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONTROLS = sorted((Path(__file__).parents[2] / "specs" / "controls").glob("*.yaml"))
Run = Callable[..., subprocess.CompletedProcess[str]]


def audits(tmp_path: Path) -> dict[str, dict[str, Any]]:
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    return {audit["name"]: audit for audit in result["audits"]}


def test_every_control_is_refuted_and_the_broken_ones_deviate(dpspec: Run, tmp_path: Path) -> None:
    done = dpspec("run", *CONTROLS, "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = audits(tmp_path)
    assert set(found) == {"no-noise", "tenth-noise", "too-good"}
    for audit in found.values():
        assert {v["verdict"] for v in audit["verdicts"]} <= {"refuted", "contradicted"}
    assert {name: a["conformance"]["status"] for name, a in found.items()} == {
        "no-noise": "deviates",
        "tenth-noise": "deviates",
        "too-good": "conforms-within",
    }


def test_repaired_they_are_not_as_expected_and_the_report_says_why(dpspec: Run, tmp_path: Path) -> None:
    done = dpspec("run", *CONTROLS, "--set", "training.backend=native", "--report", "json=result.json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = audits(tmp_path)
    for name in ("no-noise", "tenth-noise"):
        assert [v["verdict"] for v in found[name]["verdicts"]] == ["proved"]
        assert found[name]["conformance"]["status"] == "conforms-within"
    assert "NOT AS EXPECTED" in done.stdout
    assert "expected refuted" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", ["no-noise", "tenth-noise"])
def test_a_broken_backend_that_is_not_installed_is_a_missing_plugin(name: str, tmp_path: Path) -> None:
    from dpspec.contract import Catalog
    from dpspec.registry.loader import load_catalog
    from dpspec.spec.load import load_specs

    installed = load_catalog()
    ours = {kind: offer for kind, offer in installed.backends.items() if kind == "native"}
    catalog = Catalog(
        mechanisms=installed.mechanisms, datasets=installed.datasets, models=installed.models, backends=ours
    )
    (path,) = (p for p in CONTROLS if p.stem == name)
    loaded = load_specs([path], catalog)
    assert loaded.missing_plugins
