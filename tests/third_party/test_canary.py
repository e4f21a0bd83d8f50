"""A stranger's kind of canary and score: found, explained, run in processes, kept apart from others, and verified."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import warm
from support.attack_spec import SPEC
from support.installed import expose

from dpspec.json_records import write
from dpspec.results import codec

PROJECT = Path(__file__).parent / "dpspec-canary"

Execute = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def execute(tmp_path_factory: pytest.TempPathFactory) -> Execute:
    """Run dpspec where the plugin is installed, in a folder with the spec."""
    here, site = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("site")
    shutil.copytree(PROJECT / "dpspec_canary", site / "dpspec_canary", ignore=shutil.ignore_patterns("__pycache__"))
    expose(site, "dpspec-canary", "canary", "dpspec_canary", "0.1.0")
    (here / "spec.yaml").write_text(SPEC)
    path = os.pathsep.join([str(site), *(p for p in sys.path if p and Path(p).name != "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
    return lambda *arguments: warm.dpspec(*arguments, cwd=here, env=environment)


def test_it_is_listed_explained_and_keeps_its_promises(execute: Execute) -> None:
    listed = execute("plugins").stdout
    assert [line.split()[0] for line in listed.splitlines() if "dpspec-canary 0.1.0" in line] == [
        "upside-down",
        "around",
    ]
    said = execute("explain", "upside-down").stdout
    assert "canary upside-down, by dpspec-canary 0.1.0" in said
    assert "audit.canary.share" in said
    schema = execute("schema").stdout
    assert '"upside-down"' in schema
    assert "audit.scoring.points" in execute("explain", "around").stdout
    assert "How many neighbours." in schema
    assert "How far: 1 is all the way." in schema
    checked = execute("plugins", "--check", "dpspec-canary")
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.rstrip().endswith("16 kept")


@pytest.mark.ci
def test_an_audit_with_it_refutes_and_is_verified(execute: Execute) -> None:
    done = execute("run", "spec.yaml", "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = write(codec.load(execute("report", "result.json", "--format", "json").stdout).audits)
    assert [verdict["verdict"] for verdict in audit["verdicts"]] == ["refuted"]
    (evidence,) = audit["evidence"]
    assert evidence["method"] == "one-run, final-model, upside-down records by around"
    (rests,) = [a for a in evidence["assumptions"] if a["name"] == "attack-code"]
    assert rests["status"] == "reported"
    assert "canary 'upside-down' of dpspec-canary and score 'around' of dpspec-canary" in rests["text"]
    assert audit["document"]["audit"]["scoring"] == {"points": 16}
    made = audit["trials"][0]["recorded"]["by"]
    assert {part: made[part]["version"] for part in ("canary", "score")} == {"canary": "0.1.0", "score": "0.1.0"}
    assert len(made["canary"]["code"]) == 64
    lower = [f for f in audit["findings"] if f["bound"] == "lower" and f["scope"]["pipeline"] == "executed"]
    assert lower
    assert all("attack-code" in [a["name"] for a in finding["assumptions"]] for finding in lower)
    verified = execute("verify", "result.json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ("audit.canary.kind=upside-dwon", 4, "offers input canary 'upside-dwon'; did you mean 'upside-down'?"),
        ("audit.score=arround", 4, "no installed plugin offers score 'arround'; did you mean 'around'?"),
        ("audit.canary.kind=orthogonal", 3, "'orthogonal' is not a kind of input canary"),
        ("audit.canary.share=2", 3, "share must be at most 1, got 2"),
        ("audit.scoring.pionts=1", 3, "unknown key 'pionts' in audit.scoring; did you mean 'points'?"),
    ],
)
def test_wrong_choices_are_located(execute: Execute, change: str, code: int, says: str) -> None:
    done = execute("validate", "--set", change, "spec.yaml")
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stdout + done.stderr
