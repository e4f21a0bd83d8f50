"""The core works where the recorder is not installed, and says which plugin a command needs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

#: Runs commands one after another without the recorder, and prints the exit code and the messages of each.
WITHOUT_RECORDER = """
import contextlib, io, json, sys
RECORDER = ("dpspec_recording",)
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith(RECORDER):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
from dpspec.cli.app import main
ended = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    ended.append([code, out.getvalue(), err.getvalue()])
import dpspec
missing = []
for name in dpspec.__all__:
    try:
        getattr(dpspec, name)
    except ModuleNotFoundError as error:
        missing.append([name, error.name.partition(".")[0]])
assert not [name for name in sys.modules if name.startswith(RECORDER)]
print(json.dumps([ended, missing]))
"""


def ended(folder: Path, *commands: tuple[str, ...]) -> tuple[list[list[Any]], dict[str, str]]:
    """Exit code, output and messages of each command, and the public names that are missing, by the missing package."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RECORDER, json.dumps(commands)], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    outcomes, missing = json.loads(done.stdout)
    return outcomes, dict(missing)


@pytest.mark.ci
def test_bounds_reports_and_verification_need_no_recorder(tmp_path: Path) -> None:
    spec = str(ROOT / "specs" / "bounds-only.yaml")
    formats = ("html", "json", "junit", "markdown", "sarif", "statement", "text")
    commands = [
        ("validate", spec),
        ("run", spec, *(word for name in formats for word in ("--report", f"{name}=result.{name}"))),
        ("verify", "result.json"),
        ("report", "result.html"),
        ("diff", "result.json", "result.html"),
        ("epsilon", "--noise", "1.1", "--rate", "0.01", "--steps", "100"),
        ("explain", "epsilon"),
        ("--help",),
        ("plugins",),
    ]
    outcomes, _ = ended(tmp_path, *commands)
    for command, (code, _, messages) in zip(commands, outcomes, strict=True):
        assert code == 0, (command, messages)


@pytest.mark.ci
def test_training_and_attacks_need_no_recorder(tmp_path: Path) -> None:
    spec = str(ROOT / "specs" / "quickstart.yaml")
    outcomes, _ = ended(tmp_path, ("run", spec, "--report", "json=result.json"), ("verify", "result.json"))
    for code, _, messages in outcomes:
        assert code == 0, messages


@pytest.mark.ci
def test_what_concerns_recordings_names_the_missing_plugin(tmp_path: Path) -> None:
    spec = (ROOT / "specs" / "bounds-only.yaml").read_text(encoding="utf-8")
    (tmp_path / "spec.yaml").write_text(f"{spec}\ntraining: {{backend: recorded, run: run}}\n", encoding="utf-8")
    (tmp_path / "run").mkdir()
    ledger = ("ledger", "add", "run", "--epsilon", "1", "--delta", "1e-5")
    outcomes, missing = ended(tmp_path, ("run", "spec.yaml"), ledger, ("check", "run"), ("rules",))
    assert [(code, out) for code, out, _ in outcomes] == [(4, "")] * 4
    of_spec, of_ledger, of_check, of_rules = (messages for *_, messages in outcomes)
    assert "error[unknown-kind]: no installed plugin offers backend 'recorded'" in of_spec
    assert "no installed plugin reads the folder of a recorded training" in of_ledger
    for name, messages in (("check", of_check), ("rules", of_rules)):
        broken = f"`dpspec {name}` is a command of dpspec's plugin 'recording', which is broken: ModuleNotFoundError: "
        assert messages.startswith(f"error: {broken}No module named 'dpspec_recording'")
    assert set(missing) == {"Recorder", "check", "plant", "record", "replay"}
