"""The noise and the constants that follow from clip are in the terminal, the JSON and the page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dpspec.cli.app import main

SPEC = """\
dpspec: 1
name: scaled
mechanism:
  kind: preprocessing
  pipeline: [{scale: standard, clip: CLIP}]
  private: PRIVATE
  collection: {min_std: 0.1}
data: {kind: declared, records: 1000, features: 10, classes: 2}
threat_model: {adjacency: replace-one}
claims:
  - {id: one, kind: approx-dp, epsilon: 1e7, delta: 1e-5, over: collection}
"""
LOGISTIC = "{kind: dp-gd, eps_noise: 0.3, steps: 60, loss: logistic, theta_radius: 2.0}"


def constants(tmp_path: Path, clip: float, private: str = LOGISTIC) -> dict[str, tuple[float, str]]:
    """The rows of the JSON's table, by their names."""
    path = tmp_path / "scaled.yaml"
    path.write_text(SPEC.replace("CLIP", str(clip)).replace("PRIVATE", private), encoding="utf-8")
    reports = [f"{kind}={tmp_path / kind}" for kind in ("json", "html")]
    assert main(["run", str(path), "-v", *(part for report in reports for part in ("--report", report))]) == 0
    (audit,) = json.loads((tmp_path / "json").read_text(encoding="utf-8"))["audits"]
    (table,) = (series["columns"] for series in audit["series"] if series["name"] == "constants")
    return {name: (value, why) for name, value, why in zip(*table.values(), strict=True)}


@pytest.mark.parametrize("clip", [3.0, 300.0])
def test_the_constants_of_a_loss_follow_from_clip(
    clip: float, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L = r / (1 + exp(-R r)) for norm r and radius R; sigma = L sqrt(T) / (eps_noise n)."""
    monkeypatch.setenv("COLUMNS", "80")
    found = constants(tmp_path, clip)
    lipschitz = clip / (1.0 + math.exp(-2.0 * clip))
    sigma = lipschitz * math.sqrt(60.0) / (0.3 * 1000)
    assert found["Lipschitz constant L"] == (pytest.approx(lipschitz), f"logistic loss, record norm {clip:g}")
    assert found["noise std sigma"][0] == pytest.approx(sigma)
    terminal = capsys.readouterr().out
    page = (tmp_path / "html").read_text(encoding="utf-8")
    for text in (terminal, page):
        assert "noise std sigma" in text
        assert f"{sigma:.4g}" in text
        assert f"{lipschitz:.4g}" in text


@pytest.mark.parametrize(
    ("private", "expected"),
    [
        (
            "{kind: gaussian, eps_noise: 0.5, lipschitz: 0.3, sensitivity: 2.0}",
            {"Lipschitz constant L": 0.3, "sensitivity": 2.0, "noise std sigma": 4.0},
        ),
        ("{kind: laplace, eps_noise: 0.5}", {"Lipschitz constant L": 1.0, "sensitivity": 1.0, "noise scale": 2.0}),
        (
            "{kind: dp-gd, eps_noise: 0.3, steps: 9, lipschitz: 2.0, smooth: 5.0}",
            {"Lipschitz constant L": 2.0, "smoothness mu": 5.0, "noise std sigma": 0.02},
        ),
    ],
)
def test_declared_constants_are_shown_as_such(private: str, expected: dict[str, float], tmp_path: Path) -> None:
    found = constants(tmp_path, 1.0, private)
    assert {name: value for name, (value, _) in found.items()} == pytest.approx(expected)
