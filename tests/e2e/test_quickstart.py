"""The README's first command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

SPECS = Path(__file__).parents[2] / "specs"
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_quickstart_gives_verdicts_with_upper_and_lower_bounds(dpspec: Run, tmp_path: Path) -> None:
    done = dpspec("run", SPECS / "quickstart.yaml", "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["audits"]
    verdicts = {v["claim"]: v for v in audit["verdicts"]}
    assert {claim: v["verdict"] for claim, v in verdicts.items()} == {
        "one-record": "proved",
        "family": "proved",
        "too-good": "refuted",
        "useful": "supported",
    }
    for claim in ("one-record", "family"):
        assert 0.0 < verdicts[claim]["lower"] < verdicts[claim]["upper"] < verdicts[claim]["claimed"]
    assert audit["conformance"]["status"] == "no-deviation-found"
    assert len(audit["checks"]) <= 20
    for check in audit["checks"]:
        exact = check["test"].endswith(", exact")
        assert exact or check["detectable"] < 1.0, check

    again = dpspec("verify", "result.json")
    assert again.returncode == 0, again.stdout + again.stderr
    assert dpspec("diff", "result.json", "result.json").returncode == 0

    data = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    data["audits"][0]["verdicts"][0]["upper"] = 1.0
    (tmp_path / "edited.json").write_text(json.dumps(data), encoding="utf-8")
    edited = dpspec("verify", "edited.json")
    assert edited.returncode == 1
    assert "upper" in edited.stdout + edited.stderr


def test_bounds_alone_train_nothing(dpspec: Run, tmp_path: Path) -> None:
    done = dpspec("run", SPECS / "bounds-only.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2.956" in done.stdout
    assert not list((tmp_path / ".dpspec").glob("store/trials/*"))
