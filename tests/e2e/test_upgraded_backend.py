"""A backend that is upgraded, or edited in place, is looked at anew: its noise may be gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import warm

from dpspec.errors import ExitCode

OWN_LOOP = Path(__file__).parents[1] / "plugins" / "dpspec_own_loop" / "dpspec_own_loop"

SPEC = """\
dpspec: 1
name: released
mechanism:
  kind: group
  noise_multiplier: 1.5
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.2}
  steps: 30
data: {kind: synthetic, records: 200, features: 32, classes: 4}
model: {kind: linear}
training: {backend: own-loop}
claims: [{id: one, kind: approx-dp, epsilon: 40.0, delta: 1e-5}]
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 60}, runs: 2}
"""


def install(site: Path, version: str) -> Path:
    """The team's loop as a distribution; returns the file that trains."""
    for old in site.glob("*.dist-info"):
        shutil.rmtree(old)
    info = site / f"acme_loop-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-loop\nVersion: {version}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[dpspec]\nacme = dpspec_own_loop\n", encoding="utf-8")
    shutil.copytree(OWN_LOOP, site / "dpspec_own_loop", dirs_exist_ok=True)
    return site / "dpspec_own_loop" / "loop.py"


def without_noise(loop: Path) -> None:
    code = loop.read_text(encoding="utf-8")
    assert "noise = sigma" in code
    loop.write_text(code.replace("noise = sigma", "noise = 0.0 * sigma"), encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Callable[[], tuple[int, dict[str, Any], str]]:
    (tmp_path / "a.yaml").write_text(SPEC, encoding="utf-8")
    env = {**environment, "PYTHONPATH": str(tmp_path / "acme"), "PYTHONDONTWRITEBYTECODE": "1"}

    def make() -> tuple[int, dict[str, Any], str]:
        ended = warm.dpspec("run", "a.yaml", "--report", "json=a.json", cwd=tmp_path, env=env)
        (audit,) = json.loads((tmp_path / "a.json").read_text("utf-8"))["audits"]
        return ended.returncode, audit, ended.stdout

    return make


@pytest.mark.ci
def test_a_backend_whose_noise_is_gone_is_trained_again(run: Any, tmp_path: Path) -> None:
    install(tmp_path / "acme", "0.1")
    code, audit, _ = run()
    assert (code, audit["conformance"]["status"]) == (ExitCode.OK, "no-deviation-found")
    code, audit, shown = run()
    assert (code, audit["stored_trials"]) == (ExitCode.OK, 2)
    shown = " ".join(shown.split())
    assert "2 of 2 trials from the store, made by dpspec" in shown
    assert "backend of acme-loop 0.1, code " in shown
    without_noise(install(tmp_path / "acme", "0.2"))
    code, audit, shown = run()
    assert (code, audit["stored_trials"], audit["conformance"]["status"]) == (ExitCode.UNEXPECTED, 0, "deviates")
    assert audit["trials"][0]["recorded"]["by"]["backend"]["version"] == "0.2"
