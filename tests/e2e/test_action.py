"""The GitHub action's script, run as a workflow would: annotations, summary, reports and the exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "dpspec"
SPEC = ROOT / "specs" / "bounds-only.yaml"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def audit(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the script in ``folder`` with a ``dpspec`` on the path that is this interpreter's."""
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    command = bin_ / "dpspec"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dpspec "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_OUTPUT": str(folder / "output.txt"),
        **inputs,
    }
    return subprocess.run(
        ["bash", str(ACTION / "audit.sh")],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "specs" / "release.yaml"
    path.parent.mkdir()
    path.write_text(SPEC.read_text(encoding="utf-8"), encoding="utf-8")
    return path


def test_a_change_that_raises_epsilon_fails_and_annotates_the_line(tmp_path: Path, spec: Path) -> None:
    good = audit(tmp_path, DPSPEC_SPECS="specs/release.yaml")
    assert good.returncode == 0, good.stderr
    assert "::error" not in good.stdout
    spec.write_text(spec.read_text(encoding="utf-8").replace("noise_multiplier: 1.0", "noise_multiplier: 0.9"), "utf-8")
    bad = audit(tmp_path, DPSPEC_SPECS="\n  specs/release.yaml\n\n")
    assert bad.returncode == 1
    errors = [line for line in bad.stdout.splitlines() if line.startswith("::error")]
    text = spec.read_text(encoding="utf-8").splitlines()
    line = next(i for i, row in enumerate(text, 1) if "one-record" in row)
    assert any(f"file=specs/release.yaml,line={line}," in error and "one-record" in error for error in errors)
    folder = audit(tmp_path, DPSPEC_SPECS="specs")  # is the specs in it
    assert [row for row in folder.stdout.splitlines() if row.startswith("::error")] == errors
    assert "one-record" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert (tmp_path / "output.txt").read_text(encoding="utf-8") == "reports=dpspec-reports\n" * 3
    reports = tmp_path / "dpspec-reports"
    assert json.loads((reports / "result.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert (reports / "report.html").stat().st_size > 10_000


def test_against_a_baseline_only_what_got_worse_fails(tmp_path: Path, spec: Path) -> None:
    spec.write_text(spec.read_text(encoding="utf-8").replace("noise_multiplier: 1.0", "noise_multiplier: 0.9"), "utf-8")
    assert audit(tmp_path, DPSPEC_SPECS="specs/release.yaml").returncode == 1
    shutil.copy(tmp_path / "dpspec-reports" / "result.json", tmp_path / "known.json")
    again = audit(tmp_path, DPSPEC_SPECS="specs/release.yaml", DPSPEC_BASELINE="known.json")
    assert again.returncode == 0, again.stderr
    assert "Nothing got worse" in again.stderr


def test_inputs_are_data_not_script(tmp_path: Path, spec: Path) -> None:
    ended = audit(tmp_path, DPSPEC_SPECS="specs/release.yaml; touch pwned\n$(touch pwned)", DPSPEC_SET="`touch pwned`")
    assert ended.returncode == 2 or ended.returncode == 3
    assert not (tmp_path / "pwned").exists()


def test_every_input_reaches_the_script_through_the_environment() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    (step,) = action["runs"]["steps"]
    assert "${{" not in step["run"]
    script = (ACTION / "audit.sh").read_text(encoding="utf-8")
    for name in action["inputs"]:
        variable = "DPSPEC_" + name.upper().replace("-", "_")
        assert step["env"][variable] == "${{ inputs." + name + " }}"
        assert variable in script


def test_the_hooks_hold_for_the_whole_folder(tmp_path: Path, spec: Path) -> None:
    """As pre-commit calls them: entry and args, and no file names."""
    (spec.parent / "parent.yaml").write_text("threat_model: {group_size: [1]}\n", encoding="utf-8")
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    for hook in hooks:
        assert hook["pass_filenames"] is False
        command = [sys.executable, "-m", *hook["entry"].split(), *hook["args"]]
        good = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
        assert good.returncode == 0, good.stderr
        assert "parent.yaml" in good.stderr
    spec.write_text(spec.read_text(encoding="utf-8").replace("steps:", "stepz:"), encoding="utf-8")
    for hook in hooks:
        command = [sys.executable, "-m", *hook["entry"].split(), *hook["args"]]
        bad = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
        assert bad.returncode == 3
