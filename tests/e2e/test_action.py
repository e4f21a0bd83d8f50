"""The GitHub action's script, run as a workflow would: annotations, summary, reports and the exit code."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support import warm

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "dpspec"
SPEC = ROOT / "specs" / "bounds-only.yaml"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def audit(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the script in ``folder`` with a ``dpspec`` on the path that is this one."""
    env = {
        **os.environ,
        "PATH": f"{warm.programs(folder / 'bin')}:{os.environ['PATH']}",
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


@pytest.mark.ci
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
    assert "No regression from the earlier result" in again.stderr


def test_inputs_are_data_not_script(tmp_path: Path, spec: Path) -> None:
    ended = audit(tmp_path, DPSPEC_SPECS="specs/release.yaml; touch pwned\n$(touch pwned)", DPSPEC_SET="`touch pwned`")
    assert ended.returncode == 2 or ended.returncode == 3
    assert not (tmp_path / "pwned").exists()


def committed(folder: Path, *names: str) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "-q"], ["add", "-f", *names], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], cwd=folder, check=True, timeout=60)


def test_reports_of_the_checkout_are_not_left_for_ours(tmp_path: Path, spec: Path) -> None:
    reports = tmp_path / "dpspec-reports"
    reports.mkdir()
    (reports / "report.html").write_text("forged")
    (reports / "annotations.txt").write_text("::error::forged")
    ended = audit(tmp_path, DPSPEC_SPECS="specs/nowhere.yaml")
    assert ended.returncode == 3
    written = {file.name: file.read_text(encoding="utf-8") for file in reports.iterdir()}
    assert written.keys() == {"annotations.txt", "junit.xml", "result.sarif", "summary.md"}
    assert not any("forged" in text for text in written.values())
    assert "::error title=dpspec::no verdict (exit 3)" in ended.stdout
    assert "forged" not in ended.stdout
    (reports / "other.html").write_text("forged")
    refused = audit(tmp_path, DPSPEC_SPECS="specs/release.yaml")
    assert refused.returncode == 2
    assert "not ours" in refused.stderr
    shutil.rmtree(reports)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "result.json").write_text("theirs")
    reports.symlink_to("elsewhere")
    assert audit(tmp_path, DPSPEC_SPECS="specs/release.yaml").returncode == 2
    assert (tmp_path / "elsewhere" / "result.json").read_text() == "theirs"


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("way", ["in its place", "behind a link", "behind a link above it"])
def test_a_store_of_the_checkout_is_not_believed(tmp_path: Path, spec: Path, way: str) -> None:
    place = tmp_path / {"in its place": ".dpspec/store", "behind a link": "x", "behind a link above it": "y/store"}[way]
    place.mkdir(parents=True)
    (place / "dpspec-store.json").write_text('{"store": "dpspec", "version": 1}')
    if way == "behind a link":
        (tmp_path / ".dpspec").mkdir()
        (tmp_path / ".dpspec" / "store").symlink_to("../x")
    elif way == "behind a link above it":
        (tmp_path / ".dpspec").symlink_to("y")
    committed(tmp_path, ".dpspec", "x" if way == "behind a link" else "specs", "y" if "above" in way else "specs")
    refused = audit(tmp_path, DPSPEC_SPECS="specs/release.yaml", DPSPEC_STORE=".dpspec/store")
    assert refused.returncode == 2
    assert "part of the checkout" in refused.stderr
    fresh = audit(tmp_path, DPSPEC_SPECS="specs/release.yaml", RUNNER_TEMP=str(tmp_path / "temp"))
    assert fresh.returncode == 0, fresh.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, "x\nreports=owned")
            for name in ("REPORTS", "STORE", "BASELINE", "DEVICE", "MAX_MINUTES", "BOUNDS_ONLY")
        ),
        *(("BOUNDS_ONLY", value) for value in ("yes", "True", "1", "true; touch owned", "x\nreports=owned")),
        ("SPECS", ""),
    ],
)
def test_an_input_of_several_lines_or_that_is_no_truth_value_is_refused(tmp_path, spec, name, value):
    assert audit(tmp_path, **{"DPSPEC_SPECS": "specs/release.yaml", f"DPSPEC_{name}": value}).returncode == 2
    assert not (tmp_path / "output.txt").exists()


def test_every_input_reaches_the_script_through_the_environment() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    (step,) = action["runs"]["steps"]
    assert "${{" not in step["run"]
    script = (ACTION / "audit.sh").read_text(encoding="utf-8")
    for name in action["inputs"]:
        variable = "DPSPEC_" + name.upper().replace("-", "_")
        assert step["env"][variable] == "${{ inputs." + name + " }}"
        assert variable in script


@pytest.mark.ci
def test_the_hooks_hold_for_the_whole_folder(tmp_path: Path, spec: Path) -> None:
    """As pre-commit calls them: entry and args, and no file names."""
    (spec.parent / "parent.yaml").write_text("threat_model: {group_size: [1]}\n", encoding="utf-8")
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    commands = [[*hook["entry"].split(), *hook["args"]] for hook in hooks]
    assert all(
        command[0] == "dpspec" and not hook["pass_filenames"] for command, hook in zip(commands, hooks, strict=True)
    )
    good = [warm.dpspec(*words, cwd=tmp_path, timeout=120) for _, *words in commands]
    assert [(done.returncode, "parent.yaml" in done.stderr) for done in good] == [(0, True)] * len(hooks)
    spec.write_text(spec.read_text(encoding="utf-8").replace("steps:", "stepz:"), encoding="utf-8")
    assert {warm.dpspec(*words, cwd=tmp_path, timeout=120).returncode for _, *words in commands} == {3}
